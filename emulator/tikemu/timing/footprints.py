"""Remember the last accesses to bytes: footprints, with conflicts found once.

Programs use the same few footprints again and again. So each footprint exists once, with the list of footprints that
share a byte with it. One step of the timing engine then walks only short lists.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from ..isa.region import Memory, Region
from .lanes import NEVER, Frame, LaneFootprint

#: With so many footprints, footprints that can no longer delay anything are dropped.
LIMIT = 20_000


class Footprint:
    """A set of bytes and the times at which its latest accesses are complete.

    Attributes:
        region: the bytes.
        conflicts: all footprints that share a byte with this one, itself among them.
        write_pipe, write_done: pipe of the latest write, and the time its result can be used (NEVER: never written).
        readers: per pipe, the time at which its reads since the latest write are complete.
        frames: frames of lanes that share a byte with it, with these lanes.
    """

    __slots__ = ("region", "conflicts", "write_pipe", "write_done", "readers", "frames")

    def __init__(self, region: Region) -> None:
        self.region = region
        self.conflicts: list[Footprint] = [self]
        self.write_pipe = 0
        self.write_done = NEVER
        self.readers: dict[int, float] = {}
        self.frames: list[tuple[Frame, int]] = []

    def latest(self, since: float, reads: bool) -> float:
        """Return the latest access to lanes with a byte of it, see Frame.latest."""
        for frame, lanes in self.frames:
            since = frame.latest(lanes, since, reads)
        return since

    def reset(self) -> None:
        self.write_done = NEVER
        self.readers.clear()

    def busy(self, now: float) -> bool:
        """Return whether an access is complete only after ``now``."""
        return self.write_done > now or any(done > now for done in self.readers.values())


class FootprintTable:
    """All footprints of one core's view of the memories.

    Attributes:
        frames: the frames of lanes that bit masks choose, by what makes them one.
    """

    def __init__(self) -> None:
        self._by_key: dict[tuple, Footprint] = {}
        self.frames: dict[tuple, Frame] = {}
        self._spans: dict[int, _Spans] = {}
        self._frame_spans: dict[int, _Spans] = {}

    def __len__(self) -> int:
        return len(self._by_key) + len(self.frames)

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

    def lanes(self, memory: Memory, shape: tuple[int, int, int, int, int], lanes: int) -> LaneFootprint:
        """Return the footprint of some lanes of a vector operand.

        Args:
            memory: where it lives.
            shape: address, repeats, bytes from repeat to repeat and from block to block, bytes of an element.
            lanes: bit k is lane k.
        """
        key = (id(memory), *shape)
        frame = self.frames.get(key)
        if frame is None:
            frame = self.frames[key] = self._enter_frame(Frame(memory, *shape))
        return LaneFootprint(frame, lanes)

    def reset(self) -> None:
        """Forget all accesses."""
        for footprint in self._by_key.values():
            footprint.reset()
        for frame in self.frames.values():
            frame.reset()

    def prune(self, now: float) -> None:
        """Drop every footprint that has all accesses complete at ``now``. Its holders must ask for it again."""
        kept = {key: footprint for key, footprint in self._by_key.items() if footprint.busy(now)}
        frames = {key: frame for key, frame in self.frames.items() if frame.after(now, True)}
        for table in (self._by_key, self.frames, self._spans, self._frame_spans):
            table.clear()
        for key, footprint in kept.items():
            footprint.conflicts, footprint.frames = [footprint], []
            self._by_key[key] = self._enter(footprint)
        for key, frame in frames.items():
            frame.footprints, frame.others = [], {frame: None}
            self.frames[key] = self._enter_frame(frame)

    def _enter(self, footprint: Footprint) -> Footprint:
        region, memory = footprint.region, id(footprint.region.memory)
        spans = self._spans.setdefault(memory, _Spans())
        for other in spans.near(region.start, region.end):
            if region.overlaps(other.region):
                footprint.conflicts.append(other)
                other.conflicts.append(footprint)
        spans.append(footprint, region.start, region.end)
        if memory in self._frame_spans:
            for frame in self._frame_spans[memory].near(region.start, region.end):
                self._join(footprint, frame)
        return footprint

    def _enter_frame(self, frame: Frame) -> Frame:
        memory = id(frame.memory)
        spans = self._frame_spans.setdefault(memory, _Spans())
        for other in spans.near(frame.start, frame.end):
            frame.others[other] = other.others[frame] = None
        spans.append(frame, frame.start, frame.end)
        if memory in self._spans:
            for footprint in self._spans[memory].near(frame.start, frame.end):
                self._join(footprint, frame)
        return frame

    def _join(self, footprint: Footprint, frame: Frame) -> None:
        lanes = frame.lanes_in(footprint.region)
        if lanes:
            footprint.frames.append((frame, lanes))
            frame.footprints.append((footprint, lanes))


class _Spans:
    """Start and end of the footprints or frames of one memory, for a fast search."""

    def __init__(self) -> None:
        self.entries: list[Any] = []
        self.bounds = np.zeros((64, 2), np.int64)

    def append(self, entry: Any, start: int, end: int) -> None:
        count = len(self.entries)
        if count == len(self.bounds):
            self.bounds = np.concatenate([self.bounds, np.zeros_like(self.bounds)])
        self.bounds[count] = start, end
        self.entries.append(entry)

    def near(self, start: int, end: int) -> list[Any]:
        """Return the entries with a smallest enclosing span that meets [start, end)."""
        bounds = self.bounds[: len(self.entries)]
        hits = np.flatnonzero((bounds[:, 0] < end) & (bounds[:, 1] > start))
        return [self.entries[hit] for hit in hits]
