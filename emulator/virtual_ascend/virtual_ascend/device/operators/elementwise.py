"""Operators that work element by element, with broadcasting, and their derivatives."""

from __future__ import annotations

import functools
import math
from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..by_name import type_of
from ..numerics import listed, wide


def of_arrays(function: Callable[..., Any], **attributes: Any) -> Callable[..., Any]:
    """Make an operator with these attributes, by name, and their defaults."""

    def operator(kernel: OperatorCall, *arrays: np.ndarray | None) -> Any:
        given = {name: kernel.attributes.get(name, otherwise) for name, otherwise in attributes.items()}
        return function(*(array if array is None else wide(array) for array in arrays), **given)

    return operator


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1 / (1 + np.exp(-x))


def truncated_division(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Divide integers and truncate. Floats are divided, since MindSpore makes CANN's TruncateDiv of its Div."""
    if x.dtype.kind in "iu":
        return (np.sign(x) * np.sign(y)) * (np.abs(x) // np.abs(y))
    return x / y


def summed_to(x: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    """Return the gradient of what was broadcast from this shape."""
    x = x.sum(tuple(range(x.ndim - len(shape))))
    return x.sum(tuple(axis for axis, size in enumerate(shape) if size == 1), keepdims=True)


def _gradients_of_extreme(first: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that gives the gradients of both inputs. `first` says at which elements the first is taken.

    Equal elements share the gradient. This is assumed: MindSpore's kernel for the CPU does so.
    """

    def gradients(gradient: np.ndarray, x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        of_first = gradient * np.where(x == y, 0.5, first(x, y)).astype(gradient.dtype)
        return summed_to(of_first, x.shape), summed_to(gradient - of_first, y.shape)

    return of_arrays(gradients)


def _sum(_kernel: OperatorCall, *arrays: Any) -> np.ndarray:
    return functools.reduce(np.add, map(wide, listed(arrays)))


def _select(_kernel: OperatorCall, condition: np.ndarray, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    return np.where(condition, x, y)


def _converted(kernel: OperatorCall, x: np.ndarray) -> np.ndarray:
    """Convert elements. Floats become integers towards zero; the store converts."""
    wanted = kernel.outputs[0]["dtype"]
    return x != 0 if wanted == "bool" else x


erf = np.vectorize(math.erf, otypes=[np.float64])


def erfinv(y: np.ndarray) -> np.ndarray:
    """Invert erf by Newton's method. The estimate of erf(x)^2 is 1 - exp(-x^2 * 4 / pi)."""
    y = y.astype(np.float64)
    x = np.sign(y) * np.sqrt(-np.log1p(-(y**2)) * (math.pi / 4))
    for _ in range(8):
        step = (erf(np.where(np.isfinite(x), x, 0)) - y) * np.exp(x * x) * (math.sqrt(math.pi) / 2)
        x = np.where(np.isfinite(step), x - step / (1 + x * step), x)  # Halley's correction
    return x


_ONE: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "acos": np.arccos,
    "acosh": np.arccosh,
    "asin": np.arcsin,
    "asinh": np.arcsinh,
    "atan": np.arctan,
    "atanh": np.arctanh,
    "ceil": np.ceil,
    "conj": np.conj,
    "cos": np.cos,
    "cosh": np.cosh,
    "erf": erf,
    "erfc": lambda x: 1 - erf(x),
    "erfinv": erfinv,
    "exp": np.exp,
    "expm1": np.expm1,
    "floor": np.floor,
    "inv": np.reciprocal,
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
    "rint": np.rint,
    "round": np.rint,
    "rsqrt": lambda x: 1 / np.sqrt(x),
    "sigmoid": sigmoid,
    "sign": np.sign,
    "sin": np.sin,
    "sinh": np.sinh,
    "sqrt": np.sqrt,
    "square": np.square,
    "tan": np.tan,
    "tanh": np.tanh,
    "trunc": np.trunc,
    "zeros_like": np.zeros_like,
}
_TWO: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "assign_add": np.add,
    "assign_sub": np.subtract,
    "atan2": np.arctan2,
    "bias_add": lambda x, bias: x + (bias if x.ndim < 4 else bias.reshape(-1, *(1,) * (x.ndim - 2))),
    "bitwise_and": np.bitwise_and,
    "bitwise_or": np.bitwise_or,
    "bitwise_xor": np.bitwise_xor,
    "div": truncated_division,
    "div_no_nan": lambda x, y: np.where(y == 0, 0, x / np.where(y == 0, 1, y)),
    "equal": np.equal,
    "floor_div": np.floor_divide,
    "floor_mod": np.mod,
    "ger": lambda x, y: x[..., :, None] * y[..., None, :],
    "greater": np.greater,
    "greater_equal": np.greater_equal,
    "less": np.less,
    "less_equal": np.less_equal,
    "logical_and": np.logical_and,
    "logical_or": np.logical_or,
    "logical_xor": np.logical_xor,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "mod": np.fmod,
    "mul": np.multiply,
    "mul_no_nan": lambda x, y: np.where(y == 0, 0, x * np.where(y == 0, 1, y)),
    "not_equal": np.not_equal,
    "pow": np.power,
    "real_div": np.divide,
    "squared_difference": lambda x, y: np.square(x - y),
    "sub": np.subtract,
    "truncate_div": truncated_division,
    "truncate_mod": np.fmod,
    "xdivy": lambda x, y: np.where(x == 0, 0, x / np.where(x == 0, 1, y)),
    "xlogy": lambda x, y: np.where(x == 0, 0, x * np.log(np.where(x == 0, 1, y))),
    # Derivatives: of the input and the gradient.
    "abs_grad": lambda x, gradient: gradient * np.sign(x),
    "acos_grad": lambda x, gradient: -gradient / np.sqrt(1 - x * x),
    "asin_grad": lambda x, gradient: gradient / np.sqrt(1 - x * x),
    "atan_grad": lambda x, gradient: gradient / (1 + x * x),
    # Of the output and the gradient.
    "acosh_grad": lambda y, gradient: gradient / np.sinh(y),
    "asinh_grad": lambda y, gradient: gradient / np.cosh(y),
    "inv_grad": lambda y, gradient: -gradient * y * y,
    "rsqrt_grad": lambda y, gradient: -0.5 * gradient * y**3,
    "sigmoid_grad": lambda y, gradient: gradient * y * (1 - y),
    "sqrt_grad": lambda y, gradient: gradient / (2 * y),
    "reciprocal_grad": lambda y, gradient: -gradient * y * y,
    "tanh_grad": lambda y, gradient: gradient * (1 - y * y),
}
_THREE: dict[str, Callable[..., Any]] = {
    "clip_by_value": lambda x, low, high: np.minimum(np.maximum(x, low), high),
    "fused_mul_add": lambda x, y, z: x * y + z,
    "fused_mul_add_n": lambda x, y, z: x * z + y,
    "lerp": lambda x, y, weight: x + weight * (y - x),
}
TABLE: dict[str, Callable[..., Any]] = {
    **{name: of_arrays(function) for name, function in {**_ONE, **_TWO, **_THREE}.items()},
    "addcdiv": of_arrays(lambda x, y, z, scale: x + scale * y / z),
    "addcmul": of_arrays(lambda x, y, z, scale: x + scale * y * z),
    "add_n": _sum,
    "addn": _sum,
    "assign": lambda _kernel, _target, value: value,
    "cast": _converted,
    "masked_fill": lambda _kernel, x, mask, value: np.where(mask, value.astype(x.dtype), x),
    "maximum_grad": _gradients_of_extreme(np.greater),
    "minimum_grad": _gradients_of_extreme(np.less),
    "select": _select,
    "selectv2": _select,
}
AICPU: dict[str, Callable[..., Any]] = {
    "Cast": _converted,
    "LeftShift": of_arrays(np.left_shift),
    "RightShift": of_arrays(np.right_shift),
    "Select": _select,
    **{type_of(name): TABLE[name] for name in (*_ONE, *_TWO)},
}
