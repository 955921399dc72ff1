"""Gathering by index, and sorting."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..by_name import both_forms
from ..numerics import wide
from .scattering import places_of


def _gather(kernel: OperatorCall, x: np.ndarray, index: np.ndarray, axis: np.ndarray | None = None) -> np.ndarray:
    along = kernel.attributes.get("axis", 0) if axis is None else int(axis.reshape(-1)[0])
    size = x.shape[along]
    if index.size and not -size <= index.min() <= index.max() < size:
        raise IndexError(f"an index of {index.min()} to {index.max()} into an axis of {size}")
    axes = int(kernel.attributes.get("batch_dims", 0))
    if axes == 0:
        return np.take(x, index, along)
    # Every item of the first axes has indices of its own.
    items = zip(x.reshape(-1, *x.shape[axes:]), index.reshape(-1, *index.shape[axes:]))
    rows = [np.take(item, places, along % x.ndim - axes) for item, places in items]
    return np.reshape(rows, (*x.shape[:axes], *rows[0].shape))


def _gather_along(kernel: OperatorCall, x: np.ndarray, axis: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Compute GatherD: the index has the shape of the result."""
    return np.take_along_axis(x, index, int(axis.reshape(-1)[0]))


def _gather_along_gradient(kernel: OperatorCall, *arrays: np.ndarray) -> np.ndarray:
    """Scatter the gradient by the index. Tensors before them describe the shape."""
    index, gradient = arrays[-2:]
    axis = kernel.attributes["dim"]
    result = np.zeros(kernel.outputs[0]["ori_shape"], np.float32)
    places = list(np.indices(index.shape))
    places[axis] = index
    np.add.at(result, tuple(places), wide(gradient))
    return result


def _gather_nd(_kernel: OperatorCall, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    return x[places_of(index)]


def _one_hot(kernel: OperatorCall, index: np.ndarray, *given: np.ndarray) -> np.ndarray:
    """Make one-hot rows. The depth is an attribute or the first of the further tensors, behind which stand the two
    values.
    """
    *depth, on, off = given
    count = int(depth[0]) if depth else kernel.attributes["depth"]
    axis = kernel.attributes.get("axis", -1)
    return np.moveaxis(np.where(index[..., None] == np.arange(count), on, off), -1, axis)


def _top(kernel: OperatorCall, x: np.ndarray, *_rest: Any) -> tuple[np.ndarray, np.ndarray]:
    count = kernel.outputs[0]["ori_shape"][-1]
    order = np.argsort(-wide(x), axis=-1, kind="stable")[..., :count]
    return np.take_along_axis(x, order, -1), order


def _sort(kernel: OperatorCall, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    axis = kernel.attributes.get("axis", -1)
    order = np.argsort(-wide(x) if kernel.attributes.get("descending") else x, axis=axis, kind="stable")
    return np.take_along_axis(x, order, axis), order


def _left_by_mask(_kernel: OperatorCall, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
    x, mask = np.broadcast_arrays(x, mask)
    return x[mask]


def _unique(_kernel: OperatorCall, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct elements in order of appearance, and each element's place among them."""
    _, first, inverse = np.unique(x, return_index=True, return_inverse=True)
    order = np.argsort(first)
    return x.reshape(-1)[first[order]], np.argsort(order)[inverse]


def _reversed_parts(kernel: OperatorCall, x: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Reverse the beginning of every sequence, of the given length."""
    along, over = kernel.attributes["seq_dim"], kernel.attributes["batch_dim"]
    moved = np.moveaxis(x, (over, along), (0, 1))
    result = moved.copy()
    for row, length in enumerate(lengths.tolist()):
        result[row, :length] = moved[row, :length][::-1]
    return np.moveaxis(result, (0, 1), (over, along))


def _positions(kernel: OperatorCall, sequence: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return the place of each value in its row of a sorted sequence."""
    side: Any = "right" if kernel.attributes.get("right") else "left"
    if sequence.ndim == 1:
        return np.searchsorted(sequence, values, side)
    rows = zip(sequence.reshape(-1, sequence.shape[-1]), values.reshape(-1, values.shape[-1]))
    return np.array([np.searchsorted(row, value, side) for row, value in rows]).reshape(values.shape)


TABLE: dict[str, Callable[..., Any]] = {
    "gather_nd": _gather_nd,
    **both_forms(gather_v2=_gather, one_hot=_one_hot),
    "sort": _sort,
    **both_forms(top_k=_top),
}
AICPU: dict[str, Callable[..., Any]] = {
    "GatherD": _gather_along,
    "GatherDGrad": _gather_along_gradient,
    "GatherDGradV2": _gather_along_gradient,
    "GatherNd": _gather_nd,
    "MaskedSelect": _left_by_mask,
    "ReverseSequence": _reversed_parts,
    "SearchSorted": _positions,
    "Sort": _sort,
    "Unique": _unique,
    "Where": lambda _kernel, x: np.argwhere(x),
}
