"""Operators that work element by element, with broadcasting, and their derivatives."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable

import numpy as np

from ...kernel import Kernel
from ..by_name import type_of
from ..numerics import listed, wide

_GELU = math.sqrt(2 / math.pi)
_CUBIC = 0.044715


def of_arrays(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator that has no attributes."""

    def operator(_kernel: Kernel, *arrays: np.ndarray) -> Any:
        return function(*map(wide, arrays))

    return operator


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def truncated_division(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    if x.dtype.kind in "iu":
        return (np.sign(x) * np.sign(y)) * (np.abs(x) // np.abs(y))
    return x / y


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, 0)


def gelu(x: np.ndarray) -> np.ndarray:
    """The approximation with tanh."""
    return 0.5 * x * (1 + np.tanh(_GELU * (x + _CUBIC * x**3)))


def gelu_gradient(gradient: np.ndarray, x: np.ndarray, _y: np.ndarray) -> np.ndarray:
    bent = np.tanh(_GELU * (x + _CUBIC * x**3))
    slope = _GELU * (1 + 3 * _CUBIC * x**2)
    return gradient * (0.5 * (1 + bent) + 0.5 * x * (1 - bent**2) * slope)


def fast_gelu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(1.702 * x)


def fast_gelu_gradient(gradient: np.ndarray, x: np.ndarray) -> np.ndarray:
    share = sigmoid(1.702 * x)
    return gradient * (share + 1.702 * x * share * (1 - share))


def swish(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    x = wide(x)
    return x * sigmoid(kernel.attributes.get("scale", 1.0) * x)


def _sum(_kernel: Kernel, *arrays: Any) -> np.ndarray:
    return functools.reduce(np.add, map(wide, listed(arrays)))


def _select(_kernel: Kernel, condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(condition, x, y)


def _masked_fill(_kernel: Kernel, x: np.ndarray, mask: np.ndarray, value: np.ndarray) -> np.ndarray:
    return np.where(mask, value.astype(x.dtype), x)


def _converted(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    """Conversion. Floats become integers towards zero; the store converts."""
    wanted = kernel.outputs[0]["dtype"]
    return x != 0 if wanted == "bool" else x


erf = np.vectorize(math.erf, otypes=[np.float64])

_ONE: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "ceil": np.ceil,
    "cos": np.cos,
    "erf": erf,
    "erfc": lambda x: 1 - erf(x),
    "exp": np.exp,
    "expm1": np.expm1,
    "fast_gelu": fast_gelu,
    "floor": np.floor,
    "gelu": gelu,
    "invert": np.invert,
    "is_finite": np.isfinite,
    "is_inf": np.isinf,
    "is_nan": np.isnan,
    "log": np.log,
    "log1p": np.log1p,
    "logical_not": np.logical_not,
    "neg": np.negative,
    "ones_like": np.ones_like,
    "reciprocal": np.reciprocal,
    "relu": lambda x: np.maximum(x, 0),
    "rint": np.rint,
    "round": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": sigmoid,
    "sign": np.sign,
    "sin": np.sin,
    "softplus": softplus,
    "sqrt": np.sqrt,
    "square": np.square,
    "tanh": np.tanh,
    "zeros_like": np.zeros_like,
}
_TWO: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "assign_add": np.add,
    "assign_sub": np.subtract,
    "bias_add": lambda x, bias: x + (bias if x.ndim < 4 else bias[:, None, None]),
    "div": truncated_division,
    "div_no_nan": lambda x, y: np.where(y == 0, 0, x / np.where(y == 0, 1, y)),
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
    "mod": np.fmod,
    "mul": np.multiply,
    "not_equal": np.not_equal,
    "pow": np.power,
    "real_div": np.divide,
    "squared_difference": lambda x, y: np.square(x - y),
    "sub": np.subtract,
    "truncate_div": truncated_division,
    "xlogy": lambda x, y: np.where(x == 0, 0, x * np.log(np.where(x == 0, 1, y))),
    # Derivatives: of the gradient and the input, or of the output and the gradient.
    "fast_gelu_grad": fast_gelu_gradient,
    "relu_grad": lambda gradient, x: gradient * (x > 0),
    "rsqrt_grad": lambda y, gradient: -0.5 * gradient * y**3,
    "sigmoid_grad": lambda y, gradient: gradient * y * (1 - y),
    "softplus_grad": lambda gradient, x: gradient * sigmoid(x),
    "sqrt_grad": lambda y, gradient: gradient / (2 * y),
    "reciprocal_grad": lambda y, gradient: -gradient * y * y,
    "tanh_grad": lambda y, gradient: gradient * (1 - y * y),
}
TABLE: dict[str, Callable[..., Any]] = {
    **{name: of_arrays(function) for name, function in {**_ONE, **_TWO}.items()},
    "add_n": _sum,
    "addn": _sum,
    "assign": lambda _kernel, _target, value: value,
    "cast": _converted,
    "clip_by_value": of_arrays(lambda x, low, high: np.minimum(np.maximum(x, low), high)),
    "fused_mul_add_n": of_arrays(lambda x, y, z: x * z + y),
    "gelu_grad": of_arrays(gelu_gradient),
    "masked_fill": _masked_fill,
    "select": _select,
    "selectv2": _select,
    "swish": swish,
}
AICPU: dict[str, Callable[..., Any]] = {
    "Cast": _converted,
    "Select": _select,
    **{type_of(name): TABLE[name] for name in (*_ONE, *_TWO)},
}
