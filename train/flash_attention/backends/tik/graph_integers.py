"""Arithmetic of small integer tensors under NumPy's names, for `flash_attention.kernels.tik.varlen` inside a graph.

Each is a primitive or little more: mindspore.numpy has the names too, and takes a graph ten times as long to compile.
Sums and the search of places go through float32, which holds such integers exactly and which every device adds up.
"""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, ops
from mindspore import dtype as mstype

minimum, maximum, where = ops.Minimum(), ops.Maximum(), ops.Select()
logical_and, logical_or, take, reshape = ops.LogicalAnd(), ops.LogicalOr(), ops.Gather(), ops.Reshape()
_cast, _sum, _first_largest = ops.Cast(), ops.ReduceSum(), ops.Argmax(1, mstype.int32)
_smallest, _largest = ops.ReduceMin(), ops.ReduceMax()
cumsum, _stack, _concatenate, _sums = ops.CumSum(), ops.Stack(1), ops.Concat(0), ops.UnsortedSegmentSum()


def array(values: list | np.ndarray) -> Tensor:
    """Return integers as int32."""
    return Tensor(np.array(values, np.int32))


def scatter(places, values, count):
    """Return `count` numbers: each value at its place, 0 elsewhere. No two values have one place.

    MindSpore 2.0 has no ScatterNd for the AI Core.
    """
    return _sums(values, places, count)


def as_int(tensor):
    """Return booleans as int32."""
    return _cast(tensor, mstype.int32)


def count_true(tensor):
    """Count the true elements in the last axis of a matrix of booleans."""
    return _cast(_sum(_cast(tensor, mstype.float32), 1), mstype.int32)


def first_true(tensor):
    """Return the index of the first largest element of each row of a matrix: of booleans, of the first True."""
    return _first_largest(_cast(tensor, mstype.float32))


def smallest(tensor):
    """Return the smallest element of each row of a matrix, as float32."""
    return _smallest(_cast(tensor, mstype.float32), 1)


def largest(tensor):
    """Return the largest element of each row of a matrix, as float32."""
    return _largest(_cast(tensor, mstype.float32), 1)


def stack(tensors):
    """Stack tensors along a second axis: vectors as the columns of a matrix."""
    return _stack(tensors)


def concatenate(tensors):
    """Concatenate vectors, one behind the other."""
    return _concatenate(tensors)
