"""Blocks of images moved to channels, to the batch and to rows, and back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from ...kernel import Kernel
from ..by_name import attribute


def _of_images(function: Callable[..., Any]) -> Callable[..., Any]:
    """An operator on (batch, channels, height, width), however MindSpore orders the axes."""

    def operator(kernel: Kernel, x: np.ndarray, *rest: Any) -> np.ndarray:
        if kernel.inputs[0]["format"] != "NHWC":
            return function(kernel, x, *rest)
        return function(kernel, x.transpose(0, 3, 1, 2), *rest).transpose(0, 2, 3, 1)

    return operator


def _space_to_depth(kernel: Kernel, x: np.ndarray, *_filters: Any) -> np.ndarray:
    """Within a block, all channels of a place stand beside each other."""
    size = kernel.attributes["block_size"]
    batch, channels, height, width = x.shape
    parts = x.reshape(batch, channels, height // size, size, width // size, size).transpose(0, 3, 5, 1, 2, 4)
    return parts.reshape(batch, -1, height // size, width // size)


def _depth_to_space(kernel: Kernel, x: np.ndarray) -> np.ndarray:
    """Mode DCR has the place in the block before the channel, CRD behind it."""
    size = kernel.attributes["block_size"]
    batch, channels, height, width = x.shape
    if kernel.attributes.get("mode", "DCR") == "CRD":
        parts = x.reshape(batch, channels // size**2, size, size, height, width).transpose(0, 1, 4, 2, 5, 3)
    else:
        parts = x.reshape(batch, size, size, channels // size**2, height, width).transpose(0, 3, 4, 1, 5, 2)
    return parts.reshape(batch, -1, height * size, width * size)


def _blocks(kernel: Kernel, axes: int, given: Sequence[np.ndarray], borders: str) -> tuple[list[int], list[list[int]]]:
    """Size of blocks and borders along the axes behind the first: attributes, or tensors."""
    size, widths = given if given else (attribute(kernel, "block_shape", "block_size"), kernel.attributes[borders])
    sizes = np.asarray(size).reshape(-1).tolist()
    pairs = np.asarray(widths).reshape(-1, 2).tolist()
    if len(sizes) < len(pairs):  # one number for all
        sizes = sizes * len(pairs)
    missing = axes - 1 - len(sizes)
    # Where they are fewer than the axes, MindSpore means the last ones: images (batch, channels, height, width).
    return [1] * missing + sizes, [[0, 0]] * missing + pairs


def _space_to_batch(kernel: Kernel, x: np.ndarray, *given: np.ndarray) -> np.ndarray:
    sizes, pads = _blocks(kernel, x.ndim, given, "paddings")
    x = np.pad(x, [(0, 0), *map(tuple, pads)])
    shape = [x.shape[0]]
    for length, size in zip(x.shape[1:], sizes):
        shape += [length // size, size]
    inner = range(2, 2 * x.ndim, 2)
    parts = x.reshape(shape).transpose(*inner, 0, *range(1, 2 * x.ndim - 1, 2))
    return parts.reshape(-1, *(length // size for length, size in zip(x.shape[1:], sizes)))


def _batch_to_space(kernel: Kernel, x: np.ndarray, *given: np.ndarray) -> np.ndarray:
    sizes, crops = _blocks(kernel, x.ndim, given, "crops")
    count = len(sizes)
    parts = x.reshape(*sizes, -1, *x.shape[1:])
    order = [count]
    for axis in range(count):
        order += [count + 1 + axis, axis]
    whole = parts.transpose(order).reshape(-1, *(length * size for length, size in zip(x.shape[1:], sizes)))
    return whole[(slice(None), *(slice(low, length - high) for (low, high), length in zip(crops, whole.shape[1:])))]


TABLE: dict[str, Callable[..., Any]] = {
    "depth_to_space": _of_images(_depth_to_space),
    "space_to_depth": _of_images(_space_to_depth),
    **{f"batch_to_space{ending}": _batch_to_space for ending in ("_d", "_nd", "_nd_d")},
    **{f"space_to_batch{ending}": _space_to_batch for ending in ("_d", "_nd", "_nd_d")},
}
