"""Memories and exact byte footprints."""
from __future__ import annotations

from typing import Optional

import numpy as np


class Memory:
    """A byte-addressed memory: one on-chip buffer of one core, or one GM tensor.

    Attributes:
        kind: "GM", "UB", "L1", "L0A", "L0B" or "L0C".
        name: buffer or tensor name, for messages.
        data: uint8 array.
        defined: uint8 array of the same length, 1 where a byte holds written data; None when not tracked.
    """

    __slots__ = ("kind", "name", "data", "defined")

    def __init__(self, kind: str, name: str, size: int, track: bool) -> None:
        self.kind = kind
        self.name = name
        self.data = np.zeros(size, np.uint8)
        self.defined: Optional[np.ndarray] = np.zeros(size, np.uint8) if track else None


class Region:
    """A set of bytes of one memory, made of regular pieces: ``n0`` rows ``s0`` bytes apart, each of ``n1`` pieces ``s1``
    bytes apart, each piece ``width`` bytes long."""

    __slots__ = ("memory", "pieces", "start", "end")

    def __init__(self, memory: Memory, pieces: tuple[tuple[int, int, int, int, int, int], ...]) -> None:
        self.memory = memory
        self.pieces = pieces  # (base, n0, s0, n1, s1, width)
        self.start = min(p[0] for p in pieces)
        self.end = max(p[0] + (p[1] - 1) * p[2] + (p[3] - 1) * p[4] + p[5] for p in pieces)

    @staticmethod
    def span(memory: Memory, start: int, length: int) -> Region:
        return Region(memory, ((start, 1, 0, 1, 0, length),))
