"""Normalisation over a batch, (batch, channels, ...), and its derivatives."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...kernel import Kernel
from ..numerics import wide


def _along_channels(of_channels: np.ndarray, x: np.ndarray) -> np.ndarray:
    return wide(of_channels).reshape(-1, *[1] * (x.ndim - 2))


def _over_batch(x: np.ndarray) -> np.ndarray:
    """Sums of channels."""
    return x.sum(tuple(axis for axis in range(x.ndim) if axis != 1))


def _batch_sums(_kernel: Kernel, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return _over_batch(wide(x)), _over_batch(np.square(wide(x)))


def _normalised(kernel: Kernel, x: np.ndarray, mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    deviation = np.sqrt(_along_channels(variance, x) + kernel.attributes["epsilon"])
    return (wide(x) - _along_channels(mean, x)) / deviation


def _batch_norm(
    kernel: Kernel,
    x: np.ndarray,
    total: np.ndarray,
    squares: np.ndarray,
    gain: np.ndarray,
    shift: np.ndarray,
    *running: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """Of sums and sums of squares; result, new running mean and variance, mean and variance of the batch."""
    count = x.size // gain.size
    mean = total / count
    variance = np.maximum(squares / count - mean**2, 0)
    result = _normalised(kernel, x, mean, variance) * _along_channels(gain, x) + _along_channels(shift, x)
    share = kernel.attributes["factor"]
    # Assumed: the variance of the batch as it is, as MindSpore's kernel for the CPU has it.
    kept = [(1 - share) * old + share * new for old, new in zip(running, (mean, variance))]
    return (result, *kept, mean, variance)


def _batch_norm_of_gains(
    kernel: Kernel, gradient: np.ndarray, x: np.ndarray, mean: np.ndarray, variance: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Gradients of gain and shift."""
    return _over_batch(wide(gradient) * _normalised(kernel, x, mean, variance)), _over_batch(wide(gradient))


def _batch_norm_of_images(kernel: Kernel, gradient: np.ndarray, x: np.ndarray, *of_channels: np.ndarray) -> np.ndarray:
    """The gradient of the images, of those of gain and shift, gain, mean and variance."""
    gains, shifts, gain, mean, variance = of_channels
    count = x.size // gain.size
    normalised = _normalised(kernel, x, mean, variance)
    projected = wide(gradient) - (_along_channels(shifts, x) + normalised * _along_channels(gains, x)) / count
    return projected * _along_channels(gain, x) / np.sqrt(_along_channels(variance, x) + kernel.attributes["epsilon"])


def _batch_norm_of_running(kernel: Kernel, x: np.ndarray, *of_channels: np.ndarray) -> np.ndarray:
    """With gain, shift, and a mean and variance that were learnt."""
    gain, shift, mean, variance = of_channels
    return _normalised(kernel, x, mean, variance) * _along_channels(gain, x) + _along_channels(shift, x)


def _gradient_with_running(kernel: Kernel, gradient: np.ndarray, gain: np.ndarray, variance: np.ndarray) -> np.ndarray:
    deviation = np.sqrt(_along_channels(variance, gradient) + kernel.attributes["epsilon"])
    return wide(gradient) * _along_channels(gain, gradient) / deviation


TABLE: dict[str, Callable[..., Any]] = {
    "bn_infer": _batch_norm_of_running,
    "bn_infer_grad": _gradient_with_running,
    "bn_training_reduce": _batch_sums,
    "bn_training_reduce_grad": _batch_norm_of_images,
    "bn_training_update": _batch_norm,
    "bn_training_update_grad": _batch_norm_of_gains,
}
