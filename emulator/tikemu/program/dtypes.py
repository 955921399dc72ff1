"""Define the ten data types of TIK, and the type of an expression."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

from .location import fail

BITS = {
    "uint8": 8,
    "int8": 8,
    "uint16": 16,
    "int16": 16,
    "float16": 16,
    "uint32": 32,
    "int32": 32,
    "float32": 32,
    "uint64": 64,
    "int64": 64,
}
INTEGERS = tuple(name for name in BITS if not name.startswith("float"))


_BYTES = {name: bits // 8 for name, bits in BITS.items()}
_FLOATS = frozenset(name for name in BITS if name.startswith("float"))


def size_of(dtype: str) -> int:
    """Return the size of an element in bytes."""
    return _BYTES[dtype]


def is_float(dtype: str) -> bool:
    return dtype in _FLOATS


def check_dtype(dtype: Any, what: str, allowed: Sequence[str] = tuple(BITS)) -> str:
    """Return ``dtype`` if it is one of ``allowed``. Raises TikParamError."""
    if not isinstance(dtype, str) or dtype not in allowed:
        fail(f"{what} must be one of {', '.join(allowed)}, got {dtype!r}")
    return dtype


@functools.cache
def limits(dtype: str) -> tuple[int, int]:
    """Return the smallest and largest value of an integer type."""
    if dtype.startswith("u"):
        return 0, (1 << BITS[dtype]) - 1
    half = 1 << (BITS[dtype] - 1)
    return -half, half - 1


@functools.cache
def promote(left: str, right: str) -> str:
    """Return an arithmetic expression's type by the rules of C: float over integer, the wider integer (at least 32
    bits), unsigned among equals. The type "bool" counts as int32.
    """
    floats = [dtype for dtype in (left, right) if is_float(dtype)]
    if floats:
        return "float32" if "float32" in floats else "float16"
    left, right = (dtype if dtype in BITS and BITS[dtype] >= 32 else "int32" for dtype in (left, right))
    if BITS[left] != BITS[right]:
        return left if BITS[left] > BITS[right] else right
    return left if left.startswith("u") else right


def of_immediate(value: float, other: str) -> str:
    """Return the type that an immediate has beside an operand of type ``other``."""
    if isinstance(value, float):
        return "float16" if other == "float16" else "float32"
    if is_float(other):
        return other
    for dtype in (promote(other, other), "int32", "int64"):
        low, high = limits(dtype)
        if low <= value <= high:
            return dtype
    return "uint64"
