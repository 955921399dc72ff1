"""Arithmetic of built-in operators: float16 is computed in float32 and rounded once.

The real operators round in between as their instructions do; nobody published where.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

FLOAT16_MAX = 65504.0


class OverflowStatus:
    """The card's flag that a result was not representable: set by any kernel, read and cleared by operators."""

    def __init__(self) -> None:
        self.is_set = False


#: One card, one flag.
STATUS = OverflowStatus()


def wide(array: np.ndarray) -> np.ndarray:
    """float16 as float32; anything else as it is."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def listed(arrays: Sequence[Any]) -> list[np.ndarray]:
    """A list of tensors, which comes as one parameter or, of an operator asked for by name, as several."""
    return list(arrays[0]) if len(arrays) == 1 and isinstance(arrays[0], list) else list(arrays)


def convert(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """A result in the dtype that is stored.

    As the first 910 does it, float16 saturates (and NaN becomes 0); what is not representable sets the overflow status.
    """
    if array.dtype.kind == "f" and dtype.kind in "fiu":
        finite = np.isfinite(array).all()
        if dtype == np.float16 and array.dtype != np.float16:
            finite = finite and np.abs(array).max(initial=0) < FLOAT16_MAX + 16
            if not finite:
                array = np.clip(np.nan_to_num(array, nan=0.0, posinf=np.inf, neginf=-np.inf), -FLOAT16_MAX, FLOAT16_MAX)
        STATUS.is_set |= not finite
    return array.astype(dtype, copy=False)
