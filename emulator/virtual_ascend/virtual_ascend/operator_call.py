"""A compiled kernel: what stands in the file NAME.o, which the compiler writes and the device process reads."""

from __future__ import annotations

import pickle
from dataclasses import dataclass
from typing import Any

from tikemu.program import ir

from . import elf


@dataclass
class OperatorCall:
    """One operator with its shapes.

    Attributes:
        name: of the kernel.
        type: of the operator, in CANN.
        function: its entry in CANN or in the user's module.
        inputs, outputs: a description of the tensor (`shape`, `format`, `dtype`, `ori_shape`) for each parameter, None
            if an optional parameter is left out, several descriptions if the parameter is a list of tensors.
        attributes: by name.
        program: of an operator in TIK; None for a built-in one.
    """

    name: str
    type: str
    function: str
    inputs: list[Any]
    outputs: list[Any]
    attributes: dict[str, Any]
    program: ir.Program | None = None

    def dump(self, function: str = "") -> bytes:
        """Return the object, with the name of the function that is launched."""
        return elf.write(pickle.dumps(self, pickle.HIGHEST_PROTOCOL), [function or f"{self.name}__kernel0"])


def load(contents: bytes) -> OperatorCall:
    """Return the kernel in a file of this program's own compiler."""
    kernel = pickle.loads(elf.code(contents))
    if not isinstance(kernel, OperatorCall):
        raise ValueError(f"no kernel: {type(kernel).__name__}")
    return kernel


def tensors(parameters: list[Any]) -> list[dict[str, Any]]:
    """Return the descriptions of all tensors that are there, in order."""
    found: list[dict[str, Any]] = []
    for parameter in parameters:
        if parameter is not None:
            found.extend(parameter if isinstance(parameter, (list, tuple)) else [parameter])
    return found


def shape_of(tensor: ir.TensorInfo) -> tuple[int, ...]:
    """Return the shape of a tensor in global memory.

    Raises:
        NotImplementedError: it depends on numbers that the kernel is given when it runs.
    """
    shape = [size for size in tensor.shape if isinstance(size, int)]
    if len(shape) < len(tensor.shape):
        raise NotImplementedError(f"the shape of tensor {tensor.name} is not known before the kernel runs")
    return tuple(shape)


def arguments_of(program: ir.Program) -> list[ir.TensorInfo]:
    """Return the inputs and outputs of a TIK program, in the order of its arguments.

    Raises:
        NotImplementedError: it takes numbers, as programs for changing shapes do.
    """
    found = []
    for argument in (*program.inputs, *program.outputs):
        if not isinstance(argument, ir.View):
            raise NotImplementedError(
                f"kernel {program.name} takes the number {argument.name}; only tensors can be given"
            )
        found.append(argument.tensor)
    return found
