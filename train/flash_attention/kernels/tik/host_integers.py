"""Arithmetic of integer arrays on the host, under the names that `varlen` uses.

`flash_attention.backends.tik.graph_integers` has the same names for tensors in a graph. `where` takes arrays of one
shape; indices and counts are along the last axis.
"""

from __future__ import annotations

import numpy as np

minimum, maximum, where = np.minimum, np.maximum, np.where
logical_and, logical_or, take, reshape = np.logical_and, np.logical_or, np.take, np.reshape
concatenate = np.concatenate


def array(values: list | np.ndarray) -> np.ndarray:
    """Return integers as int32."""
    return np.array(values, np.int32)


def cumsum(values: np.ndarray, axis: int) -> np.ndarray:
    """Return sums of all up to each."""
    return np.cumsum(values, axis, dtype=np.int32)


def scatter(places: np.ndarray, values: np.ndarray, count: int) -> np.ndarray:
    """Return `count` numbers: each value at its place, 0 elsewhere."""
    result = np.zeros(count, np.int32)
    result[places] = values
    return result


def as_int(values: np.ndarray) -> np.ndarray:
    """Return int32 of booleans."""
    return values.astype(np.int32)


def count_true(values: np.ndarray) -> np.ndarray:
    """Count the true elements of the last axis of a matrix."""
    return np.count_nonzero(values, 1).astype(np.int32)


def first_true(values: np.ndarray) -> np.ndarray:
    """Return the index of the first largest element of each row: of booleans, of the first true one."""
    return np.argmax(values, 1).astype(np.int32)


def smallest(values: np.ndarray) -> np.ndarray:
    """Return the smallest element of each row, as float32."""
    return values.astype(np.float32).min(1)


def largest(values: np.ndarray) -> np.ndarray:
    """Return the largest element of each row, as float32."""
    return values.astype(np.float32).max(1)


def stack(arrays) -> np.ndarray:
    """Stack arrays along a second axis: vectors as the columns of a matrix."""
    return np.stack(arrays, 1)
