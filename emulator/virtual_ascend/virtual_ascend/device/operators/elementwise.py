"""Operators that work element by element, with broadcasting, and their derivatives."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..by_name import type_of
from ..numerics import listed, wide

_GELU = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def of_arrays(function: Callable[..., Any], **attributes: Any) -> Callable[..., Any]:
    """Make an operator with these attributes, by name, and their defaults."""

    def operator(kernel: OperatorCall, *arrays: np.ndarray | None) -> Any:
        given = {name: kernel.attributes.get(name, otherwise) for name, otherwise in attributes.items()}
        return function(*(array if array is None else wide(array) for array in arrays), **given)

    return operator


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def gelu(x: np.ndarray) -> np.ndarray:
    """Return the approximation with tanh."""
    return 0.5 * x * (1 + np.tanh(_GELU * (x + _CUBIC * x**3)))


def gelu_gradient(gradient: np.ndarray, x: np.ndarray, _y: np.ndarray) -> np.ndarray:
    bent = np.tanh(_GELU * (x + _CUBIC * x**3))
    slope = _GELU * (1 + 3 * _CUBIC * x**2)
    return gradient * (0.5 * (1 + bent) + 0.5 * x * (1 - bent**2) * slope)


def silu_gradient(gradient: np.ndarray, x: np.ndarray) -> np.ndarray:
    slope = sigmoid(x)
    return gradient * (slope + x * slope * (1 - slope))


def _divided(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Divide integers and truncate. Floats are divided, since MindSpore makes CANN's TruncateDiv of its Div."""
    if x.dtype.kind in "iu":
        return (np.sign(x) * np.sign(y)) * (np.abs(x) // np.abs(y))
    return x / y


def _select(_kernel: OperatorCall, condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(condition, x, y)


def _converted(kernel: OperatorCall, x: np.ndarray) -> np.ndarray:
    """Convert elements. Floats become integers towards zero; the store converts."""
    wanted = kernel.outputs[0]["dtype"]
    return x != 0 if wanted == "bool" else x


erf = np.vectorize(math.erf, otypes=[np.float64])

_PLAIN: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "cos": np.cos,
    "erf": erf,
    "exp": np.exp,
    "floor": np.floor,
    "gelu": gelu,
    "is_finite": np.isfinite,
    "log": np.log,
    "logical_not": np.logical_not,
    "neg": np.negative,
    "ones_like": np.ones_like,
    "reciprocal": np.reciprocal,
    "relu": lambda x: np.maximum(x, 0),
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": sigmoid,
    "sign": np.sign,
    "sin": np.sin,
    "sqrt": np.sqrt,
    "square": np.square,
    "tanh": np.tanh,
    "zeros_like": np.zeros_like,
    "add": np.add,
    "assign_add": np.add,
    "assign_sub": np.subtract,
    "bias_add": np.add,
    "bitwise_and": np.bitwise_and,
    "div": _divided,
    "equal": np.equal,
    "floor_div": np.floor_divide,
    "floor_mod": np.mod,
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "mul": np.multiply,
    "not_equal": np.not_equal,
    "pow": np.power,
    "real_div": np.divide,
    "sub": np.subtract,
    "truncate_div": _divided,
    "clip_by_value": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "fused_mul_add_n": lambda x, y, z: x * z + y,
    # Derivatives: of the gradient, the input and the output,
    "gelu_grad": gelu_gradient,
    "relu_grad": lambda gradient, x: gradient * (x > 0),
    # or of the output and the gradient.
    "reciprocal_grad": lambda y, gradient: -gradient * y * y,
    "rsqrt_grad": lambda y, gradient: -0.5 * gradient * y**3,
    "sigmoid_grad": lambda y, gradient: gradient * y * (1 - y),
    "sqrt_grad": lambda y, gradient: gradient / (2 * y),
    "tanh_grad": lambda y, gradient: gradient * (1 - y * y),
}
TABLE: dict[str, Callable[..., Any]] = {
    **{name: of_arrays(function) for name, function in _PLAIN.items()},
    **dict.fromkeys(("add_n", "addn"), lambda _, *arrays: functools.reduce(np.add, map(wide, listed(arrays)))),
    "assign": lambda _kernel, _target, value: value,
    "cast": _converted,
    "masked_fill": lambda _kernel, x, mask, value: np.where(mask, value.astype(x.dtype), x),
    **dict.fromkeys(("select", "selectv2"), _select),
    "swish": of_arrays(lambda x, scale: x * sigmoid(scale * x), scale=1.0),
}
AICPU: dict[str, Callable[..., Any]] = {
    "Cast": _converted,
    "Select": _select,
    **{type_of(name): TABLE[name] for name in _PLAIN},
}
