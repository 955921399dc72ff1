"""The mask of vector instructions: which lanes of a repeat take part (vector.md 1.3)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, lru_cache
from typing import Any

import numpy as np

from ..errors import TikBoundsError
from ..program import ir
from ..program.dtypes import size_of
from ..program.nodes import as_integer
from .call import Call
from .params import COUNT_DTYPES, Param, describe

WORD = (1 << 64) - 1
#: Bits of the mask register.
REGISTER = 128


class Lanes:
    """The enabled lanes of a repeat.

    Attributes:
        bits: bit k is lane k.
        first: lowest enabled lane.
        extent: highest enabled lane + 1 (0: no lane).
        full: every lane below ``extent`` is enabled.
        runs: enabled lanes as ascending half-open runs.
    """

    def __init__(self, bits: int) -> None:
        self.bits = bits
        self.first = (bits & -bits).bit_length() - 1
        self.extent = bits.bit_length()
        self.full = bits == (1 << self.extent) - 1

    @property
    def scattered(self) -> bool:
        """Return whether lanes between enabled ones are off."""
        return self.bits != 0 and self.bits >> self.first != (1 << self.extent - self.first) - 1

    @cached_property
    def runs(self) -> tuple[tuple[int, int], ...]:
        if self.full:
            return ((0, self.extent),) if self.extent else ()
        edges = np.flatnonzero(np.diff(np.concatenate([[0], self.array.view(np.int8), [0]])))
        return tuple(zip(edges[0::2].tolist(), edges[1::2].tolist()))

    @cached_property
    def array(self) -> np.ndarray:
        """Return the mask as booleans, one entry per lane below ``extent``."""
        octets = np.frombuffer(self.bits.to_bytes((self.extent + 7) // 8, "little"), np.uint8)
        return np.unpackbits(octets, bitorder="little", count=self.extent).view(bool)

    @cached_property
    def padded(self) -> np.ndarray:
        """Return the mask as uint8 for 128 lanes, the form of the native helper."""
        result = np.zeros(128, np.uint8)
        result[: self.extent] = self.array
        return result

    @cached_property
    def padded_base(self) -> int:
        """Return the address of ``padded``."""
        return self.padded.ctypes.data

    @property
    def register(self) -> tuple[int, int]:
        """Return the two words of the mask register, high word first."""
        return (self.bits >> 64, self.bits & WORD)


@lru_cache(maxsize=1024)
def lanes(bits: int) -> Lanes:
    """Return the (shared) Lanes of a bit set."""
    return Lanes(bits)


def leading(count: int) -> Lanes:
    """Return the first ``count`` lanes."""
    return lanes((1 << count) - 1)


class Mask(Param):
    """``mask``: number of leading lanes, or ``[mask_h, mask_l]``; resolves to Lanes.

    Args:
        widest: tensor parameters whose widest dtype sets the number of lanes, 256 bytes a repeat.
    """

    def __init__(self, widest: Sequence[str] = ("dst",)) -> None:
        super().__init__("mask")
        self.widest = tuple(widest)

    def width(self, call: Call) -> int:
        """Return the lanes per repeat."""
        return 256 // max(size_of(call.args[name].dtype) for name in self.widest)

    def check(self, value: Any, call: Call) -> None:
        if isinstance(value, (list, tuple)):
            if len(value) != 2:
                call.fail(
                    f"{self.name} must be a number of lanes or a list [mask_h, mask_l], got a list of {len(value)}"
                )
            for label, word, limit in zip(("mask_h", "mask_l"), value, self._limits(call)):
                self._check_word(label, word, limit, call)
            if all(ir.is_immediate(word) and word == 0 for word in value):
                call.questionable("argument", f"{self.name} [0, 0] enables no lane")
        elif not ir.is_immediate(value):
            if value.dtype not in COUNT_DTYPES:
                call.fail(
                    f"{self.name} must be an int or a Scalar of {', '.join(COUNT_DTYPES)}, got one of {value.dtype}"
                )
        elif as_integer(value) is None:
            call.fail(f"{self.name} must be an integer or a list [mask_h, mask_l], got {describe(value)}")
        elif not 1 <= value <= self.width(call):
            call.fail_range(self.name, value, f"in [1, {self.width(call)}]")

    def resolve(self, value: Any, call: Call) -> Lanes:
        if isinstance(value, (list, tuple)):
            high, low = (int(word) & WORD for word in value)
            bits = high << 64 | low
        else:
            if not 0 <= value <= REGISTER:
                call.fail_range(self.name, value, f"in [0, {self.width(call)}]")
            bits = (1 << int(value)) - 1
        width = self.width(call)
        if bits >> width:
            call.questionable(
                "argument",
                f"{self.name} enables lanes above {width}, and a repeat has {width} lanes; the register's other bits "
                "have no effect",
                TikBoundsError,
            )
            bits &= (1 << width) - 1
        if bits == 0 and not call.context.static_arguments:  # an immediate was reported at the call
            call.questionable("argument", f"{self.name} enables no lane")
        return lanes(bits)

    def _limits(self, call: Call) -> tuple[int, int]:
        width = self.width(call)
        return (WORD if width == 128 else 0, WORD if width >= 64 else (1 << width) - 1)

    def _check_word(self, label: str, word: Any, limit: int, call: Call) -> None:
        if not ir.is_immediate(word):
            if np.dtype(word.dtype).kind not in "iu":
                call.fail(f"{label} must be an int or an integer Scalar, got one of {word.dtype}")
            return
        number = as_integer(word)
        if number is None:
            call.fail(f"{label} must be an integer, got {describe(word)}")
        elif not 0 <= number <= limit:
            call.fail_range(label, number, f"in [0, {limit:#x}] for {self.width(call)} lanes")
