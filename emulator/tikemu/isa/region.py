"""Memories and exact byte footprints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Callable

import numpy as np

Piece = tuple[int, int, int, int, int, int]


class Memory:
    """A byte-addressed memory: one on-chip buffer of one core, or one GM tensor.

    Attributes:
        kind: "GM", "UB", "L1", "L0A", "L0B" or "L0C".
        name: buffer or tensor name, for messages.
        data: uint8 array; ``base`` is the address of its first byte in this process.
        defined: uint8 array of the same length, 1 where a byte holds written data; None when not tracked.
            ``defined_base`` is the address of its first byte in this process.
    """

    __slots__ = ("kind", "name", "data", "base", "defined", "defined_base")

    def __init__(self, kind: str, name: str, size: int, track: bool) -> None:
        self.kind = kind
        self.name = name
        self.place(np.zeros(size, np.uint8), np.zeros(size, np.uint8) if track else None)

    def place(self, data: np.ndarray, defined: np.ndarray | None) -> None:
        """Set the arrays. Nothing may refer to the earlier ones."""
        self.data, self.defined = data, defined
        self.base: int = data.ctypes.data
        self.defined_base: int = 0 if defined is None else defined.ctypes.data

    def view(self, dtype: str, address: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> np.ndarray:
        """Return a NumPy window on the bytes: ``address`` and ``strides`` in bytes. Raises ValueError outside the
        memory.
        """
        return np.ndarray(shape, dtype, self.data, address, strides)


class Region:
    """A set of bytes of one memory, made of regular pieces: ``n0`` rows ``s0`` bytes apart, each of ``n1`` pieces
    ``s1`` bytes apart, each piece ``width`` bytes long.

    Attributes:
        memory: the memory.
        pieces: tuples ``(base, n0, s0, n1, s1, width)``; at least one.
        start, end: the smallest span that holds every byte.
    """

    __slots__ = ("memory", "start", "end", "_pieces", "_source")

    _source: Callable[[], tuple[Piece, ...]]

    def __init__(self, memory: Memory, pieces: tuple[Piece, ...]) -> None:
        self.memory = memory
        self._pieces = tuple([_simplify(piece) for piece in pieces])
        base, n0, s0, n1, s1, width = self.pieces[0]
        self.start, self.end = base, base + (n0 - 1) * s0 + (n1 - 1) * s1 + width
        for base, n0, s0, n1, s1, width in self.pieces[1:]:
            self.start = min(self.start, base)
            self.end = max(self.end, base + (n0 - 1) * s0 + (n1 - 1) * s1 + width)

    @staticmethod
    def within(memory: Memory, start: int, end: int, pieces: Callable[[], tuple[Piece, ...]]) -> Region:
        """Return a region from ``start`` to ``end``; ``pieces()`` is called when they are asked for."""
        region = Region.__new__(Region)
        region.memory, region.start, region.end = memory, start, end
        region._pieces, region._source = (), pieces
        return region

    @property
    def pieces(self) -> tuple[Piece, ...]:
        if not self._pieces:
            self._pieces = tuple([_simplify(piece) for piece in self._source()])
        return self._pieces

    @staticmethod
    def span(memory: Memory, start: int, length: int) -> Region:
        """Return a region of ``length`` consecutive bytes."""
        return Region(memory, ((start, 1, 0, 1, 0, length),))

    @staticmethod
    def strided(memory: Memory, start: int, count: int, pitch: int, width: int) -> Region:
        """Return ``count`` pieces of ``width`` bytes, ``pitch`` apart: bursts of a move, rows of a matrix."""
        return Region(memory, ((start, count, pitch, 1, 0, width),))

    @property
    def contiguous(self) -> bool:
        """Return whether the region is one span without holes."""
        return len(self.pieces) == 1 and self.pieces[0][1] == 1 and self.pieces[0][3] == 1

    def views(self, array: np.ndarray) -> Iterator[np.ndarray]:
        """Yield the region's bytes in ``array``, a strided view per piece. ``array`` is uint8, as long as the
        memory.
        """
        for base, n0, s0, n1, s1, width in self.pieces:
            yield np.ndarray((n0, n1, width), np.uint8, array, base, (s0, s1, 1))

    def bitmap(self, start: int, end: int) -> np.ndarray:
        """Return a boolean array over the bytes [start, end): True where the region has the byte."""
        low, high = min(self.start, start), max(self.end, end)
        bits = np.zeros(high - low, np.uint8)
        for base, n0, s0, n1, s1, width in self.pieces:
            np.ndarray((n0, n1, width), np.uint8, bits, base - low, (s0, s1, 1))[...] = 1
        return bits[start - low : end - low].view(bool)

    def overlaps(self, other: Region) -> bool:
        """Return whether the two regions share a byte (exact, holes included)."""
        if self.memory is not other.memory or self.start >= other.end or other.start >= self.end:
            return False
        if self.contiguous and other.contiguous:
            return True
        start, end = max(self.start, other.start), min(self.end, other.end)
        return bool((self.bitmap(start, end) & other.bitmap(start, end)).any())


def _simplify(piece: Piece) -> Piece:
    """Return the same bytes with as few levels as possible."""
    base, n0, s0, n1, s1, width = piece
    if n0 == n1 == 1:
        return (base, 1, 0, 1, 0, width)
    if n1 > 1 and s1 <= width:  # touching or overlapping pieces are one
        width, n1 = (n1 - 1) * s1 + width, 1
    if n1 == 1:
        s1 = 0
    if n0 > 1 and n1 == 1 and s0 <= width:
        width, n0 = (n0 - 1) * s0 + width, 1
    if n0 > 1 and s0 == 0:
        n0 = 1
    if n0 > 1 and n1 > 1 and s0 == n1 * s1:
        n0, s0, n1 = 1, 0, n0 * n1
    if n0 == 1:
        s0 = 0
    return (base, n0, s0, n1, s1, width)
