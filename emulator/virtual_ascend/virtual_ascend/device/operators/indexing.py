"""Gather and scatter by index."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..by_name import both_forms
from ..numerics import wide


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


def _gather_along(kernel: OperatorCall, x: np.ndarray, *axis_and_index: np.ndarray) -> np.ndarray:
    """Gather by an index of the result's shape. The axis may be an attribute."""
    *axis, index = axis_and_index
    return np.take_along_axis(x, index, int(axis[0].reshape(-1)[0]) if axis else kernel.attributes["dim"])


def scattered_sum(target: np.ndarray, axis: int, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
    """Add updates to a target, at places that an index names along an axis."""
    places = list(np.indices(index.shape))
    places[axis] = index
    np.add.at(target, tuple(places), wide(updates)[tuple(map(slice, index.shape))])
    return target


def _gather_along_gradient(kernel: OperatorCall, *arrays: np.ndarray) -> np.ndarray:
    """Scatter the gradient by the index. Tensors before them describe the shape."""
    zeros = np.zeros(kernel.outputs[0]["ori_shape"], np.float32)
    return scattered_sum(zeros, kernel.attributes["dim"], *arrays[-2:])


def _one_hot(kernel: OperatorCall, index: np.ndarray, *given: np.ndarray) -> np.ndarray:
    """Make one-hot rows. The depth is an attribute or the first of the further tensors, behind which stand the two
    values.
    """
    *depth, on, off = given
    count = int(depth[0]) if depth else kernel.attributes["depth"]
    axis = kernel.attributes.get("axis", -1)
    return np.moveaxis(np.where(index[..., None] == np.arange(count), on, off), -1, axis)


def _places(index: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the index as a tuple: its last axis names a place."""
    return tuple(np.moveaxis(index, -1, 0))


def _gather_nd(_kernel: OperatorCall, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    return x[_places(index)]


def _replaced(kernel: OperatorCall, target: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
    """Replace rows for ScatterUpdate, and what stands at places for the others."""
    result = target.copy()
    result[index if kernel.type == "ScatterUpdate" else _places(index)] = updates
    return result


def _sums_of_segments(kernel: OperatorCall, x: np.ndarray, index: np.ndarray, *_count: np.ndarray) -> np.ndarray:
    """Add rows to the segments that an index names. A negative number belongs to no segment."""
    result = np.zeros(kernel.outputs[0]["ori_shape"], wide(x).dtype)
    keep = index.reshape(-1) >= 0
    np.add.at(result, index.reshape(-1)[keep], wide(x).reshape(-1, *x.shape[index.ndim :])[keep])
    return result


TABLE: dict[str, Callable[..., Any]] = {
    "cust_gather_d_grad_v2": _gather_along_gradient,
    "gather_elements": _gather_along,
    "gather_nd": _gather_nd,
    **both_forms(gather_v2=_gather, one_hot=_one_hot, unsorted_segment_sum=_sums_of_segments),
    **dict.fromkeys(("scatter_nd_update", "scatter_update"), _replaced),
}
AICPU: dict[str, Callable[..., Any]] = {
    "GatherD": _gather_along,
    **dict.fromkeys(("GatherDGrad", "GatherDGradV2"), _gather_along_gradient),
    "GatherNd": _gather_nd,
    **dict.fromkeys(("ScatterNdUpdate", "TensorScatterUpdate"), _replaced),
}
