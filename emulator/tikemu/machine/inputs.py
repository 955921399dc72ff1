"""Check the scalars and arrays of a run, and derive sizes from them (D30a)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from ..errors import TikParamError
from ..program import ir
from ..program.dtypes import is_float, limits
from ..program.location import warn
from .expressions import HELPERS, Expressions, name_of

#: A GM tensor declared this large (a dynamic shape's upper bound) takes the size of the array that is fed.
UNBOUNDED_ELEMENTS = (1 << 31) - 1

_told: dict = {}  # warnings


class Contents(NamedTuple):
    """Hold a GM tensor with its shape in this run; ``fed`` may be None."""

    info: ir.TensorInfo
    shape: tuple[int, ...]
    fed: np.ndarray | None


def scalar_inputs(program: ir.Program) -> list[ir.Variable]:
    """Return the InputScalars of a program."""
    return [node for node in program.inputs if isinstance(node, ir.Variable)]


def feeds(program: ir.Program, inputs: Mapping[str, Any], numerics: bool) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the scalars and arrays by name, with unknown and missing names refused."""
    scalar_names = {variable.name: variable for variable in scalar_inputs(program)}
    required = [node.tensor.name for node in program.inputs if isinstance(node, ir.View)]
    optional = [view.tensor.name for view in program.outputs] + [tensor.name for tensor in program.workspaces]
    known = {*scalar_names, *required, *optional}
    for name in inputs:
        if name not in known:
            raise TikParamError(f"kernel {program.name!r} has no argument {name!r}; it has {_arguments(program)}")
    for name in [*scalar_names, *(required if numerics else ())]:
        if name not in inputs:
            came = ", ".join(map(repr, inputs)) or "nothing"
            raise TikParamError(
                f"input {name!r} of kernel {program.name!r} is missing: it has {_arguments(program)}, got {came}"
            )
    scalars = {name: input_scalar(variable, inputs[name]) for name, variable in scalar_names.items()}
    return scalars, {name: value for name, value in inputs.items() if name not in scalar_names}


def _arguments(program: ir.Program) -> str:
    """Return everything that can be fed, by its role."""
    inputs = [node.name if isinstance(node, ir.Variable) else node.tensor.name for node in program.inputs]
    outputs = [view.tensor.name for view in program.outputs]
    roles = (("inputs", inputs), ("outputs", outputs), ("workspaces", [info.name for info in program.workspaces]))
    return ", ".join(f"{role} {' '.join(names)}" for role, names in roles if names) or "no arguments"


def contents(program: ir.Program, scalars: Mapping[str, Any], arrays: Mapping[str, Any]) -> list[Contents]:
    """Shape and initial contents of every GM tensor that the program takes or uses."""
    tensors = [node.tensor for node in (*program.inputs, *program.outputs) if isinstance(node, ir.View)]
    found: dict[int, Contents] = {}
    for info in [*tensors, *program.workspaces]:
        if info.uid in found:
            continue
        shape = extents(info, scalars, program)
        fed = None
        if info.name in arrays:
            fed = fed_array(info, shape, arrays[info.name])
        elif info.init_value is not None:
            fed = np.broadcast_to(np.asarray(info.init_value, info.dtype), shape)
        if math.prod(shape) >= UNBOUNDED_ELEMENTS:
            if fed is None:
                raise TikParamError(
                    f"GM tensor {info.name!r} is declared with {math.prod(shape)} elements, so its "
                    "real contents must be given among the inputs (for an output too)",
                    info.location,
                )
            shape = fed.shape
        found[info.uid] = Contents(info, shape, fed)
    return list(found.values())


def extents(info: ir.TensorInfo, scalars: Mapping[str, Any], program: ir.Program) -> tuple[int, ...]:
    """Return the shape of a GM tensor as numbers; run-time extents may hold InputScalars."""
    shape: tuple[Any, ...] = info.shape
    if all(ir.is_immediate(extent) for extent in shape):
        return tuple(int(extent) for extent in shape)
    try:
        return tuple(_evaluate(extent, scalars, program) for extent in info.shape)
    except NameError:
        raise TikParamError(
            f"the shape of GM tensor {info.name!r} depends on a Scalar; only InputScalars can size global memory",
            info.location,
        ) from None


def _evaluate(value: Any, scalars: Mapping[str, Any], program: ir.Program) -> int:
    names = {name_of(variable): scalars[variable.name] for variable in scalar_inputs(program)}
    return int(eval(Expressions().wrapped(value).source, dict(HELPERS), names))


def block_count(program: ir.Program, scalars: Mapping[str, Any]) -> int | None:
    """Return the number of blocks of the multi-core loop, None if it is unknown. Then only the running program knows
    it.
    """
    for statement in ir.statements(program.body):
        if isinstance(statement, ir.For) and not (ir.is_immediate(statement.block_num) and statement.block_num == 1):
            try:
                return _evaluate(statement.block_num, scalars, program)
            except NameError:
                return None
    return 1


def input_scalar(variable: ir.Variable, value: Any) -> int | float:
    """Check the value of an InputScalar.

    Raises:
        TikParamError: it is no number, not of the scalar's type, or out of its range.
    """
    array = np.asarray(value)
    if array.size != 1 or array.dtype.kind not in "iufb":
        raise TikParamError(f"InputScalar {variable.name!r} takes one {variable.dtype} number, got {value!r}")
    number = array.reshape(-1)[0].item()
    if is_float(variable.dtype):
        with np.errstate(over="ignore"):
            return float(np.dtype(variable.dtype).type(number))
    if isinstance(number, float):
        raise TikParamError(f"InputScalar {variable.name!r} is of {variable.dtype}, got the float {number!r}")
    low, high = limits(variable.dtype)
    if not low <= number <= high:
        raise TikParamError(
            f"InputScalar {variable.name!r} of {variable.dtype} must be in [{low}, {high}], got {number}"
        )
    return int(number)


def fed_array(info: ir.TensorInfo, shape: tuple[int, ...], value: Any) -> np.ndarray:
    """Return an input checked against its GM tensor (D30a). If only its shape differs, warn.

    Raises:
        TikParamError: another dtype or number of elements.
    """
    array = np.asarray(value)
    if array.dtype != np.dtype(info.dtype):
        raise TikParamError(f"tensor {info.name!r} is of {info.dtype}, got an array of {array.dtype}")
    count = math.prod(shape)
    if array.shape == shape or count >= UNBOUNDED_ELEMENTS:
        return array
    if array.size != count:
        raise TikParamError(
            f"tensor {info.name!r} has shape {shape} ({count} elements), got an array of shape "
            f"{array.shape} ({array.size} elements)"
        )
    warn(f"tensor {info.name!r} has shape {shape}; the array of shape {array.shape} is reshaped", told=_told)
    return array.reshape(shape)
