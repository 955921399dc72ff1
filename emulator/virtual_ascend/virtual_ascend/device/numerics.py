"""Arithmetic of built-in operators: float16 is computed in float32 and rounded once.

The real operators also round in between, as their instructions do; nobody published at which steps.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

FLOAT16_MAX = 65504.0
#: From here on a number is nearer to the next power of two than to the largest float16.
ROUNDED_UP = 65520.0


class OverflowStatus:
    """The card's flag that a result was not representable: set by any kernel, read and cleared by operators."""

    def __init__(self) -> None:
        self.is_set = False


#: One card, one flag.
STATUS = OverflowStatus()


def wide(array: np.ndarray) -> np.ndarray:
    """Convert float16 to float32; leave anything else as it is."""
    return array.astype(np.float32) if array.dtype == np.float16 else array


def listed(arrays: Sequence[Any]) -> list[np.ndarray]:
    """Return a list of tensors. It comes as one parameter, or as several if an operator is called by name."""
    return list(arrays[0]) if len(arrays) == 1 and isinstance(arrays[0], list) else list(arrays)


def convert(array: np.ndarray, dtype: np.dtype) -> np.ndarray:
    """Return a result in the dtype that is stored.

    As on the first 910, float16 saturates, and NaN becomes 0. A finite number that is too large for float16 sets the
    overflow status.
    """
    if dtype == np.float16 and array.dtype.kind == "f" and array.dtype != dtype:
        size = np.abs(array)
        STATUS.is_set |= bool((np.isfinite(array) & (size >= ROUNDED_UP)).any())
        if not (size <= FLOAT16_MAX).all():
            array = np.clip(np.where(np.isnan(array), 0, array), -FLOAT16_MAX, FLOAT16_MAX)
    return array.astype(dtype, copy=False)


def notice_overflow(results: Sequence[np.ndarray], inputs: Sequence[np.ndarray]) -> None:
    """Set the overflow status if finite inputs give results that are not finite. Infinities may be moved about."""
    if not all(map(_finite, results)) and all(map(_finite, inputs)):
        STATUS.is_set = True


def _finite(array: np.ndarray) -> bool:
    return array.dtype.kind != "f" or bool(np.isfinite(array).all())
