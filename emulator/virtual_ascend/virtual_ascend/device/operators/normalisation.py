"""LayerNorm, softmax and the loss behind it, with their derivatives."""

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


@of_arrays
def _confused_softmax_gradient(gradient: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Compute MindSpore's fusion of Mul, ReduceSum and Sub."""
    return gradient - (gradient * y).sum(-1, keepdims=True)


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of each row, and the gradient of its logits."""
    return -(labels * log_softmax(logits, -1)).sum(-1), softmax(logits) - labels


TABLE: dict[str, Callable[..., Any]] = {
    "confusion_softmax_grad": _confused_softmax_gradient,
    "layer_norm": _layer_norm,
    "layer_norm_beta_gamma_backprop_v2": _gain_and_shift_gradients,
    "layer_norm_grad": _layer_norm_gradient,
    "layer_norm_x_backprop_v2": _layer_norm_input_gradient,
    "log_softmax_grad": lambda kernel, gradient, y: log_softmax_gradient(wide(gradient), wide(y), axes_of(kernel, y)),
    "log_softmax_v2": lambda kernel, x: log_softmax(wide(x), axes_of(kernel, x)),
    "softmax_cross_entropy_with_logits": of_arrays(cross_entropy),
    "softmax_v2": lambda kernel, x: softmax(wide(x), axes_of(kernel, x)),
}
