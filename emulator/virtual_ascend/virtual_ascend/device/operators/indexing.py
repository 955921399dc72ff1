"""Gathering and scattering by index."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...kernel import Kernel
from ..by_name import both_forms
from ..numerics import wide


def _gather(kernel: Kernel, x: np.ndarray, index: np.ndarray, axis: np.ndarray | None = None) -> np.ndarray:
    along = kernel.attributes.get("axis", 0) if axis is None else int(axis.reshape(-1)[0])
    size = x.shape[along]
    if index.size and not -size <= index.min() <= index.max() < size:
        raise IndexError(f"an index of {index.min()} to {index.max()} into an axis of {size}")
    return np.take(x, index, along)


def _gather_along(kernel: Kernel, x: np.ndarray, axis: np.ndarray, index: np.ndarray) -> np.ndarray:
    """GatherD: the index has the shape of the result."""
    return np.take_along_axis(x, index, int(axis.reshape(-1)[0]))


def _gather_along_gradient(kernel: Kernel, *arrays: np.ndarray) -> np.ndarray:
    """Of the index and the gradient; what stands before them describes the shape."""
    index, gradient = arrays[-2:]
    axis = kernel.attributes["dim"]
    result = np.zeros(kernel.outputs[0]["ori_shape"], np.float32)
    places = list(np.indices(index.shape))
    places[axis] = index
    np.add.at(result, tuple(places), wide(gradient))
    return result


def _gather_nd(_kernel: Kernel, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    return x[_places(index)]


def _one_hot(kernel: Kernel, index: np.ndarray, *given: np.ndarray) -> np.ndarray:
    """The depth is an attribute or the first of the further tensors, behind which stand the two values."""
    *depth, on, off = given
    count = int(depth[0]) if depth else kernel.attributes["depth"]
    axis = kernel.attributes.get("axis", -1)
    return np.moveaxis(np.where(index[..., None] == np.arange(count), on, off), -1, axis)


def _segment_sums(kernel: Kernel, x: np.ndarray, index: np.ndarray, *_count: np.ndarray) -> np.ndarray:
    rest = x.shape[index.ndim :]
    result = np.zeros(kernel.outputs[0]["ori_shape"], wide(x).dtype)
    flat = index.reshape(-1)
    keep = flat >= 0  # a negative number belongs to no segment
    np.add.at(result, flat[keep], wide(x).reshape(-1, *rest)[keep])
    return result


def _places(index: np.ndarray) -> tuple[np.ndarray, ...]:
    """The index whose last axis names a place."""
    return tuple(np.moveaxis(index, -1, 0))


def _scattered(_kernel: Kernel, target: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
    result = target.copy()
    result[_places(index)] = updates
    return result


def _scattered_by(combine: np.ufunc, of_rows: bool = False) -> Callable[..., Any]:
    """Updates are combined with what stands where they go; an index of rows has no axis for the place."""

    def operator(_kernel: Kernel, target: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
        result = wide(target).copy()
        combine.at(result, (index,) if of_rows else _places(index), wide(updates))
        return result

    return operator


def _scattered_sums(kernel: Kernel, index: np.ndarray, updates: np.ndarray, *_shape: np.ndarray) -> np.ndarray:
    """ScatterNd: into zeros."""
    result = np.zeros(kernel.outputs[0]["ori_shape"], wide(updates).dtype)
    np.add.at(result, _places(index), wide(updates))
    return result


def _scattered_elements(kernel: Kernel, target: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
    """The index has the shape of the updates."""
    result = target.copy()
    np.put_along_axis(result, index, updates, kernel.attributes["axis"])
    return result


def _top(kernel: Kernel, x: np.ndarray, *_rest: Any) -> tuple[np.ndarray, np.ndarray]:
    count = kernel.outputs[0]["ori_shape"][-1]
    order = np.argsort(-wide(x), axis=-1, kind="stable")[..., :count]
    return np.take_along_axis(x, order, -1), order


def _sort(kernel: Kernel, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    axis = kernel.attributes.get("axis", -1)
    order = np.argsort(-wide(x) if kernel.attributes.get("descending") else x, axis=axis, kind="stable")
    return np.take_along_axis(x, order, axis), order


TABLE: dict[str, Callable[..., Any]] = {
    "gather_nd": _gather_nd,
    **both_forms(gather_v2=_gather, one_hot=_one_hot, unsorted_segment_sum=_segment_sums),
    **both_forms(scatter_nd=_scattered_sums),
    "scatter_add": _scattered_by(np.add, of_rows=True),
    "scatter_nd_add": _scattered_by(np.add),
    "scatter_nd_sub": _scattered_by(np.subtract),
    "scatter_nd_update": _scattered,
    "scatter_update": _scattered,
    "sort": _sort,
    **both_forms(top_k=_top),
}
AICPU: dict[str, Callable[..., Any]] = {
    "GatherD": _gather_along,
    "GatherDGrad": _gather_along_gradient,
    "GatherDGradV2": _gather_along_gradient,
    "GatherNd": _gather_nd,
    "ScatterElements": _scattered_elements,
    "ScatterNd": _scattered_sums,
    **dict.fromkeys(("ScatterNdUpdate", "TensorScatterUpdate"), _scattered),
}
