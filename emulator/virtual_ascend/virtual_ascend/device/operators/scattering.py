"""Scattering by index: what stands at a place is replaced by, or combined with, an update."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..by_name import both_forms
from ..numerics import wide
from .elementwise import truncated_division


def places_of(index: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the index as a tuple: its last axis names a place."""
    return tuple(np.moveaxis(index, -1, 0))


def _rows(index: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the index of rows, which has no axis for the place."""
    return (index,)


Places = Callable[[np.ndarray], "tuple[np.ndarray, ...]"]


def _replaced(places: Places) -> Callable[..., Any]:
    def operator(_kernel: OperatorCall, target: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
        result = target.copy()
        result[places(index)] = updates
        return result

    return operator


def _updated(kernel: OperatorCall, *arrays: np.ndarray) -> np.ndarray:
    """Replace elements, for CANN's entry of two operators: rows of a parameter, or places of a tensor."""
    return _replaced(places_of if kernel.type.startswith("TensorScatter") else _rows)(kernel, *arrays)


def _combined(combine: np.ufunc, places: Places) -> Callable[..., Any]:
    """Combine updates with the elements at their places."""

    def operator(_kernel: OperatorCall, target: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
        result = wide(target).copy()
        combine.at(result, places(index), wide(updates))
        return result

    return operator


def _in_place(combine: np.ufunc) -> Callable[..., Any]:
    """Update the parameter in place. MindSpore takes nothing from the output of the AI CPU."""

    def operator(kernel: OperatorCall, target: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
        combine.at(target, places_of(index), updates)
        return target

    return operator


def _divided(_kernel: OperatorCall, target: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
    """Divide row by row, since a row may be divided several times."""
    result = wide(target).copy()
    rest = result.shape[1:]
    for row, update in zip(index.reshape(-1), wide(updates).reshape(-1, *rest)):
        result[row] = truncated_division(result[row], update)
    return result


def _scattered_sums(kernel: OperatorCall, index: np.ndarray, updates: np.ndarray, *_shape: np.ndarray) -> np.ndarray:
    """Compute ScatterNd: into zeros."""
    result = np.zeros(kernel.outputs[0]["ori_shape"], wide(updates).dtype)
    np.add.at(result, places_of(index), wide(updates))
    return result


def _elements(kernel: OperatorCall, target: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
    """Scatter by an index that has the shape of the updates."""
    result = target.copy()
    np.put_along_axis(result, index, updates, kernel.attributes["axis"])
    return result


def _in_rows(combine: Callable[..., Any]) -> Callable[..., Any]:
    """Return an operator that combines the rows that an attribute names, each of them once."""

    def operator(kernel: OperatorCall, target: np.ndarray, updates: np.ndarray) -> np.ndarray:
        rows = kernel.attributes["indices"]
        result = wide(target).copy()
        result[rows] = combine(result[rows], wide(updates))
        return result

    return operator


_COMBINED: dict[str, np.ufunc] = {
    "add": np.add,
    "max": np.maximum,
    "min": np.minimum,
    "mul": np.multiply,
    "sub": np.subtract,
}


def _sums_of_segments(kernel: OperatorCall, x: np.ndarray, index: np.ndarray, *_count: np.ndarray) -> np.ndarray:
    """Add rows to the segments that an index names. A negative number belongs to no segment."""
    result = np.zeros(kernel.outputs[0]["ori_shape"], wide(x).dtype)
    keep = index.reshape(-1) >= 0
    np.add.at(result, index.reshape(-1)[keep], wide(x).reshape(-1, *x.shape[index.ndim :])[keep])
    return result


TABLE: dict[str, Callable[..., Any]] = {
    "inplace_add_d": _in_rows(np.add),
    "inplace_sub_d": _in_rows(np.subtract),
    **{f"scatter_{name}": _combined(combine, _rows) for name, combine in _COMBINED.items()},
    "scatter_div": _divided,
    **both_forms(scatter_nd=_scattered_sums, unsorted_segment_sum=_sums_of_segments),
    **dict.fromkeys(("scatter_nd_add", "scatter_non_aliasing_add"), _combined(np.add, places_of)),
    "scatter_nd_sub": _combined(np.subtract, places_of),
    "scatter_nd_update": _replaced(places_of),
    "scatter_update": _updated,
}
AICPU: dict[str, Callable[..., Any]] = {
    "ScatterElements": _elements,
    "ScatterNd": _scattered_sums,
    "ScatterNdMax": _in_place(np.maximum),
    "ScatterNdMin": _in_place(np.minimum),
    **dict.fromkeys(("ScatterNdUpdate", "TensorScatterUpdate"), _replaced(places_of)),
}
