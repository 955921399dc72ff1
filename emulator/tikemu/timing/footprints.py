"""Remember the last accesses to bytes: footprints, with conflicts found once.

Programs use the same few footprints again and again. So each footprint exists once, with the list of footprints that
share a byte with it. One step of the timing engine then walks only short lists.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..isa.region import Memory, Region

#: Before every time, also before times that lie before the start of a block.
NEVER = float("-inf")
#: With so many footprints, footprints that can no longer delay anything are dropped.
LIMIT = 20_000


class Footprint:
    """A set of bytes and the times at which its latest accesses are complete.

    Attributes:
        region: the bytes.
        conflicts: all footprints that share a byte with this one, itself among them.
        write_pipe, write_done: pipe of the latest write, and the time its result can be used (NEVER: never written).
        readers: per pipe, the time at which its reads since the latest write are complete.
    """

    __slots__ = ("region", "conflicts", "write_pipe", "write_done", "readers")

    def __init__(self, region: Region) -> None:
        self.region = region
        self.conflicts: list[Footprint] = [self]
        self.write_pipe = 0
        self.write_done = NEVER
        self.readers: dict[int, float] = {}

    def reset(self) -> None:
        self.write_done = NEVER
        self.readers.clear()

    def busy(self, now: float) -> bool:
        """Return whether an access is complete only after ``now``."""
        return self.write_done > now or any(done > now for done in self.readers.values())


class FootprintTable:
    """All footprints of one core's view of the memories."""

    def __init__(self) -> None:
        self._by_key: dict[tuple, Footprint] = {}
        self._spans: dict[int, _Spans] = {}

    def __len__(self) -> int:
        return len(self._by_key)

    def __iter__(self) -> Iterator[Footprint]:
        return iter(self._by_key.values())

    def exact(self, region: Region) -> Footprint:
        """Return the footprint of exactly these bytes."""
        key = (id(region.memory), region.pieces)
        found = self._by_key.get(key)
        if found is None:
            found = self._by_key[key] = self._enter(Footprint(region))
        return found

    def span(self, memory: Memory, start: int, end: int) -> Footprint:
        """Return the footprint of the bytes from ``start`` to ``end``."""
        return self.exact(Region.span(memory, start, end - start))

    def reset(self) -> None:
        """Forget all accesses."""
        for footprint in self._by_key.values():
            footprint.reset()

    def prune(self, now: float) -> None:
        """Drop every footprint that has all accesses complete at ``now``. Its holders must ask for it again."""
        kept = [footprint for footprint in self._by_key.values() if footprint.busy(now)]
        self._by_key.clear()
        self._spans.clear()
        for footprint in kept:
            footprint.conflicts = [footprint]
            self._by_key[(id(footprint.region.memory), footprint.region.pieces)] = self._enter(footprint)

    def _enter(self, footprint: Footprint) -> Footprint:
        memory = id(footprint.region.memory)
        spans = self._spans.get(memory)
        if spans is None:
            spans = self._spans[memory] = _Spans()
        for other in spans.near(footprint.region.start, footprint.region.end):
            if footprint.region.overlaps(other.region):
                footprint.conflicts.append(other)
                other.conflicts.append(footprint)
        spans.append(footprint)
        return footprint


class _Spans:
    """Start and end of the footprints of one memory, for a fast search."""

    def __init__(self) -> None:
        self.footprints: list[Footprint] = []
        self.bounds = np.zeros((64, 2), np.int64)

    def append(self, footprint: Footprint) -> None:
        count = len(self.footprints)
        if count == len(self.bounds):
            self.bounds = np.concatenate([self.bounds, np.zeros_like(self.bounds)])
        self.bounds[count] = footprint.region.start, footprint.region.end
        self.footprints.append(footprint)

    def near(self, start: int, end: int) -> list[Footprint]:
        """Return the footprints with a smallest enclosing span that meets [start, end)."""
        bounds = self.bounds[: len(self.footprints)]
        hits = np.flatnonzero((bounds[:, 0] < end) & (bounds[:, 1] > start))
        return [self.footprints[hit] for hit in hits]
