"""Convolution of images (batch, channels, height, width), and its derivatives: sums in float32, rounded once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from ...kernel import Kernel
from ..by_name import attribute, both_forms
from ..numerics import wide
from .windows import Windows, plane


def _of_convolution(kernel: Kernel, images: Sequence[int], filters: Sequence[int]) -> Windows:
    strides, dilation = attribute(kernel, "stride", "strides"), attribute(kernel, "dilation", "dilations")
    padding = attribute(kernel, "pad_list", "pads")
    return Windows(images, plane(filters), plane(strides), plane(dilation), padding)


def _groups(kernel: Kernel, array: np.ndarray, axis: int) -> np.ndarray:
    """The axis of channels as two, groups first."""
    count = kernel.attributes.get("groups") or 1
    return array.reshape(*array.shape[:axis], count, -1, *array.shape[axis + 1 :])


def _convolution(kernel: Kernel, x: np.ndarray, filters: np.ndarray, bias: Any = None, *_: Any) -> np.ndarray:
    windows = _of_convolution(kernel, x.shape, filters.shape)
    parts, weights = _groups(kernel, windows.take(wide(x)), 1), _groups(kernel, wide(filters), 0)
    result = np.einsum("ngcyxhw,gochw->ngoyx", parts, weights, optimize=True).reshape(len(x), -1, *windows.counts)
    return result if bias is None else result + wide(bias).reshape(-1, 1, 1)


def _convolution_of_images(kernel: Kernel, *arrays: np.ndarray) -> np.ndarray:
    """The gradient of the images; before filters and gradient the shape may stand."""
    *_shape, filters, gradient = arrays
    windows = _of_convolution(kernel, kernel.outputs[0]["ori_shape"], filters.shape)
    gradients, weights = _groups(kernel, wide(gradient), 1), _groups(kernel, wide(filters), 0)
    parts = np.einsum("ngoyx,gochw->ngcyxhw", gradients, weights, optimize=True)
    return windows.put(parts.reshape(len(gradient), -1, *parts.shape[3:]))


def _convolution_of_filters(kernel: Kernel, x: np.ndarray, *arrays: np.ndarray) -> np.ndarray:
    """The gradient of the filters; before that of the result their shape may stand."""
    gradient = arrays[-1]
    shape = kernel.outputs[0]["ori_shape"]
    parts = _groups(kernel, _of_convolution(kernel, x.shape, shape).take(wide(x)), 1)
    return np.einsum("ngoyx,ngcyxhw->gochw", _groups(kernel, wide(gradient), 1), parts, optimize=True).reshape(shape)


TABLE: dict[str, Callable[..., Any]] = {
    "conv2d": _convolution,
    **both_forms(conv2d_backprop_filter=_convolution_of_filters, conv2d_backprop_input=_convolution_of_images),
}
