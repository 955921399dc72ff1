"""Rows of int32 words, as the work tables hold them: one layout for writers and readers.

On the host a table is a structured NumPy array, `table["field"]`; a kernel reads the words of a row by their places.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Union

import numpy as np

Words = Union[int, "RowLayout", tuple["RowLayout", int]]


class RowLayout:
    """Fields one behind the other.

    Args:
        fields: by name: how many words, another row, or several of one kind as (row, how many).

    Attributes:
        dtype: NumPy dtype of a row.
        size: words of a row.
    """

    def __init__(self, fields: Mapping[str, Words]):
        self.dtype = np.dtype([(name, *_parts(field)) for name, field in fields.items()])
        self.size = self.dtype.itemsize // 4

    def zeros(self, *shape: int) -> np.ndarray:
        """Return rows of zeros."""
        return np.zeros(shape, self.dtype)

    def words(self, rows: np.ndarray) -> np.ndarray:
        """Return int32 (..., size) of rows (...)."""
        return np.ascontiguousarray(rows).view(np.int32).reshape(*rows.shape, self.size)

    def word(self, *path: str | int) -> int:
        """Return the first word of a field by its names and numbers inside rows."""
        return self._find(path)[0]

    def single(self, *path: str | int) -> dict[str, int]:
        """Return the words of fields of one word, in the row or one inside."""
        first, dtype = self._find(path)
        fields: Mapping = dtype.fields or {}
        return {name: first + fields[name][1] // 4 for name in dtype.names or () if fields[name][0] == np.int32}

    def _find(self, path: tuple[str | int, ...]) -> tuple[int, np.dtype]:
        at, dtype = 0, self.dtype
        for step in path:
            if isinstance(step, int):
                dtype = dtype.base
                at += step * dtype.itemsize
            else:
                assert dtype.fields is not None, path
                dtype, offset, *_ = dtype.fields[step]
                at += offset
        return at // 4, dtype


def _parts(field: Words) -> tuple:
    if isinstance(field, RowLayout):
        return (field.dtype,)
    if isinstance(field, tuple):
        return field[0].dtype, field[1]
    return (np.int32,) if field == 1 else (np.int32, field)
