"""``para_check``: checks of operator parameters (core.md 6.1). Violations raise RuntimeError.

Serves ``tbe.common.utils.para_check``, ``te.utils.para_check``, ``te.utils.op_utils`` and ``topi.cce.util``.
"""

from __future__ import annotations

import functools
import inspect
import math
import re
from collections.abc import Sequence
from typing import Any, Callable

from .error_manager import violation as _violation

REQUIRED_INPUT, OPTION_INPUT, DYNAMIC_INPUT = "required_input", "option_input", "dynamic_input"
REQUIRED_OUTPUT, OPTION_OUTPUT, DYNAMIC_OUTPUT = "required_output", "option_output", "dynamic_output"
KERNEL_NAME = "kernel_name"

for _kind in (
    *("int", "float", "str", "bool", "type"),
    *("list_int", "list_float", "list_str", "list_bool", "list_list_int"),
):
    globals()[f"REQUIRED_ATTR_{_kind.upper()}"] = f"required_attr_{_kind}"
    globals()[f"OPTION_ATTR_{_kind.upper()}"] = f"option_attr_{_kind}"

TENSOR_KEYS = ("shape", "dtype", "format", "ori_shape", "ori_format")
DATA_TYPES = (
    *("bool", "int4", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16"),
    *("bfloat16", "float32", "float64", "float", "double", "complex64", "complex128", "string"),
)
MAX_KERNEL_NAME = 200
DEFAULT_MAX_DIMENSIONS = 8
SHAPE_SIZE_LIMIT = 2**31
MAX_UNKOWN_SHAPE_NUM = 2**31 - 1
_KERNEL_PATTERN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*\Z")


class OpParamInfoKey:
    """Keys of an operand's dict."""

    SHAPE, FORMAT, ORI_SHAPE, ORI_FORMAT, D_TYPE, RANGE = "shape", "format", "ori_shape", "ori_format", "dtype", "range"


class TensorFormat:
    """Names of data layouts."""

    ND, NCHW, NHWC, HWCN, NDHWC, NCDHW = "ND", "NCHW", "NHWC", "HWCN", "NDHWC", "NCDHW"
    NC1HWC0, NDC1HWC0, C1HWNCoC0 = "NC1HWC0", "NDC1HWC0", "C1HWNCoC0"
    FRACTAL_Z, FRACTAL_NZ = "FRACTAL_Z", "FRACTAL_NZ"


ALL_FORMAT_LIST = tuple(value for name, value in vars(TensorFormat).items() if not name.startswith("_"))


# ------------------------------------------------------------------------------------------------ check_op_params
def check_op_params(
    *type_args: str | tuple[str, ...], **_options: Any
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator for an operator's entry function.

    It takes one constant per parameter, in order. A tuple of constants stands for alternatives.

    The parameters are checked when the function is called. Inputs and outputs must be dicts with shape, dtype, format,
    ori_shape and ori_format (for DYNAMIC_, lists of dicts). Required parameters must not be None, and attributes must
    have their types.

    Raises:
        RuntimeError: a violation, or a number of constants that differs from the number of parameters.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = inspect.signature(function)

        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            try:
                bound = parameters.bind(*args, **kwargs)
            except TypeError as error:
                _violation(f"{function.__name__}: {error}")
            bound.apply_defaults()
            values = [
                (name, value)
                for name, value in bound.arguments.items()
                if parameters.parameters[name].kind
                not in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
            ]
            if len(values) != len(type_args):
                _violation(
                    f"{function.__name__} has {len(values)} parameters, check_op_params describes {len(type_args)}"
                )
            for kind, (name, value) in zip(type_args, values):
                _check_parameter(function.__name__, kind, name, value)
            return function(*args, **kwargs)

        return checked

    return decorate


def _check_parameter(op: str, kind: str | tuple[str, ...], name: str, value: Any) -> None:
    if isinstance(kind, (tuple, list)):
        reasons = []
        for alternative in kind:
            try:
                return _check_parameter(op, alternative, name, value)
            except RuntimeError as error:
                reasons.append(str(error).split("\n")[0])
        _violation(f"{op}: {name!r} fits none of the alternatives: {'; '.join(reasons) or 'there are none'}")
    if kind == KERNEL_NAME:
        check_kernel_name(value)
        return
    requirement, _, rest = kind.partition("_")
    if requirement == "dynamic":
        if not isinstance(value, (list, tuple)) or not value:
            _violation(f"{op}: {rest} {name!r} must be a list of at least one dict, got {value!r}")
        for position, item in enumerate(value):
            _check_tensor(op, f"{name}[{position}]", item)
        return
    if value is None:
        if requirement == "required":
            _violation(f"{op}: {rest.replace('attr_', 'attribute of type ')} {name!r} is required, got None")
        return
    if rest in ("input", "output"):
        _check_tensor(op, name, value)
    elif rest.startswith("attr_"):
        attribute = rest[len("attr_") :]
        if not _attribute_matches(value, attribute):
            _violation(f"{op}: attribute {name!r} must be of type {attribute}, got {value!r}")
    else:
        _violation(f"{op}: check_op_params does not know the constant {kind!r}")


def _check_tensor(op: str, name: str, value: Any) -> None:
    if not isinstance(value, dict):
        _violation(f"{op}: {name!r} must be a dict with {', '.join(TENSOR_KEYS)}, got {type(value).__name__}")
    missing = [key for key in TENSOR_KEYS if key not in value]
    if missing:
        _violation(f"{op}: {name!r} lacks {', '.join(missing)}; it must have {', '.join(TENSOR_KEYS)}")
    for key in ("shape", "ori_shape"):
        if not isinstance(value[key], (list, tuple)) or not all(_is_int(extent) for extent in value[key]):
            _violation(f"{op}: {key} of {name!r} must be a list or tuple of integers, got {value[key]!r}")
    if not isinstance(value["dtype"], str) or value["dtype"].lower() not in DATA_TYPES:
        _violation(f"{op}: dtype of {name!r} must be one of {', '.join(DATA_TYPES)}, got {value['dtype']!r}")
    for key in ("format", "ori_format"):
        if not isinstance(value[key], str):
            _violation(f"{op}: {key} of {name!r} must be a string, got {value[key]!r}")


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


_ATTRIBUTE_TESTS: dict[str, Callable[[Any], bool]] = {
    "int": _is_int,
    "float": _is_number,
    "str": lambda value: isinstance(value, str),
    "bool": lambda value: isinstance(value, bool),
    "type": lambda value: isinstance(value, str) and value.lower() in DATA_TYPES,
}


def _attribute_matches(value: Any, kind: str) -> bool:
    if kind.startswith("list_"):
        inner = kind[len("list_") :]
        return isinstance(value, (list, tuple)) and all(_attribute_matches(item, inner) for item in value)
    return _ATTRIBUTE_TESTS[kind](value)


# ------------------------------------------------------------------------------------------------ single checks
def check_input_type(*types: Any, **keyword_types: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return a decorator that checks the types of the given arguments, in order.

    A tuple stands for alternative types.
    """

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def checked(*args: Any, **kwargs: Any) -> Any:
            named = [(kwargs[name], keyword_types[name]) for name in kwargs if name in keyword_types]
            for value, allowed in [*zip(args, types), *named]:
                if not isinstance(value, allowed):
                    _violation(f"{function.__name__}: an argument must be of type {allowed!r}, got {value!r}")
            return function(*args, **kwargs)

        return checked

    return decorate


def check_kernel_name(kernel_name: Any) -> None:
    """Require an identifier of at most 200 characters."""
    if not isinstance(kernel_name, str):
        _violation(f"kernel_name must be a string, got {kernel_name!r}")
    if len(kernel_name) > MAX_KERNEL_NAME or not _KERNEL_PATTERN.match(kernel_name):
        _violation(
            f"kernel_name must consist of at most {MAX_KERNEL_NAME} letters, digits and underscores and not "
            f"start with a digit, got {kernel_name!r}"
        )


def check_shape(
    shape: Any,
    min_dim: int = 0,
    max_dim: int = -1,
    min_rank: int = 0,
    max_rank: int = DEFAULT_MAX_DIMENSIONS,
    min_size: int = 1,
    max_size: int = SHAPE_SIZE_LIMIT,
    param_name: str = "shape",
) -> None:
    """Check a list or tuple of integers: every extent, their number and their product.

    Extents of -1 and -2 stand for unknown ones; -1 as ``max_dim`` means no limit.
    """
    if not isinstance(shape, (list, tuple)):
        _violation(f"{param_name} must be a list or tuple, got {shape!r}")
    if not min_rank <= len(shape) <= max_rank:
        _violation(f"{param_name} must have {min_rank} to {max_rank} dimensions, got {tuple(shape)}")
    for extent in shape:
        if not _is_int(extent) or (extent < min_dim and extent not in (-1, -2)) or (max_dim >= 0 and extent > max_dim):
            _violation(
                f"every extent of {param_name} must be an integer >= {min_dim}"
                f"{f' and <= {max_dim}' if max_dim >= 0 else ''}, got {tuple(shape)}"
            )
    if all(extent >= 0 for extent in shape) and not min_size <= math.prod(shape) <= max_size:
        _violation(f"the product of {param_name} must be in [{min_size}, {max_size}], got {tuple(shape)}")


def check_shape_rule(
    shape: Any, min_dim: int | None = None, max_dim: int | None = None, max_shape_num: int | None = None
) -> None:
    """Check number of dimensions and largest extent, in the older form."""
    check_shape(
        shape,
        min_dim=1,
        max_dim=-1 if max_shape_num is None else max_shape_num,
        min_rank=min_dim or 1,
        max_rank=max_dim or DEFAULT_MAX_DIMENSIONS,
        max_size=2**63,
    )


def check_shape_size(shape: Sequence[int], limit: int = SHAPE_SIZE_LIMIT) -> int:
    """Return the product of a shape, which must not exceed ``limit``."""
    size = math.prod(shape)
    if size > limit:
        _violation(f"the product of shape {tuple(shape)} must not exceed {limit}, got {size}")
    return size


def check_tensor_shape_size(shape: Sequence[int]) -> int:
    """Return the product of a shape, which must not exceed 2**31."""
    return check_shape_size(shape)


def check_dtype(dtype: Any, check_list: Sequence[str] | str = DATA_TYPES, param_name: str = "dtype") -> None:
    """Require a dtype of a list (a string: the only one), in any case."""
    _check_name(dtype, check_list, param_name)


check_dtype_rule = check_dtype


def check_format(
    data_format: Any, check_list: Sequence[str] | str = ALL_FORMAT_LIST, param_name: str = "format"
) -> None:
    """Require a format of a list (a string: the only one), in any case."""
    _check_name(data_format, check_list, param_name)


def _check_name(value: Any, allowed: Sequence[str] | str, param_name: str) -> None:
    names = [allowed] if isinstance(allowed, str) else list(allowed)
    if not isinstance(value, str) or value.upper() not in [name.upper() for name in names]:
        _violation(f"{param_name} must be one of {', '.join(names)}, got {value!r}")


def check_elewise_shape_range(inputs: Sequence[dict[str, Any]], support_broadcast: bool = False) -> None:
    """Check, for unknown shapes, that the ranges of all inputs overlap in every dimension."""
    ranges = [item.get("range") for item in inputs if item.get("range")]
    for spans in zip(*ranges):
        low = max(span[0] for span in spans)
        high = min(math.inf if span[1] is None else span[1] for span in spans)
        if low > high and not (support_broadcast and any(span[0] <= 1 for span in spans)):
            _violation(f"the ranges {spans!r} of one dimension have nothing in common")


__all__ = [
    name
    for name in globals()
    if not name.startswith("_")
    and name not in ("annotations", "functools", "inspect", "math", "re", "Sequence", "Any", "Callable")
]
