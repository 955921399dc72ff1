"""Sums, products and extremes over segments, to which an index assigns the rows of a tensor in any order."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...kernel import Kernel
from ..by_name import both_forms
from ..numerics import wide


def _over_segments(combine: np.ufunc, start: Callable[[np.dtype], Any]) -> Callable[..., Any]:
    """A segment without rows holds what `start` gives for the dtype."""

    def operator(kernel: Kernel, x: np.ndarray, index: np.ndarray, *_count: np.ndarray) -> np.ndarray:
        rest = x.shape[index.ndim :]
        result = np.full(kernel.outputs[0]["ori_shape"], start(x.dtype), wide(x).dtype)
        flat = index.reshape(-1)
        keep = flat >= 0  # a negative number belongs to no segment
        combine.at(result, flat[keep], wide(x).reshape(-1, *rest)[keep])
        return result

    return operator


def _lowest(dtype: np.dtype) -> Any:
    return (np.finfo if dtype.kind == "f" else np.iinfo)(dtype).min


def _highest(dtype: np.dtype) -> Any:
    return (np.finfo if dtype.kind == "f" else np.iinfo)(dtype).max


TABLE: dict[str, Callable[..., Any]] = both_forms(
    unsorted_segment_max=_over_segments(np.maximum, _lowest),
    unsorted_segment_min=_over_segments(np.minimum, _highest),
    unsorted_segment_prod=_over_segments(np.multiply, lambda _dtype: 1),
    unsorted_segment_sum=_over_segments(np.add, lambda _dtype: 0),
)
