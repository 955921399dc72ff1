"""Numbers and memory of the naive interpreter: Python ints and floats, rounded by ``struct``, in bytearrays."""

from __future__ import annotations

import math
import operator
import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

CODES = {
    "int8": "b",
    "uint8": "B",
    "int16": "h",
    "uint16": "H",
    "int32": "i",
    "uint32": "I",
    "int64": "q",
    "uint64": "Q",
    "float16": "e",
    "float32": "f",
}

#: The overflow status (D34): ``saturated`` is set when a result leaves its type.
STATUS = SimpleNamespace(saturated=False)

LARGEST = {"float16": 65504.0, "float32": struct.unpack("<f", b"\xff\xff\x7f\x7f")[0]}
OVERFLOW = 65520.0  # rounds to an infinity of float16


def size_of(dtype: str) -> int:
    """Return the size of an element in bytes."""
    return struct.calcsize(CODES[dtype])


def stored(value: Any, dtype: str) -> Any:
    """Return a result as ``dtype`` holds it: floats rounded to nearest even and saturated, integers wrapped."""
    if dtype in LARGEST:
        try:
            rounded = struct.unpack(CODES[dtype], struct.pack(CODES[dtype], value))[0]
        except OverflowError:
            rounded = math.inf
        if math.isfinite(rounded):
            return rounded
        STATUS.saturated = True
        return 0.0 if math.isnan(value) else math.copysign(LARGEST[dtype], value)
    bits = 8 * size_of(dtype)
    value = int(value) & ((1 << bits) - 1)
    return value - (1 << bits) if CODES[dtype].islower() and value >> (bits - 1) else value


class Bytes(bytearray):
    """The bytes of a memory.

    Attributes:
        kind: of the memory.
        read, written: a mark for each byte that instructions touched.
    """

    def __init__(self, content: Any, kind: str) -> None:
        super().__init__(content)
        self.kind = kind
        self.read, self.written = bytearray(len(self)), bytearray(len(self))


class Pointer:
    """A place in a tensor's bytes."""

    def __init__(self, data: Bytes, address: int, dtype: str) -> None:
        self.data, self.address, self.dtype = data, address, dtype
        self.size = size_of(dtype)

    def at(self, offset: int, dtype: str | None = None) -> Pointer:
        return Pointer(self.data, self.address + offset, dtype or self.dtype)

    def lane(self, repeat: int, lane: int, rep: int, blk: int = 1) -> Pointer:
        """Return the place of element ``lane`` of a repeat. Strides are in blocks of 32 bytes."""
        per_block = 32 // self.size
        return self.at(32 * (repeat * rep + lane // per_block * blk) + lane % per_block * self.size)

    def get(self) -> Any:
        return struct.unpack(CODES[self.dtype], self.load(self.size))[0]

    def put(self, value: Any) -> None:
        self.store(struct.pack(CODES[self.dtype], stored(value, self.dtype)))

    def load(self, count: int) -> bytes:
        """Return raw bytes."""
        self.data.read[self.address : self.address + count] = b"\1" * count
        return bytes(self.data[self.address : self.address + count])

    def store(self, content: bytes) -> None:
        """Set raw bytes: bit patterns are kept."""
        self.data.written[self.address : self.address + len(content)] = b"\1" * len(content)
        self.data[self.address : self.address + len(content)] = content


def divide(x: float, y: float) -> float:
    """Divide as IEEE does, also by zero, which Python refuses."""
    if y == 0:
        return math.nan if x == 0 or math.isnan(x) else math.copysign(math.inf, x) * math.copysign(1.0, y)
    return x / y


def quotient(x: Any, y: Any) -> Any:
    """Divide as C does: integers towards zero, floats as IEEE does."""
    if isinstance(x, float) or isinstance(y, float):
        return divide(x, y)
    return abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


#: Operators of expressions, before a result is brought to its type.
OPERATORS = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": quotient,
    "%": lambda x, y: x - quotient(x, y) * y,
    "&": operator.and_,
    "|": operator.or_,
    "<<": operator.lshift,
    ">>": operator.rshift,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "not": operator.not_,
    "all": lambda *values: all(values),
    "any": lambda *values: any(values),
}


def exponential(x: float, function: Callable[[float], float] = math.exp) -> float:
    """Compute ``exp`` (or ``expm1``), which overflows to infinity."""
    try:
        return function(x)
    except OverflowError:
        return math.inf


def logarithm(x: float) -> float:
    """Compute ``log``, of zero and of negative numbers as IEEE has it."""
    return -math.inf if x == 0 else math.nan if math.isnan(x) or x < 0 else math.log(x)


def square_root(x: float) -> float:
    """Compute ``sqrt``, NaN for negative numbers."""
    return math.nan if x < 0 else math.sqrt(x)


def table_value(x: float, entries: int, function: Callable[[float], float]) -> float:
    """Look up the value of an approximation unit: the function at the middle of the interval, to 9 significant bits."""
    mantissa, exponent = math.frexp(function(math.floor(x * entries) / entries + 0.5 / entries))
    return math.ldexp(round(mantissa * 512), exponent - 9)


def reciprocal(x: float) -> float:
    """Return the table's value for the mantissa."""
    if math.isnan(x) or x == 0 or math.isinf(x):
        return divide(1.0, x)
    mantissa, exponent = math.frexp(abs(x))  # abs(x) = (2 * mantissa) * 2^(exponent - 1)
    return math.copysign(math.ldexp(table_value(2 * mantissa, 256, lambda f: 1 / f), 1 - exponent), x)


def reciprocal_root(x: float) -> float:
    """Return the table's value for the mantissa and the parity of the exponent."""
    if math.isnan(x) or x <= 0 or math.isinf(x):
        return divide(1.0, square_root(x))
    mantissa, exponent = math.frexp(x)
    fraction, exponent = 2 * mantissa, exponent - 1
    parity = exponent % 2
    value = table_value(fraction, 128, lambda f: 1 / math.sqrt(2**parity * f))
    return math.ldexp(value, -(exponent - parity) // 2)


def largest(x: Any, y: Any) -> Any:
    """Return the maximum, NaN if one of the two is."""
    return math.nan if x != x or y != y else y if y > x else x


def smallest(x: Any, y: Any) -> Any:
    """Return the minimum, NaN if one of the two is."""
    return math.nan if x != x or y != y else y if y < x else x


ONE = {
    "abs": abs,
    "relu": lambda x: 0 if x < 0 else x,
    "exp": exponential,
    "ln": logarithm,
    "sqrt": square_root,
    "rec": reciprocal,
    "rsqrt": reciprocal_root,
    "not": operator.invert,
    "rec_high_preci": lambda x: divide(1.0, x),
    "rsqrt_high_preci": lambda x: divide(1.0, square_root(x)),
    "ln_high_preci": logarithm,
    "expm1_high_preci": lambda x: exponential(x, math.expm1),
}

TWO = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "max": largest,
    "min": smallest,
    "and": operator.and_,
    "or": operator.or_,
    "div": divide,
    "shl": operator.lshift,
    "shr": operator.rshift,
}

COMPARE = {name: getattr(operator, name) for name in ("lt", "gt", "ge", "le", "eq", "ne")}


def tree(values: list, dtype: str) -> Any:
    """Sum adjacent pairs as a tree, every node rounded."""
    while len(values) > 1:
        values = [stored(values[i] + values[i + 1], dtype) for i in range(0, len(values), 2)]
    return values[0]


def sums_of_groups(values: list, width: int, dtype: str) -> Any:
    """Sum groups of ``width`` values as trees, then their sums, until one value is left."""
    while len(values) > 1:
        groups = [values[i : i + width] for i in range(0, len(values), width)]
        values = [tree(part + [0] * (width - len(part)), dtype) for part in groups]
    return values[0]


def to_odd(x: float) -> float:
    """Round ``x`` to odd: towards zero in float16, with the last bit set if inexact."""
    if not abs(x) < OVERFLOW:
        STATUS.saturated = True
    if math.isnan(x):
        return 0.0
    magnitude = min(abs(x), LARGEST["float16"])
    bits = struct.unpack("<H", struct.pack("<e", magnitude))[0]
    bits -= struct.unpack("<e", struct.pack("<H", bits))[0] > magnitude
    bits |= struct.unpack("<e", struct.pack("<H", bits))[0] != magnitude
    return math.copysign(struct.unpack("<e", struct.pack("<H", bits))[0], x)


def to_integer(x: float, mode: str, dtype: str) -> int:
    """Round by mode with saturation; NaN gives 0."""
    low, high = (0, 255) if dtype == "uint8" else (-128, 127) if dtype == "int8" else (-(1 << 31), (1 << 31) - 1)
    if not math.isfinite(x):
        STATUS.saturated = True
        return 0 if math.isnan(x) else high if x > 0 else low
    rounded = {
        "floor": math.floor,
        "ceil": math.ceil,
        "ceiling": math.ceil,
        "to-zero": math.trunc,
        "away-zero": lambda v: int(math.copysign(math.floor(abs(v) + 0.5), v)),
    }.get(mode, round)(x)
    return limited(rounded, low, high)


def limited(value: int, low: int, high: int) -> int:
    """Return the number, or the nearest border of its type."""
    if not low <= value <= high:
        STATUS.saturated = True
    return min(max(value, low), high)
