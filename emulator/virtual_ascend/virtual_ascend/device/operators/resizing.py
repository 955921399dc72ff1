"""Resizing of images (batch, channels, height, width), and its derivatives: products with weights of both axes."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...kernel import Kernel
from ..by_name import both_forms
from ..numerics import wide


def _nearest(kernel: Kernel, large: int, small: int) -> np.ndarray:
    """Weights (large, small) of each element of an axis in those that it is resized to."""
    if kernel.attributes.get("align_corners") and large > 1:
        places = np.floor(np.arange(large) * ((small - 1) / (large - 1)) + 0.5)
    else:
        half = 0.5 if kernel.attributes.get("half_pixel_centers") else 0.0
        places = np.floor((np.arange(large) + half) * (small / large))
    return np.eye(small, dtype=np.float32)[np.minimum(places, small - 1).astype(int)]


def _between(kernel: Kernel, large: int, small: int) -> np.ndarray:
    """The same for linear interpolation."""
    if kernel.attributes.get("align_corners") and large > 1:
        places = np.arange(large) * ((small - 1) / (large - 1))
    elif kernel.attributes.get("half_pixel_centers"):
        places = (np.arange(large) + 0.5) * (small / large) - 0.5
    else:
        places = np.arange(large) * (small / large)
    places = np.clip(places, 0, small - 1)[:, None]
    return np.maximum(0, 1 - np.abs(places - np.arange(small))).astype(np.float32)


def _averages(_kernel: Kernel, count: int, size: int) -> np.ndarray:
    """The same for averages of as many parts, which overlap where they do not fit."""
    places, parts = np.arange(size), np.arange(count)[:, None]
    inside = (places >= parts * size // count) & (places < -(-(parts + 1) * size // count))
    return (inside / inside.sum(1, keepdims=True)).astype(np.float32)


def _resized(weights: Callable[..., np.ndarray]) -> Callable[..., Any]:
    def operator(kernel: Kernel, x: np.ndarray, *_size: np.ndarray) -> np.ndarray:
        rows, columns = map(weights, [kernel] * 2, kernel.outputs[0]["ori_shape"][-2:], x.shape[-2:])
        return rows @ wide(x) @ columns.T

    return operator


def _resized_gradient(weights: Callable[..., np.ndarray]) -> Callable[..., Any]:
    def operator(kernel: Kernel, gradient: np.ndarray, *_original: np.ndarray) -> np.ndarray:
        rows, columns = map(weights, [kernel] * 2, gradient.shape[-2:], kernel.outputs[0]["ori_shape"][-2:])
        return rows.T @ wide(gradient) @ columns

    return operator


TABLE: dict[str, Callable[..., Any]] = {
    **both_forms(resize_bilinear_v2=_resized(_between), resize_nearest_neighbor_v2=_resized(_nearest)),
    **both_forms(resize_bilinear_v2_grad=_resized_gradient(_between)),
    **both_forms(resize_nearest_neighbor_v2_grad=_resized_gradient(_nearest)),
}
AICPU: dict[str, Callable[..., Any]] = {
    "AdaptiveAvgPool2D": _resized(_averages),
    "AdaptiveAvgPool2DGrad": _resized_gradient(_averages),
}
