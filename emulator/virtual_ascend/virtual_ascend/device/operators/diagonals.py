"""Matrices and their diagonals; the last two axes are the matrix."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...kernel import Kernel


def _filled(_kernel: Kernel, x: np.ndarray, *_ones: np.ndarray) -> np.ndarray:
    """The last axis as the diagonal; further tensors are ones where it lies."""
    return x[..., None] * np.eye(x.shape[-1], dtype=x.dtype)


def _part(_kernel: Kernel, x: np.ndarray, *_ones: np.ndarray) -> np.ndarray:
    return np.diagonal(x, axis1=-2, axis2=-1)


def _replaced(_kernel: Kernel, x: np.ndarray, diagonal: np.ndarray, *_ones: np.ndarray) -> np.ndarray:
    result, places = x.copy(), np.arange(diagonal.shape[-1])
    result[..., places, places] = diagonal
    return result


def _band(_kernel: Kernel, x: np.ndarray, lower: np.ndarray, upper: np.ndarray) -> np.ndarray:
    """What lies at most so far below and above the diagonal; a negative number keeps all."""
    low, high = int(lower), int(upper)
    rows, columns = np.indices(x.shape[-2:])
    kept = ((low < 0) | (rows - columns <= low)) & ((high < 0) | (columns - rows <= high))
    return np.where(kept, x, 0).astype(x.dtype)


def _from_diagonals(
    kernel: Kernel, x: np.ndarray, which: np.ndarray, rows: np.ndarray, columns: np.ndarray, filling: np.ndarray
) -> np.ndarray:
    """MatrixDiagV3: a matrix of these diagonals, 0 the main one and positive ones above; short ones are aligned."""
    low, high = which.reshape(-1)[[0, -1]].tolist()
    if low == high:
        x = x[..., None, :]
    length = x.shape[-1]
    height, width = int(rows.reshape(-1)[0]), int(columns.reshape(-1)[0])
    least = length + max(-high, 0), length + max(low, 0)
    height, width = (least[0] if height < 0 else height), (least[1] if width < 0 else width)
    above, below = kernel.attributes.get("align", "RIGHT_LEFT").split("_")
    result = np.full((*x.shape[:-2], height, width), filling.reshape(-1)[0], x.dtype)
    for number, offset in enumerate(range(high, low - 1, -1)):
        first_row, first_column = max(-offset, 0), max(offset, 0)
        count = min(height - first_row, width - first_column)
        side = above if offset >= 0 else below
        start = length - count if side == "RIGHT" else 0
        places = np.arange(count)
        result[..., first_row + places, first_column + places] = x[..., number, start : start + count]
    return result


TABLE: dict[str, Callable[..., Any]] = {
    "matrix_diag_d": _filled,
    "matrix_diag_part_d": _part,
    "matrix_set_diag_d": _replaced,
}
AICPU: dict[str, Callable[..., Any]] = {"MatrixBandPart": _band, "MatrixDiagV3": _from_diagonals}
