"""Convert tensors from and to plain rows: the one place that knows formats."""

from __future__ import annotations

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


def to_plain(stored: np.ndarray, description: dict[str, Any], filling: bool = False) -> np.ndarray:
    """Return the tensor that was stored in its format. With ``filling`` the result keeps the filling of matrices."""
    if _is_plain(stored, description):
        return stored
    view, used = _rows(stored, description)
    rows = view.reshape(_shape_of_rows(view))
    return rows if filling else rows[used].reshape(description["ori_shape"])


def store(plain: np.ndarray, target: np.ndarray, description: dict[str, Any]) -> None:
    """Write a tensor in its format. The filling of fractals is zero."""
    if _is_plain(target, description):
        target[...] = plain.reshape(target.shape)
        return
    view, used = _rows(target, description)
    filled = np.zeros(_shape_of_rows(view), target.dtype)
    if plain.shape[-1:] == filled.shape[-1:]:
        used = (*used[:-1], slice(None))  # the operator fills up columns itself
    filled[used] = plain.reshape(filled[used].shape)
    view[...] = filled.reshape(view.shape)


def _is_plain(stored: np.ndarray, description: dict[str, Any]) -> bool:
    """Return whether elements lie in the order of the shape.

    Raises:
        KernelError: the format is not one that the virtual card knows.
    """
    kind = description["format"]
    if kind in PLAIN or stored.size == 1:
        return True
    if kind != "FRACTAL_NZ":
        raise KernelError(f"format {kind} is not one that the virtual card knows")
    return False


def _rows(stored: np.ndarray, description: dict[str, Any]) -> tuple[np.ndarray, tuple[Any, ...]]:
    """Return fractals in the order of rows, and the tensor's place among their filling."""
    used_rows, used_columns = [1, *description["ori_shape"]][-2:]
    return np.moveaxis(stored, -4, -2), (..., slice(used_rows), slice(used_columns))


def _shape_of_rows(view: np.ndarray) -> tuple[int, ...]:
    *outer, rows, height, columns, width = view.shape
    return (*outer, rows * height, columns * width)
