"""Arithmetic of the scalar unit, as the compiled program calls it (tik/README.md D5).

Integers are Python integers inside the range of their type, floats are Python floats that float32 (or float16)
represents exactly.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NoReturn

import numpy as np

from ..errors import TikBoundsError, TikUndefinedError
from ..program.dtypes import limits

F16_MAX = 65504.0


def divide(dividend: int, divisor: int) -> int:
    """Divide integers, truncating toward zero (D5b)."""
    if divisor == 0:
        raise TikBoundsError(f"integer division of {dividend} by zero")
    quotient = abs(dividend) // abs(divisor)
    return quotient if (dividend < 0) == (divisor < 0) else -quotient


def remainder(dividend: int, divisor: int) -> int:
    """Compute the remainder with the sign of the dividend (D5b)."""
    if divisor == 0:
        raise TikBoundsError(f"remainder of {dividend} by zero")
    rest = abs(dividend) % abs(divisor)
    return rest if dividend >= 0 else -rest


def shift_count(count: int, bits: int) -> int:
    """Return a shift count, checked against the width of the shifted type."""
    if not 0 <= count < bits:
        raise TikBoundsError(f"the shift count must be in [0, {bits - 1}], got {count}")
    return count


def pick(values: Sequence, index: int) -> Any:
    """Return the element of a ScalarArray at a run-time index."""
    if not 0 <= index < len(values):
        raise TikBoundsError(f"index {index} is out of range for a ScalarArray of length {len(values)}")
    return values[index]


def round_f32(value: float) -> float:
    """Return the nearest float32, ties to even; infinities and NaN stay (D5e)."""
    return float(np.float32(value))


def round_f16(value: float) -> float:
    """Return the nearest float16, ties to even, saturating (D5c); NaN stays."""
    if value != value:
        return value
    return max(-F16_MAX, min(F16_MAX, float(np.float16(value))))


def true_divide(dividend: float, divisor: float) -> float:
    """Return the IEEE quotient before rounding to the type."""
    try:
        return dividend / divisor
    except ZeroDivisionError:
        if dividend == 0 or dividend != dividend:
            return math.nan
        return math.copysign(math.inf, dividend) * math.copysign(1.0, divisor)


def int_to_f32(value: int) -> float:
    """Return the nearest float32 of an integer, one rounding."""
    if -(1 << 53) <= value <= 1 << 53:
        return float(np.float32(value))
    return float((np.int64 if value < 1 << 63 else np.uint64)(value).astype(np.float32))


def int_to_f16(value: int) -> float:
    """Return the nearest float16 of an integer, saturating."""
    return round_f16(float(max(-(1 << 20), min(1 << 20, value))))


def float_to_int(value: float, dtype: str) -> int:
    """Truncate toward zero, saturating (D5c); NaN gives 0."""
    low, high = limits(dtype)
    if value != value:
        return 0
    if math.isinf(value):
        return high if value > 0 else low
    return max(low, min(high, math.trunc(value)))


class Undefined:
    """Strict mode: the value of a Scalar that nothing has assigned. Every use raises TikUndefinedError."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def _used(self, *_: Any) -> NoReturn:
        raise TikUndefinedError(f"Scalar {self.name!r} is used before anything has been assigned to it")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _used
    __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __and__ = __rand__ = __or__ = __ror__ = _used
    __lshift__ = __rlshift__ = __rshift__ = __rrshift__ = __neg__ = __abs__ = _used
    __lt__ = __le__ = __gt__ = __ge__ = __eq__ = __ne__ = __hash__ = __bool__ = _used
    __int__ = __float__ = __index__ = __trunc__ = _used
