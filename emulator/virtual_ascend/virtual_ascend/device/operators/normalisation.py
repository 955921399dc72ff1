"""LayerNorm, softmax and the like, with their derivatives."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..numerics import wide
from .elementwise import of_arrays
from .reduce import axes_of


def _layer_norm(kernel: OperatorCall, x: np.ndarray, gain: np.ndarray, shift: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the result, the mean and the variance."""
    x, gain, shift = wide(x), wide(gain), wide(shift)
    axes = tuple(range(kernel.attributes["begin_norm_axis"] % x.ndim, x.ndim))
    mean = x.mean(axes, keepdims=True)
    variance = np.square(x - mean).mean(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + kernel.attributes["epsilon"]) * gain + shift, mean, variance


# MindSpore gives no epsilon to the derivatives of TBE, and their own epsilon for float32 and float16 is not documented.
# Assumed: the default of the forward operator.
_EPSILON = 1e-12


@of_arrays
def _layer_norm_input_gradient(
    gradient: np.ndarray, x: np.ndarray, variance: np.ndarray, mean: np.ndarray, gain: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the gradient of the input. The normalised input, for the gradient of the gain, comes with it."""
    axes = tuple(range(x.ndim - gain.ndim, x.ndim))
    inverse = 1 / np.sqrt(variance + _EPSILON)
    normalised = (x - mean) * inverse
    scaled = gradient * gain
    projected = scaled - scaled.mean(axes, keepdims=True) - normalised * (scaled * normalised).mean(axes, keepdims=True)
    return projected * inverse, normalised


def _gain_and_shift_gradients(
    kernel: OperatorCall, gradient: np.ndarray, normalised: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    gradient = wide(gradient)
    axes = tuple(range(gradient.ndim - len(kernel.outputs[0]["ori_shape"])))
    return (gradient * wide(normalised)).sum(axes), gradient.sum(axes)


def _layer_norm_gradient(
    kernel: OperatorCall, gradient: np.ndarray, x: np.ndarray, variance: np.ndarray, mean: np.ndarray, gain: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Compute the gradients of input, gain and shift. MindSpore takes them apart if it compiles the operator itself."""
    of_input, normalised = _layer_norm_input_gradient(kernel, gradient, x, variance, mean, gain)
    axes = tuple(range(x.ndim - gain.ndim))
    return of_input, (wide(gradient) * normalised).sum(axes), wide(gradient).sum(axes)


def softmax(x: np.ndarray, axes: Any = -1) -> np.ndarray:
    powers = np.exp(x - x.max(axes, keepdims=True))
    return powers / powers.sum(axes, keepdims=True)


def log_softmax(x: np.ndarray, axes: Any) -> np.ndarray:
    shifted = x - x.max(axes, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axes, keepdims=True))


def softmax_gradient(gradient: np.ndarray, y: np.ndarray, axes: Any) -> np.ndarray:
    return y * (gradient - (y * gradient).sum(axes, keepdims=True))


def log_softmax_gradient(gradient: np.ndarray, y: np.ndarray, axes: Any) -> np.ndarray:
    return gradient - np.exp(y) * gradient.sum(axes, keepdims=True)


def _softmax_gradient_scaled(
    kernel: OperatorCall, gradient: np.ndarray, y: np.ndarray, scale: np.ndarray
) -> np.ndarray:
    """Compute MindSpore's fusion of Mul, ReduceSum, Sub and two Mul."""
    gradient, y, scale = map(wide, (gradient, y, scale))
    sums = (gradient * y).sum(axes_of(kernel, y), keepdims=bool(kernel.attributes.get("keep_dims", True)))
    return (gradient - sums) * y * scale


@of_arrays
def _confused_softmax_gradient(gradient: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Compute MindSpore's fusion of Mul, ReduceSum and Sub."""
    return gradient - (gradient * y).sum(-1, keepdims=True)


def _norm_not_below(
    _kernel: OperatorCall, x: np.ndarray, zero: np.ndarray, one: np.ndarray, least: np.ndarray
) -> np.ndarray:
    """Compute the norm from a sum of squares. It is MindSpore's fusion of clipping by norm."""
    x = wide(x)
    return np.maximum(np.where(x > zero, np.sqrt(np.where(x > zero, x, one)), x), least)


def _normalise(kernel: OperatorCall, x: np.ndarray) -> tuple[np.ndarray, np.ndarray, tuple[int, ...]]:
    """Return the result, the lengths, and the axes over which the lengths are taken."""
    attributes = kernel.attributes  # "dim" and "eps" if MindSpore asks by name
    axes = axes_of(kernel, x, "dim")
    squares = np.square(wide(x)).sum(axes, keepdims=True)
    lengths = np.sqrt(np.maximum(squares, attributes["epsilon" if "epsilon" in attributes else "eps"]))
    return wide(x) / lengths, lengths, axes


def _normalise_gradient(kernel: OperatorCall, x: np.ndarray, _y: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    y, lengths, axes = _normalise(kernel, x)
    return (wide(gradient) - y * (y * wide(gradient)).sum(axes, keepdims=True)) / lengths


def _sums_of_squares(x: np.ndarray, radius: int) -> np.ndarray:
    """Sum over every channel and its neighbours on either side."""
    padded = np.pad(np.square(x), ((0, 0), (radius, radius), (0, 0), (0, 0)))
    return sum(padded[:, shift : shift + x.shape[1]] for shift in range(2 * radius + 1))  # type: ignore[return-value]


def local_response(x: np.ndarray, depth_radius: int, bias: float, alpha: float, beta: float) -> np.ndarray:
    return x * (bias + alpha * _sums_of_squares(x, depth_radius)) ** -beta


def local_response_gradient(
    gradient: np.ndarray, x: np.ndarray, y: np.ndarray, depth_radius: int, bias: float, alpha: float, beta: float
) -> np.ndarray:
    base = bias + alpha * _sums_of_squares(x, depth_radius)
    shares = np.pad(gradient * y / base, ((0, 0), (depth_radius, depth_radius), (0, 0), (0, 0)))
    around = sum(shares[:, shift : shift + x.shape[1]] for shift in range(2 * depth_radius + 1))
    return gradient * base**-beta - 2 * alpha * beta * x * around


_RESPONSE: dict[str, Any] = {"depth_radius": 5, "bias": 1.0, "alpha": 1.0, "beta": 0.5}
TABLE: dict[str, Callable[..., Any]] = {
    "clip_by_norm_no_div_sum": _norm_not_below,
    "confusion_softmax_grad": _confused_softmax_gradient,
    "l2_normalize": lambda kernel, x: _normalise(kernel, x)[0],
    "l2_normalize_grad": _normalise_gradient,
    "layer_norm": _layer_norm,
    "layer_norm_beta_gamma_backprop_v2": _gain_and_shift_gradients,
    "layer_norm_grad": _layer_norm_gradient,
    "layer_norm_x_backprop_v2": _layer_norm_input_gradient,
    "log_softmax_grad": lambda kernel, gradient, y: log_softmax_gradient(wide(gradient), wide(y), axes_of(kernel, y)),
    "log_softmax_v2": lambda kernel, x: log_softmax(wide(x), axes_of(kernel, x)),
    "lrn": of_arrays(local_response, **_RESPONSE),
    "lrn_grad": of_arrays(local_response_gradient, **_RESPONSE),
    "softmax_grad_ext": _softmax_gradient_scaled,
    "softmax_v2": lambda kernel, x: softmax(wide(x), axes_of(kernel, x)),
}
