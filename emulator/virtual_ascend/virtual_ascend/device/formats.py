"""Convert tensors from and to plain rows: the one place that knows formats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from .errors import KernelError

#: Formats with the elements in the order of the shape.
PLAIN = ("ND", "NCHW", "NHWC", "HWCN", "DefaultFormat", "NCDHW", "NDHWC", "NCL")
DTYPES = {"float": "float32", "double": "float64"}


def dtype_of(description: dict[str, Any]) -> np.dtype:
    """Return the NumPy dtype of a tensor."""
    return np.dtype(DTYPES.get(description["dtype"], description["dtype"]))


def with_filling(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Mark an operator that works on matrices in fractals together with their filling."""
    operator.with_filling = True  # type: ignore[attr-defined]
    return operator


def plain_shape(description: dict[str, Any]) -> tuple[int, ...]:
    """Return the shape of the tensor as operators see it."""
    name = "shape" if description["format"] in PLAIN else "ori_shape"
    return tuple(description[name])


def to_plain(
    stored: np.ndarray, description: dict[str, Any], groups: int | None = None, filling: bool = False
) -> np.ndarray:
    """Return the tensor that was stored in its format. With ``filling`` the result keeps the filling of matrices.

    `groups`: groups of the convolution that has its filters in FRACTAL_Z. An operator that knows of no groups works on
    everything that lies there, element by element.
    """
    rows = _rows(stored, description, groups)
    if rows is None:
        return stored
    view, shape, used = rows
    if filling:
        return view.reshape(shape)
    return view.reshape(shape)[used].reshape(plain_shape(description))


def store(plain: np.ndarray, target: np.ndarray, description: dict[str, Any], groups: int | None = None) -> None:
    """Write a tensor in its format. The filling of fractals is zero."""
    rows = _rows(target, description, groups)
    if rows is None:
        target[...] = plain.reshape(target.shape)
        return
    view, shape, used = rows
    filled = np.zeros(shape, target.dtype)
    if description["format"] == "FRACTAL_NZ" and plain.shape[-1:] == shape[-1:]:
        used = (*used[:-1], slice(None))  # the operator fills up columns itself
    filled[used] = plain.reshape(filled[used].shape)
    target[...] = 0
    view[...] = filled.reshape(view.shape)


#: Memory in a format: its elements in the order of rows with the filling, their shape, and the place of the tensor.
Rows = tuple[np.ndarray, tuple[int, ...], tuple[Any, ...]]


def _rows(stored: np.ndarray, description: dict[str, Any], groups: int | None) -> Rows | None:
    """Return a view as rows, or None if elements lie in shape order."""
    kind = description["format"]
    if kind in PLAIN or stored.size == 1:
        return None
    if kind == "FRACTAL_Z" and groups is None and len(description["ori_shape"]) > 2:
        return None
    if kind == "FRACTAL_Z":
        if len(description["ori_shape"]) == 2:
            # Filters of one place; the columns are the filters. Axes: parts of rows, parts of columns, columns, rows.
            (down, across, width, height), shape = stored.shape, description["ori_shape"]
            return stored.transpose(0, 3, 1, 2), (down * height, across * width), (slice(shape[0]), slice(shape[1]))
        return _filters(stored, description["ori_shape"], groups or 1)
    if kind not in _FORMATS:
        raise KernelError(f"format {kind} is not one that the virtual card knows")
    return _FORMATS[kind](stored, description)


def _matrices(stored: np.ndarray, description: dict[str, Any]) -> Rows:
    *outer, columns, rows, height, width = stored.shape
    *_, used_rows, used_columns = (1, 1, *plain_shape(description))
    shape = (*outer, rows * height, columns * width)
    return np.moveaxis(stored, -4, -2), shape, (..., slice(used_rows), slice(used_columns))


def _images(stored: np.ndarray, description: dict[str, Any]) -> Rows:
    batch, parts, height, width, part = stored.shape
    original = description["ori_shape"]
    channels = original[1] if len(original) > 1 else original[0]  # MindSpore takes one axis for the channels
    return stored.transpose(0, 1, 4, 2, 3), (batch, parts * part, height, width), (slice(None), slice(channels))


def _filters(stored: np.ndarray, shape: Sequence[int], groups: int) -> Rows:
    """Return filters as rows: groups lie on the diagonal of larger filters, as many as fill fractals."""
    count, channels, height, width = shape
    results = count // groups
    together = min(groups, math.lcm(math.lcm(channels, 16) // channels, math.lcm(results, 16) // results))
    blocks, parts = -(-groups // together), -(-channels * together // 16)
    view = stored.reshape(blocks, parts, height, width, -1, 16).transpose(0, 4, 1, 5, 2, 3)
    block, place = np.divmod(np.arange(count) // results, together)
    row = place * results + np.arange(count) % results
    column = place[:, None] * channels + np.arange(channels)
    return view, (blocks, view.shape[1], parts * 16, height, width), (block[:, None], row[:, None], column)


def _filters_of_channels(stored: np.ndarray, description: dict[str, Any]) -> Rows:
    """Arrange filters on the diagonal of the last two axes."""
    parts, height, width, count, part, _ = stored.shape
    view = np.einsum("...ii->...i", stored).transpose(3, 0, 4, 1, 2)
    return view, (count, parts * part, height, width), (slice(None), slice(description["ori_shape"][1]))


_FORMATS: dict[str, Callable[[np.ndarray, dict[str, Any]], Rows]] = {
    "C1HWNCoC0": _filters_of_channels,
    "FRACTAL_NZ": _matrices,
    "NC1HWC0": _images,
}
