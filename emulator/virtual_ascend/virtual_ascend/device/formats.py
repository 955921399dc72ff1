"""How tensors lie in memory: from and to plain rows, the one place that knows formats."""

from __future__ import annotations

from typing import Any

import numpy as np

from .errors import KernelError

#: Formats whose order of elements is that of the shape.
PLAIN = ("ND", "NCHW", "NHWC", "HWCN", "DefaultFormat", "NCDHW", "NDHWC", "NCL")
DTYPES = {"float": "float32", "double": "float64"}


def dtype_of(description: dict[str, Any]) -> np.dtype:
    """NumPy's dtype of a tensor."""
    return np.dtype(DTYPES.get(description["dtype"], description["dtype"]))


def plain_shape(description: dict[str, Any]) -> tuple[int, ...]:
    """Shape of the tensor as operators see it."""
    name = "shape" if description["format"] in PLAIN else "ori_shape"
    return tuple(description[name])


def to_plain(stored: np.ndarray, description: dict[str, Any]) -> np.ndarray:
    """The tensor whose contents were stored in its format."""
    kind = description["format"]
    if kind in PLAIN:
        return stored
    shape = plain_shape(description)
    if kind == "FRACTAL_NZ":
        *_, columns, rows, height, width = stored.shape
        matrix = np.moveaxis(stored, -4, -2).reshape(*stored.shape[:-4], rows * height, columns * width)
        *_, used_rows, used_columns = (1, 1, *shape)
        return matrix[..., :used_rows, :used_columns].reshape(shape)
    if kind == "NC1HWC0":
        batch, parts, height, width, part = stored.shape
        images = stored.transpose(0, 1, 4, 2, 3).reshape(batch, parts * part, height, width)
        return images[:, : _channels(description)].reshape(shape)
    raise KernelError(f"format {kind} is not one that the virtual card knows")


def store(plain: np.ndarray, target: np.ndarray, description: dict[str, Any]) -> None:
    """Write a tensor in its format; what fills up fractals is zero."""
    kind = description["format"]
    if kind in PLAIN:
        target[...] = plain.reshape(target.shape)
    elif kind == "FRACTAL_NZ":
        *outer, columns, rows, height, width = target.shape
        *_, used_rows, used_columns = (1, 1, *plain_shape(description))
        matrix = np.zeros((*outer, rows * height, columns * width), target.dtype)
        matrix[..., :used_rows, :used_columns] = plain.reshape(*outer, used_rows, used_columns)
        target[...] = np.moveaxis(matrix.reshape(*outer, rows, height, columns, width), -2, -4)
    elif kind == "NC1HWC0":
        batch, parts, height, width, part = target.shape
        images = np.zeros((batch, parts * part, height, width), target.dtype)
        images[:, : _channels(description)] = plain.reshape(batch, _channels(description), height, width)
        target[...] = images.reshape(batch, parts, part, height, width).transpose(0, 1, 3, 4, 2)
    else:
        raise KernelError(f"format {kind} is not one that the virtual card knows")


def _channels(description: dict[str, Any]) -> int:
    """Channels of an image whose original format is NCHW; of one axis, C is it, as MindSpore pads."""
    shape = description["ori_shape"]
    return shape[1] if len(shape) > 1 else shape[0]
