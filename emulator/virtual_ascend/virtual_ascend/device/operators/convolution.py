"""Convolution of images (batch, channels, height, width), and its derivatives: sums in float32, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..by_name import attribute, both_forms
from ..numerics import wide

Pair = tuple[int, int]


def plane(numbers: Sequence[int], first: int = 2) -> Pair:
    """Return the sizes of height and width, which begin at ``first``."""
    return numbers[first], numbers[first + 1]


class Windows:
    """Place a kernel of this size on images of this shape.

    Attributes:
        size, strides, dilation: along height and width.
        padding: rows above and below, columns left and right.
    """

    def __init__(self, shape: Sequence[int], size: Pair, strides: Pair, dilation: Pair, padding: Sequence[int]) -> None:
        self.shape, self.size, self.strides, self.dilation = tuple(shape), size, strides, dilation
        self.padding = (0, 0), (0, 0), tuple(padding[:2]), tuple(padding[2:])
        self.padded = *self.shape[:2], self.shape[2] + sum(padding[:2]), self.shape[3] + sum(padding[2:])
        reach = [step * (count - 1) + 1 for step, count in zip(dilation, size)]
        self.counts = tuple((full - one) // step + 1 for full, one, step in zip(self.padded[2:], reach, strides))

    def take(self, images: np.ndarray) -> np.ndarray:
        """Return the windows: (batch, channels, places down, places across, kernel height, kernel width)."""
        padded = np.pad(images, self.padding)
        parts = [[padded[self._under(i, j)] for j in range(self.size[1])] for i in range(self.size[0])]
        return np.moveaxis(np.array(parts), (0, 1), (-2, -1))

    def put(self, parts: np.ndarray) -> np.ndarray:
        """Return images: each element is the sum of all parts taken from it."""
        padded = np.zeros(self.padded, parts.dtype)
        for i in range(self.size[0]):
            for j in range(self.size[1]):
                padded[self._under(i, j)] += parts[..., i, j]
        (top, _), (left, _) = self.padding[2:]
        return padded[..., top : top + self.shape[2], left : left + self.shape[3]]

    def _under(self, i: int, j: int) -> tuple[Any, ...]:
        """Return the slice that element (i, j) of the kernel meets at all its places."""
        starts = i * self.dilation[0], j * self.dilation[1]
        ends = (start + step * count for start, step, count in zip(starts, self.strides, self.counts))
        return (..., *(slice(start, end, step) for start, end, step in zip(starts, ends, self.strides)))


def _of_convolution(kernel: OperatorCall, images: Sequence[int], filters: Sequence[int]) -> Windows:
    strides, dilation = attribute(kernel, "stride", "strides"), attribute(kernel, "dilation", "dilations")
    padding = attribute(kernel, "pad_list", "pads")
    return Windows(images, plane(filters), plane(strides), plane(dilation), padding)


def _groups(kernel: OperatorCall, array: np.ndarray, axis: int) -> np.ndarray:
    """Split the axis of channels in two, groups first."""
    count = kernel.attributes.get("groups") or 1
    return array.reshape(*array.shape[:axis], count, -1, *array.shape[axis + 1 :])


def _convolution(kernel: OperatorCall, x: np.ndarray, filters: np.ndarray, bias: Any = None, *_: Any) -> np.ndarray:
    windows = _of_convolution(kernel, x.shape, filters.shape)
    parts, weights = _groups(kernel, windows.take(wide(x)), 1), _groups(kernel, wide(filters), 0)
    result = np.einsum("ngcyxhw,gochw->ngoyx", parts, weights, optimize=True).reshape(len(x), -1, *windows.counts)
    return result if bias is None else result + wide(bias).reshape(-1, 1, 1)


def _convolution_of_images(kernel: OperatorCall, *arrays: np.ndarray) -> np.ndarray:
    """Compute the gradient of the images. The shape may stand before filters and gradient."""
    *_shape, filters, gradient = arrays
    windows = _of_convolution(kernel, kernel.outputs[0]["ori_shape"], filters.shape)
    gradients, weights = _groups(kernel, wide(gradient), 1), _groups(kernel, wide(filters), 0)
    parts = np.einsum("ngoyx,gochw->ngcyxhw", gradients, weights, optimize=True)
    return windows.put(parts.reshape(len(gradient), -1, *parts.shape[3:]))


def _convolution_of_filters(kernel: OperatorCall, x: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
    """Compute the gradient of the filters. Their shape may stand before the gradient of the result."""
    gradient = arrays[-1]
    shape = kernel.outputs[0]["ori_shape"]
    parts = _groups(kernel, _of_convolution(kernel, x.shape, shape).take(wide(x)), 1)
    return np.einsum("ngoyx,ngcyxhw->gochw", _groups(kernel, wide(gradient), 1), parts, optimize=True).reshape(shape)


TABLE: dict[str, Callable[..., Any]] = {
    "conv2d": _convolution,
    **both_forms(conv2d_backprop_filter=_convolution_of_filters, conv2d_backprop_input=_convolution_of_images),
}
