"""Compute activations and their derivatives. A derivative takes the gradient first, then the input, or the output if
said.
"""

from __future__ import annotations

import math
from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..by_name import type_of
from ..numerics import wide
from .elementwise import of_arrays, sigmoid

_GELU = math.sqrt(2 / math.pi)
_CUBIC = 0.044715
# Of arXiv:1706.02515, equation 14.
_SELU_ALPHA, _SELU_SCALE = 1.6732632423543772, 1.0507009873554805


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(x, 0)


def gelu(x: np.ndarray) -> np.ndarray:
    """Return the approximation with tanh."""
    return 0.5 * x * (1 + np.tanh(_GELU * (x + _CUBIC * x**3)))


def gelu_gradient(gradient: np.ndarray, x: np.ndarray, _y: np.ndarray) -> np.ndarray:
    bent = np.tanh(_GELU * (x + _CUBIC * x**3))
    slope = _GELU * (1 + 3 * _CUBIC * x**2)
    return gradient * (0.5 * (1 + bent) + 0.5 * x * (1 - bent**2) * slope)


def fast_gelu_gradient(gradient: np.ndarray, x: np.ndarray) -> np.ndarray:
    share = sigmoid(1.702 * x)
    return gradient * (share + 1.702 * x * share * (1 - share))


def silu_gradient(gradient: np.ndarray, x: np.ndarray) -> np.ndarray:
    slope = sigmoid(x)
    return gradient * (slope + x * slope * (1 - slope))


def elu(x: np.ndarray, alpha: float) -> np.ndarray:
    return np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0)))


def hard_sigmoid_gradient(gradient: np.ndarray, x: np.ndarray, alpha: float, beta: float) -> np.ndarray:
    line = alpha * x + beta
    return gradient * alpha * ((line > 0) & (line < 1))


def shrink_gradient(gradient: np.ndarray, x: np.ndarray, lambd: float) -> np.ndarray:
    """Compute the gradient of both shrinkages."""
    return gradient * (np.abs(x) > lambd)


def _of_channels(weight: np.ndarray, axes: int) -> np.ndarray:
    """Shape a number for each channel, or one for all. Channels are the second axis, or the only one."""
    return weight.reshape(-1, *(1,) * max(axes - 2, 0))


def _prelu(_kernel: OperatorCall, x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    x = wide(x)
    return np.where(x > 0, x, x * _of_channels(wide(weight), x.ndim))


def _prelu_gradients(
    _kernel: OperatorCall, gradient: np.ndarray, x: np.ndarray, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    gradient, x = wide(gradient), wide(x)
    shares = np.where(x > 0, 0, gradient * x)
    channels = 1 if x.ndim > 1 else 0
    if weight.size == 1:
        of_weight = shares.sum().reshape(weight.shape)
    else:
        of_weight = shares.sum(tuple(axis for axis in range(x.ndim) if axis != channels))
    return np.where(x > 0, gradient, gradient * _of_channels(wide(weight), x.ndim)), of_weight


_PLAIN: dict[str, Callable[..., Any]] = {
    "elu_grad": lambda gradient, y: gradient * np.where(y > 0, 1, y + 1),  # of the output
    "fast_gelu": lambda x: x * sigmoid(1.702 * x),
    "fast_gelu_grad": fast_gelu_gradient,
    "gelu": gelu,
    "gelu_grad": gelu_gradient,
    "hard_swish": lambda x: x * np.clip(x + 3, 0, 6) / 6,
    "hard_swish_grad": lambda gradient, x: gradient * np.where(np.abs(x) < 3, (2 * x + 3) / 6, x >= 3),
    "mish": lambda x: x * np.tanh(softplus(x)),
    "relu": lambda x: np.maximum(x, 0),
    "relu6": lambda x: np.clip(x, 0, 6),
    "relu6_grad": lambda gradient, x: gradient * ((x > 0) & (x < 6)),
    "relu_grad": lambda gradient, x: gradient * (x > 0),
    "selu": lambda x: _SELU_SCALE * elu(x, _SELU_ALPHA),
    "softplus": softplus,
    "softplus_grad": lambda gradient, x: gradient * sigmoid(x),
    "softsign": lambda x: x / (1 + np.abs(x)),
}
TABLE: dict[str, Callable[..., Any]] = {
    **{name: of_arrays(function) for name, function in _PLAIN.items()},
    "celu_v2": of_arrays(lambda x, alpha: np.where(x > 0, x, alpha * np.expm1(np.minimum(x, 0) / alpha)), alpha=1.0),
    "elu": of_arrays(elu, alpha=1.0),
    "hard_shrink": of_arrays(lambda x, lambd: np.where(np.abs(x) > lambd, x, 0), lambd=0.5),
    "hard_shrink_grad": of_arrays(shrink_gradient, lambd=0.5),
    "hard_sigmoid": of_arrays(lambda x, alpha, beta: np.clip(alpha * x + beta, 0, 1), alpha=1 / 6, beta=0.5),
    "hard_sigmoid_grad": of_arrays(hard_sigmoid_gradient, alpha=1 / 6, beta=0.5),
    "p_relu": _prelu,
    "p_relu_grad": _prelu_gradients,
    "prelu": _prelu,
    "prelu_grad": _prelu_gradients,
    "soft_shrink": of_arrays(lambda x, lambd: np.sign(x) * np.maximum(np.abs(x) - lambd, 0), lambd=0.5),
    "soft_shrink_grad": of_arrays(shrink_gradient, lambd=0.5),
    "swish": of_arrays(lambda x, scale: x * sigmoid(scale * x), scale=1.0),
}
AICPU: dict[str, Callable[..., Any]] = {type_of(name): TABLE[name] for name in _PLAIN}
