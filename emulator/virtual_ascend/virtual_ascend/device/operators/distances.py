"""Norms and distances of rows, and their derivatives."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...kernel import Kernel
from ..numerics import wide
from .reduce import axes_of


def norm(x: np.ndarray, power: float, axes: Any, keep: bool = False) -> np.ndarray:
    """(sum |x|^p)^(1/p): for 0 the number of elements that are not zero, for infinity the largest."""
    size = np.abs(x)
    if power == 0:
        return (size != 0).astype(x.dtype).sum(axes, keepdims=keep)
    if np.isinf(power):
        return size.max(axes, keepdims=keep)
    return (size**power).sum(axes, keepdims=keep) ** (1 / power)


def _lp_norm(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    result = norm(wide(x), float(kernel.attributes["p"]), axes_of(kernel, x), bool(kernel.attributes.get("keep_dims")))
    return np.maximum(result, kernel.attributes.get("epsilon", 1e-12))


def _renorm(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    """The factor that makes no norm of what lies along `dim` larger than `maxnorm`."""
    attributes = kernel.attributes
    kept = attributes["dim"] % x.ndim
    size = norm(wide(x), float(attributes["p"]), tuple(axis for axis in range(x.ndim) if axis != kept), keep=True)
    largest = attributes["maxnorm"]
    return np.where(size > largest, largest / (size + 1e-7), 1)


def _distances(kernel: Kernel, x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Of all pairs of rows; MindSpore has made pairs of them where the result has fewer axes."""
    x, y = wide(x), wide(y)
    if len(kernel.outputs[0]["ori_shape"]) == x.ndim:
        x, y = x[..., :, None, :], y[..., None, :, :]
    return norm(x - y, float(kernel.attributes.get("p", 2.0)), -1)


def _gradient_of_distances(kernel: Kernel, *arrays: np.ndarray) -> np.ndarray:
    """Of the first tensor; a distance of zero has none."""
    gradient, x, y, distance = map(wide, arrays)
    shape, power = kernel.outputs[0]["ori_shape"], float(kernel.attributes.get("p", 2.0))
    if x.ndim == len(shape):
        x, y = x[..., :, None, :], y[..., None, :, :]
        gradient, distance = gradient[..., None], distance[..., None]
    difference = x - y
    sign, size = np.sign(difference), np.abs(difference)
    if power == 0:
        slope = np.zeros_like(difference)
    elif np.isinf(power):
        slope = sign * (size == distance)
    else:
        base = np.where(distance == 0, 1, distance)
        slope = np.where(distance == 0, 0, sign * (size / base) ** (power - 1))
    return (gradient * slope).sum(-2)


TABLE: dict[str, Callable[..., Any]] = {
    "cdist": _distances,
    "cdist_grad": _gradient_of_distances,
    "lp_norm": _lp_norm,
    "renorm": _renorm,
}
