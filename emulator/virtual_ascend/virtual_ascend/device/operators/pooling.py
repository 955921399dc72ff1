"""Pooling of images (batch, channels, height, width), and its derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from ...kernel import Kernel
from ..by_name import attribute
from ..numerics import wide
from .windows import Windows, plane


def _of_pooling(kernel: Kernel, shape: Sequence[int]) -> Windows:
    # Those with positions call their axes as NHWC does, whatever the images are.
    first = 2 if attribute(kernel, "format", "data_format", otherwise="NHWC") == "NCHW" else 1
    size = plane(attribute(kernel, "kernel_size", "ksize"), first)
    strides = plane(kernel.attributes["strides"], first)
    padding = [0, 0, 0, 0]
    if attribute(kernel, "pad_mode", "padding") == "SAME":
        for axis in (0, 1):
            full, step = shape[2 + axis], strides[axis]
            missing = max(0, (-(-full // step) - 1) * step + size[axis] - full)
            padding[2 * axis : 2 * axis + 2] = missing // 2, missing - missing // 2
    return Windows(shape, size, strides, (1, 1), padding)


def _largest(windows: Windows, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Largest elements, and the places in the kernel of the first of them."""
    parts = windows.take(wide(x), -np.inf)
    flat = parts.reshape(*parts.shape[:4], -1)
    places = flat.argmax(-1)
    return np.take_along_axis(flat, places[..., None], -1)[..., 0], places


def _at_places(windows: Windows, gradient: np.ndarray, chosen: np.ndarray) -> np.ndarray:
    """The gradient of images of which these places in the kernel, (..., size of the kernel), were taken."""
    parts = gradient[..., None] * chosen
    return windows.put(parts.reshape(*gradient.shape, *windows.size))


def _max_pool(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    return _largest(_of_pooling(kernel, x.shape), x)[0]


def _max_pool_gradient(kernel: Kernel, x: np.ndarray, _y: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    windows = _of_pooling(kernel, x.shape)
    chosen = _largest(windows, x)[1][..., None] == np.arange(windows.size[0] * windows.size[1])
    return _at_places(windows, wide(gradient), chosen)


def _max_pool_with_places(kernel: Kernel, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A bit of the second tells where in the kernel a maximum lies: for each element of the kernel, 16 to a number."""
    windows = _of_pooling(kernel, x.shape)
    result, places = _largest(windows, x)
    chosen = places.reshape(*x.shape[:2], 1, -1) == np.arange(windows.size[0] * windows.size[1])[:, None]
    *outer, _, blocks = kernel.outputs[1]["ori_shape"]
    bits = np.zeros((*chosen.shape[:3], blocks * 16), np.uint8)
    bits[..., : chosen.shape[3]] = chosen
    return result, np.packbits(bits, -1, "little").view(np.uint16)


def _max_pool_gradient_with_places(
    kernel: Kernel, x: np.ndarray, gradient: np.ndarray, places: np.ndarray
) -> np.ndarray:
    windows = _of_pooling(kernel, x.shape)
    bits = np.unpackbits(np.ascontiguousarray(places).view(np.uint8), axis=-1, bitorder="little")
    down, across = windows.counts
    chosen = np.moveaxis(bits[..., : down * across], 2, -1).reshape(*gradient.shape, -1)
    return _at_places(windows, wide(gradient), chosen)


def _average_pool(kernel: Kernel, x: np.ndarray, filters: np.ndarray | None = None, *_: Any) -> np.ndarray:
    """A sum, weighted by filters on the diagonals of FRACTAL_Z; without such the average of what is no padding."""
    windows = _of_pooling(kernel, x.shape)
    parts = windows.take(wide(x))
    if filters is None:
        return parts.sum((-2, -1)) / _inside(windows)
    weights = np.einsum("kii->ki", wide(filters).reshape(-1, 16, 16)).reshape(-1, *windows.size, 16)
    of_channels = weights.transpose(0, 3, 1, 2).reshape(-1, *windows.size)[: x.shape[1]]
    return np.einsum("ncyxhw,chw->ncyx", parts, of_channels)


def _inside(windows: Windows) -> np.ndarray:
    """How much of the kernel lies on the images, by place."""
    return windows.take(np.ones(windows.shape, np.float32)).sum((-2, -1))


def _average_pool_gradient(kernel: Kernel, gradient: np.ndarray, means: np.ndarray, filters: np.ndarray) -> np.ndarray:
    """Of what MindSpore divides by, as factors of each place, and filters of ones."""
    windows = _of_pooling(kernel, kernel.outputs[0]["ori_shape"])
    scaled = wide(gradient) * wide(means)
    return windows.put(scaled[..., None, None] * wide(filters).reshape(-1, 1, 1, *windows.size))


def _average_pool_gradient_of_shape(kernel: Kernel, _shape: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    windows = _of_pooling(kernel, kernel.outputs[0]["ori_shape"])
    parts = (wide(gradient) / _inside(windows))[..., None, None]
    return windows.put(np.broadcast_to(parts, (*gradient.shape, *windows.size)))


TABLE: dict[str, Callable[..., Any]] = {
    "avg_pool": _average_pool,
    "avg_pool_grad": _average_pool_gradient_of_shape,
    "avg_pool_grad_d": _average_pool_gradient,
    "max_pool": _max_pool,
    "max_pool_grad": _max_pool_gradient,
    "max_pool_grad_with_argmax": _max_pool_gradient_with_places,
    "max_pool_with_argmax": _max_pool_with_places,
}
