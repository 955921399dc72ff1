"""Arithmetic of the vector unit on NumPy arrays: saturation, rounding, approximation tables, reduction trees.

Ascend 910 computes in saturation mode only. After every floating-point operation an infinity becomes the largest
number of the type and a NaN becomes 0 (D6 of the reference). float16 values are computed as float32 and rounded back.
For one operation this gives the correctly rounded float16 result (24 >= 2 * 11 + 2 bits). Subnormals are kept.

float16 arrays are handled by their bits (dtype uint16). A table of 65536 entries widens them. Every function of one
float16 argument is such a table too.

Callers wrap execution in ``np.errstate(all="ignore")``.
"""

from __future__ import annotations

import threading
from functools import cache
from typing import Any, Callable

import numpy as np

HALF_MAX = 65504.0
#: Rounds to an infinity of float16.
HALF_OVERFLOW = 65520.0
_HALF_INFINITY = np.uint16(0x7C00)
FLOAT_MAX = float(np.finfo(np.float32).max)
_ZEROS = np.zeros(1 << 16, np.float32)
_HALF_VALUES = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


# ------------------------------------------------------------------------------------------- overflow status
class _Saturated(threading.local):
    """Hold what saturated since the list was cleared: arrays of truth values, or True."""

    def __init__(self) -> None:
        self.found: list[Any] = []


_saturated = _Saturated()


class Status:
    """The overflow status of one prepared operation: ``overflow`` counts its executions in which a result saturated."""

    __slots__ = ("overflow",)

    def __init__(self) -> None:
        self.overflow = 0


def note_saturated(where: Any) -> None:
    """Say that results saturated: an array with True in their places, or True."""
    _saturated.found.append(where)


def any_saturated() -> bool:
    """Return whether anything was noted since a watched function began."""
    return bool(_saturated.found)


def watched(run: Callable[[], None], select: Callable[[np.ndarray], np.ndarray] | None = None) -> Callable[[], None]:
    """Return ``run`` wrapped so that it keeps the overflow status (D34) in its attribute ``status``.

    Args:
        run: calls functions of this module on computed values.
        select: ``f(where)`` gives the places that count, such as the enabled lanes. Default: all.
    """
    status = Status()

    def watched_run() -> None:
        found = _saturated.found
        found.clear()
        run()
        if found:
            status.overflow += any(
                where is True or bool((where if select is None else select(where)).any()) for where in found
            )

    result: Any = watched_run
    result.status = status
    return result


# ------------------------------------------------------------------------------------------- float16, saturation
def widen(bits: np.ndarray) -> np.ndarray:
    """Convert float16 bits (uint16) to float32."""
    return _HALF_VALUES.take(bits)


def _finite(x: np.ndarray) -> bool:
    """Return whether a contiguous float32 array is free of infinity and NaN. 0 times either is NaN."""
    flat = x.reshape(-1)
    return all(
        np.dot(flat[i : i + _ZEROS.size], _ZEROS[: flat[i : i + _ZEROS.size].size]) == 0
        for i in range(0, flat.size, _ZEROS.size)
    )


def saturate(x: np.ndarray) -> np.ndarray:
    """Saturate a contiguous float32 array in place: ±inf -> ±max, NaN -> 0."""
    if not _finite(x):
        note_saturated(~np.isfinite(x))
        np.nan_to_num(x, copy=False, nan=0.0, posinf=FLOAT_MAX, neginf=-FLOAT_MAX)
    return x


def narrow(x: np.ndarray) -> np.ndarray:
    """Convert contiguous float32 to float16 bits: round to nearest even, saturating, NaN -> 0."""
    bits = x.astype(np.float16).view(np.uint16)
    top = bits & _HALF_INFINITY
    if top.max(initial=0) == _HALF_INFINITY:
        note_saturated(top == _HALF_INFINITY)
        limited = np.minimum(x, HALF_MAX)
        np.maximum(limited, -HALF_MAX, out=limited)
        if not _finite(limited):
            limited[np.isnan(limited)] = 0
        bits = limited.astype(np.float16).view(np.uint16)
    return bits


def round_half(x: np.ndarray) -> np.ndarray:
    """Round float32 values to float16 and back, saturating."""
    return widen(narrow(x))


def scalar(value: Any, dtype: str) -> Any:
    """Convert a Python number to a NumPy scalar of ``dtype``.

    Floats round to nearest even, and finite numbers saturate. Infinities and NaN keep their pattern. Integers wrap.
    """
    kind = np.dtype(dtype)
    if kind.kind == "f":
        with np.errstate(all="ignore"):
            # An integer of 64 bits is rounded once, not by way of a float64.
            number = kind.type(value) if type(value) is not int else np.array(value).astype(kind)[()]
        if np.isinf(number) and not np.isinf(value):
            number = np.copysign(np.finfo(kind).max, number)
        return number
    bits = 8 * kind.itemsize
    wrapped = int(value) & ((1 << bits) - 1)
    return kind.type(wrapped - (1 << bits) if kind.kind == "i" and wrapped >> (bits - 1) else wrapped)


# ------------------------------------------------------------------------------------------- approximation tables
@cache
def reciprocal_table() -> np.ndarray:
    """Return the 256 significands of ``vec_rec`` (D9).

    Each is 1/midpoint of its interval with 9 significant bits, a float32 in (0.5, 1).
    """
    return (np.rint(512.0 / (1.0 + (np.arange(256) + 0.5) / 256.0)) / 512.0).astype(np.float32)


@cache
def rsqrt_table() -> np.ndarray:
    """Return the 256 significands of ``vec_rsqrt`` (D8).

    The index is 128 * (exponent mod 2) + 7 leading mantissa bits. Each significand is the reciprocal square root of the
    interval's midpoint with 9 significant bits, a float32 in (0.5, 1).
    """
    midpoints = 1.0 + (np.arange(128) + 0.5) / 128.0
    return (np.rint(512.0 / np.sqrt(np.concatenate([midpoints, 2.0 * midpoints]))) / 512.0).astype(np.float32)


def _split(x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the mantissa (23 bits of 1.f) and exponent of |x| for finite non-zero x. Subnormals are normalised."""
    fraction, exponent = np.frexp(np.abs(x))
    bits = (fraction * np.float32(2.0)).view(np.uint32) & 0x7FFFFF
    return bits, exponent - 1


def reciprocal(x: np.ndarray) -> np.ndarray:
    """Compute ``vec_rec`` on float32: table look-up; ±0 -> ±inf, ±inf -> ±0, NaN -> NaN (before saturation)."""
    bits, exponent = _split(x)
    result = np.copysign(np.ldexp(reciprocal_table()[bits >> 15], -exponent), x)
    return _special(result, x, np.float32(1) / x)


def rsqrt(x: np.ndarray) -> np.ndarray:
    """Compute ``vec_rsqrt`` on float32: table look-up; ±0 -> ±inf, negative -> NaN, inf -> 0 (before saturation)."""
    bits, exponent = _split(x)
    parity = exponent & 1
    result = np.ldexp(rsqrt_table()[(parity << 7) + (bits >> 16).astype(np.int32)], -((exponent - parity) >> 1))
    return _special(np.where(x < 0, np.float32(np.nan), result), x, np.float32(1) / np.sqrt(x))


def _special(result: np.ndarray, x: np.ndarray, ieee: np.ndarray) -> np.ndarray:
    """Return ``result`` where x is finite and not 0, the IEEE value elsewhere."""
    return np.where(np.isfinite(x) & (x != 0), result, ieee).astype(np.float32, copy=False)


# ------------------------------------------------------------------------------------------- functions of one argument
def _rounded_once(function: Callable[[np.ndarray], np.ndarray]) -> Callable[..., np.ndarray]:
    """Return ``function`` computed in float64 and rounded once to the caller's dtype (D10a)."""

    def rounded(x: np.ndarray, dtype: Any = np.float32) -> np.ndarray:
        return function(x.astype(np.float64)).astype(dtype)

    return rounded


# name -> function on float32 arrays before saturation. Functions in ROUNDED_ONCE take the target dtype.
ROUNDED_ONCE = {
    "exp": _rounded_once(np.exp),
    "ln": _rounded_once(np.log),
    "rec_high_preci": _rounded_once(np.reciprocal),
    "rsqrt_high_preci": _rounded_once(lambda x: 1.0 / np.sqrt(x)),
    "ln_high_preci": _rounded_once(np.log),
    "expm1_high_preci": _rounded_once(np.expm1),
}
UNARY: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "abs": np.abs,
    "relu": lambda x: np.where((x >= 0) | np.isnan(x), x, np.float32(0)),
    "sqrt": np.sqrt,
    "rec": reciprocal,
    "rsqrt": rsqrt,
    **ROUNDED_ONCE,
}


@cache
def half_table(name: str) -> np.ndarray:
    """Make a table of a unary function on all float16 values, as saturated bits. Bit 16 (uint32) marks a result that
    saturated.
    """
    with np.errstate(all="ignore"):
        if name in ROUNDED_ONCE:
            result = ROUNDED_ONCE[name](_HALF_VALUES, np.float16).astype(np.float32)
        else:
            result = UNARY[name](_HALF_VALUES)
        overflows = ~(np.abs(result) < HALF_OVERFLOW)
        return narrow(result).astype(np.uint32) | overflows.astype(np.uint32) << np.uint32(16)


def look_up(table: np.ndarray) -> Callable[[np.ndarray], np.ndarray]:
    """Return ``f(bits)``, which looks up results in a ``half_table``."""

    def function(bits: np.ndarray) -> np.ndarray:
        entries = table.take(bits)
        if entries.max(initial=0) > 0xFFFF:
            note_saturated(entries > 0xFFFF)
        return entries.astype(np.uint16)

    return function


# Inputs for which a function is not specified (D10c): reported in strict mode.
UNSPECIFIED: dict[str, tuple[str, Callable[[np.ndarray], np.ndarray]]] = {
    "rec": ("0", lambda x: x == 0),
    "rec_high_preci": ("0", lambda x: x == 0),
    "rsqrt": ("a number <= 0", lambda x: x <= 0),
    "rsqrt_high_preci": ("a number <= 0", lambda x: x <= 0),
    "sqrt": ("a negative number", lambda x: x < 0),
    "ln": ("a number <= 0", lambda x: x <= 0),
    "ln_high_preci": ("a number <= 0", lambda x: x <= 0),
    "div": ("a divisor of 0", lambda x: x == 0),
}


# ------------------------------------------------------------------------------------------- functions of two arguments
def maximum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the larger of two numbers: ``a`` if they are equal (D12c), NaN if either is NaN."""
    return np.where((a >= b) | np.isnan(a), a, b)


def minimum(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the smaller of two numbers: ``a`` if they are equal (D12c), NaN if either is NaN."""
    return np.where((a <= b) | np.isnan(a), a, b)


BINARY: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "div": np.divide,
    "max": maximum,
    "min": minimum,
}
BITWISE: dict[str, Callable[..., np.ndarray]] = {"and": np.bitwise_and, "or": np.bitwise_or}
INTEGER: dict[str, Callable[..., np.ndarray]] = {
    "add": np.add,
    "sub": np.subtract,
    "mul": np.multiply,
    "max": np.maximum,
    "min": np.minimum,
}


# ------------------------------------------------------------------------------------------- conversions
ROUNDING: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "round": np.rint,
    "floor": np.floor,
    "ceil": np.ceil,
    "away-zero": lambda x: np.trunc(x + np.copysign(0.5, x)),
    "to-zero": np.trunc,
}


def to_integer(x: np.ndarray, mode: str, dtype: str) -> np.ndarray:
    """Convert floating point to integer: rounded by ``mode``, saturating, NaN -> 0."""
    limits = np.iinfo(dtype)
    rounded = ROUNDING[mode](x.astype(np.float64))
    inside = (rounded >= limits.min) & (rounded <= limits.max)
    if not inside.all():
        note_saturated(~inside)
        rounded = np.where(np.isnan(rounded), 0, np.clip(rounded, limits.min, limits.max))
    return rounded.astype(dtype)


def to_half_odd(x: np.ndarray) -> np.ndarray:
    """Convert float32 to float16 bits, rounding to odd: an inexact result is truncated and gets an odd last bit.
    Saturating.
    """
    _note_large(x)
    x = np.nan_to_num(x, nan=0.0, posinf=HALF_MAX, neginf=-HALF_MAX)
    x = np.clip(x, -HALF_MAX, HALF_MAX)
    nearest = x.astype(np.float16)
    bits = nearest.view(np.uint16)
    value = _HALF_VALUES[bits]
    truncated = np.where(np.abs(value) > np.abs(x), bits - np.uint16(1), bits)
    return np.where(value == x, bits, truncated | np.uint16(1)).astype(np.uint16)


def _note_large(x: np.ndarray) -> None:
    """Note the numbers that no float16 is near."""
    inside = np.abs(x) < HALF_OVERFLOW
    if not inside.all():
        note_saturated(~inside)


def dequantise(x: np.ndarray, factor: float) -> np.ndarray:
    """Convert int32 to float16 bits with a factor: float64 product, one rounding to nearest even, saturating (D15b)."""
    product = x.astype(np.float64) * float(factor)
    _note_large(product)
    product = np.where(np.isnan(product), 0.0, np.clip(product, -HALF_MAX, HALF_MAX))
    return product.astype(np.float16).view(np.uint16)


# ------------------------------------------------------------------------------------------- reductions
def tree_sum(x: np.ndarray, levels: int, half: bool) -> np.ndarray:
    """Sum adjacent pairs along the last axis ``levels`` times; round every node (D11a).

    Args:
        x: float32 values, last axis a multiple of ``2**levels`` long.
        half: round every node to float16.
    """
    for _ in range(levels):
        x = x[..., 0::2] + x[..., 1::2]
        x = round_half(x) if half else saturate(x)
    return x
