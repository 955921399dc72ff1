"""Remember the last accesses of Vector to lanes that a bit mask chooses.

Masks that are data are all different. A footprint for each would conflict with every other one. But Vector alone
accesses bytes in this way, and its instructions complete in order. So of a lane only the latest access counts, and the
accesses of one address and stride are kept together in a :class:`Frame`: when, and to which lanes.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ..isa.region import Memory, Region

#: Before every time, also before times that lie before the start of a block.
NEVER = float("-inf")
#: Bytes of a block, and of all lanes of a repeat.
_BLOCK, _REPEAT = 32, 256
#: Accesses that a frame keeps before those without effect are dropped.
_KEPT = 512

#: Times with the lanes (bit k is lane k) that were accessed, in the order of the times.
Entries = list[tuple[float, int]]


def latest(entries: Entries, lanes: int, since: float) -> float:
    """Return the time of the latest access to ``lanes``, at least ``since``."""
    for time, accessed in reversed(entries):
        if time <= since:
            break
        if accessed & lanes:
            return time
    return since


def decisive(entries: Entries) -> Entries:
    """Return the latest access of every lane."""
    kept: Entries = []
    seen = 0
    for time, accessed in reversed(entries):
        fresh = accessed & ~seen
        if fresh:
            seen |= fresh
            if kept and kept[-1][0] == time:
                kept[-1] = time, kept[-1][1] | fresh
            else:
                kept.append((time, fresh))
    return kept[::-1]


class Frame:
    """Hold the accesses to lanes of one operand: one address, repeats, strides and element size.

    Attributes:
        memory, start, end: bytes of all lanes.
        writes, reads: the accesses.
        footprints: the footprints of whole regions that share a byte with a lane, with these lanes.
        others: frames that may share a byte, this one among them, each with its lanes by lane of this one; None until
            that is asked for.
    """

    __slots__ = ("memory", "start", "end", "writes", "reads", "footprints", "others", "_shape")

    def __init__(self, memory: Memory, address: int, repeats: int, pitch: int, block_pitch: int, itemsize: int) -> None:
        self.memory, self._shape = memory, (repeats, pitch, block_pitch, itemsize)
        self.start = address
        self.end = address + (repeats - 1) * pitch + self._reach
        self.writes: Entries = []
        self.reads: Entries = []
        self.footprints: list[tuple[Any, int]] = []
        self.others: dict[Frame, list[int] | None] = {self: None}

    def reset(self) -> None:
        """Forget all accesses."""
        self.writes.clear()
        self.reads.clear()

    def record(self, lanes: int, time: float, write: bool) -> None:
        entries = self.writes if write else self.reads
        entries.append((time, lanes))
        if len(entries) > _KEPT:
            entries[:] = decisive(entries)

    def latest(self, lanes: int, since: float, reads: bool) -> float:
        """Return the end of the latest write (or read) of ``lanes``, at least ``since``."""
        since = latest(self.writes, lanes, since)
        return latest(self.reads, lanes, since) if reads else since

    def after(self, since: float, reads: bool) -> bool:
        """Return whether a write (or read) of any lane is complete after ``since``."""
        if self.writes and self.writes[-1][0] > since:
            return True
        return reads and bool(self.reads) and self.reads[-1][0] > since

    def lanes_in(self, region: Region) -> int:
        """Return the lanes that share a byte with ``region``."""
        return _integer(region.bitmap(self.start, self.end)[self._bytes()].any(axis=1))

    def lanes_of(self, other: Frame, lanes: int) -> int:
        """Return the lanes of ``other`` that share a byte with ``lanes`` of this frame."""
        if self._alike(other):
            return lanes
        by_lane = self.others[other]
        if by_lane is None:
            by_lane = self.others[other] = self._relation(other)
        found = 0
        for lane, shared in enumerate(by_lane):
            if lanes >> lane & 1:
                found |= shared
        return found

    def _alike(self, other: Frame) -> bool:
        """Return whether each lane shares bytes with the same lane of the other frame only."""
        (repeats, pitch, *blocks), (other_repeats, other_pitch, *other_blocks) = self._shape, other._shape
        if self.start != other.start or blocks != other_blocks or blocks[0] < _BLOCK:
            return False
        pitches = {step for count, step in ((repeats, pitch), (other_repeats, other_pitch)) if count > 1}
        return len(pitches) <= 1 and all(step >= self._reach for step in pitches)

    @property
    def _reach(self) -> int:
        """Return how many bytes one repeat spans."""
        return (_REPEAT // _BLOCK - 1) * self._shape[2] + _BLOCK

    def _relation(self, other: Frame) -> list[int]:
        """Return the lanes of ``other`` with a byte of each lane."""
        low, high = min(self.start, other.start), max(self.end, other.end)
        mine, theirs = self._bytes() + (self.start - low), other._bytes() + (other.start - low)
        shared = np.zeros((len(mine), len(theirs)), bool)
        repeats, pitch, block_pitch, _ = self._shape
        if block_pitch >= _BLOCK and (repeats == 1 or pitch >= self._reach):  # a byte belongs to one lane
            owner = np.full(high - low, -1)
            owner[mine] = np.arange(len(mine))[:, None]
            found = owner[theirs]
            lane = np.broadcast_to(np.arange(len(theirs))[:, None], found.shape)
            shared[found[found >= 0], lane[found >= 0]] = True
        else:
            for row, bytes_of_lane in zip(shared, mine):
                touched = np.zeros(high - low, bool)
                touched[bytes_of_lane] = True
                row[:] = touched[theirs].any(axis=1)
        return [_integer(row) for row in shared]

    def _bytes(self) -> np.ndarray:
        """Return the bytes of every lane, relative to ``start``: one line per lane."""
        repeats, pitch, block_pitch, itemsize = self._shape
        block, element = np.divmod(np.arange(_REPEAT // itemsize), _BLOCK // itemsize)
        rows = np.arange(repeats)[:, None] * pitch + np.arange(itemsize)
        return (block * block_pitch + element * itemsize)[:, None] + rows.ravel()


class LaneFootprint:
    """Represent the bytes of some lanes of a frame among the accesses of an operation.

    Attributes:
        frame, lanes: the frame and the lanes.
        frames: frames that may share a byte, the frame itself among them.
    """

    __slots__ = ("frame", "lanes", "frames", "_shared", "_conflicts", "_compared")

    def __init__(self, frame: Frame, lanes: int) -> None:
        self.frame, self.lanes, self.frames = frame, lanes, frame.others
        self._shared: dict[Frame, int] = {}
        self._conflicts: list[Any] = []
        self._compared = 0  # footprints that are compared with these lanes

    @property
    def conflicts(self) -> list[Any]:
        """Return the footprints of whole regions that share a byte with these lanes."""
        footprints = self.frame.footprints
        if self._compared < len(footprints):
            fresh = footprints[self._compared :]
            self._conflicts += [footprint for footprint, touched in fresh if touched & self.lanes]
            self._compared = len(footprints)
        return self._conflicts

    def latest(self, since: float, reads: bool) -> float:
        """Return the latest access to lanes with a byte of these, see Frame.latest."""
        frame, shared = self.frame, self._shared
        for other in self.frames:
            if other.after(since, reads):
                lanes = shared.get(other)
                if lanes is None:
                    lanes = shared[other] = frame.lanes_of(other, self.lanes)
                since = other.latest(lanes, since, reads)
        return since

    def record(self, time: float, write: bool) -> None:
        """Enter an access."""
        self.frame.record(self.lanes, time, write)


def _integer(chosen: np.ndarray) -> int:
    """Return truth values by lane as an integer: bit k is lane k."""
    return int.from_bytes(np.packbits(chosen, bitorder="little").tobytes(), "little")
