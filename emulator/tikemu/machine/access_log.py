"""Note what blocks read and write in global memory while they run.

A process that executes some of the blocks keeps a journal (see :mod:`tikemu.processes`). From the journals another
process learns whether blocks met, and repeats their changes of global memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Callable, NamedTuple

import numpy as np

from ..isa.micro_op import Access, MicroOp
from ..isa.region import Piece, Region
from .memories import GlobalTensor

#: A region, and how many bytes behind its place it was accessed.
Entry = tuple[Region, int]
#: First bytes and ends of spans without overlap, ascending.
Spans = tuple[np.ndarray, np.ndarray]


class Addition(NamedTuple):
    """One atomic addition: tensor, piece of it, the float32 bytes that were added, number of the call's site."""

    uid: int
    piece: Piece
    data: bytes
    site: int


class Journal:
    """Note accesses to global memory: all are micro-operations, as the scalar unit reaches the Unified Buffer only.

    Args:
        gm: the global tensors by uid.
        keep_additions: keep the numbers that were added atomically, to add them again to other contents.

    Attributes:
        additions: the atomic additions, if they are kept.
        additions_bytes: their size.
        site: number of the call that is being prepared.
    """

    def __init__(self, gm: Mapping[int, GlobalTensor], keep_additions: bool) -> None:
        self._uids = {id(tensor.memory): uid for uid, tensor in gm.items()}
        self.keep_additions = keep_additions
        self.additions: list[Addition] = []
        self.additions_bytes = 0
        self.site = 0
        self._reads: set[Entry] = set()
        self._writes: set[Entry] = set()
        self._sums: set[Entry] = set()

    def clear(self) -> None:
        """Begin anew."""
        for entries in (self._reads, self._writes, self._sums):
            entries.clear()
        self.additions, self.additions_bytes = [], 0

    # -------------------------------------------------------------------------------------------- noting
    def noted(self, micro: MicroOp, run: Callable[[], None] | None) -> Callable[[], None] | None:
        """Wrap ``run`` of a micro-operation to note its accesses. None if there is nothing to run or note."""
        reads, writes = _global(micro.reads), _global((*micro.writes, *micro.undefined))
        if micro.transfer is not None and micro.transfer.direction == "atomic":
            return self._noted_addition(micro, run)
        return self.noted_at(run, reads, writes) if reads or writes else run

    def noted_at(
        self, run: Callable[[], None] | None, reads: list[Entry], writes: list[Entry]
    ) -> Callable[[], None] | None:
        """Run ``run``, noting these accesses."""
        note_reads, note_writes = self._reads.update, self._writes.update

        def noting() -> None:
            note_reads(reads)
            note_writes(writes)
            if run is not None:
                run()

        return noting

    def _noted_addition(self, micro: MicroOp, run: Any) -> Callable[[], None]:
        source, target = micro.reads[0].region, micro.writes[0].region
        uid, site, status = self._uids[id(target.memory)], self.site, getattr(micro.run, "status", None)
        entry = target, 0

        def noting() -> None:
            self._sums.add(entry)
            run()

        def keeping() -> None:
            data = b"".join([view.tobytes() for view in source.views(source.memory.data)])
            self.additions.append(Addition(uid, target.pieces[0], data, site))
            self.additions_bytes += len(data)
            before = status.overflow
            noting()
            status.overflow = before  # whoever adds again to the right contents counts

        return keeping if self.keep_additions else noting

    # -------------------------------------------------------------------------------------------- reading it
    def reads(self) -> dict[int, Spans]:
        """Return the bytes read, by uid."""
        return self._spans(self._reads)

    def writes(self) -> dict[int, Spans]:
        """Return the bytes written other than by atomic addition, by uid."""
        return self._spans(self._writes)

    def sums(self) -> dict[int, Spans]:
        """Return the bytes added to atomically, by uid."""
        return self._spans(self._sums)

    def _spans(self, entries: Iterable[Entry]) -> dict[int, Spans]:
        pieces: dict[int, list[Piece]] = {}
        for region, distance in entries:
            found = pieces.setdefault(self._uids[id(region.memory)], [])
            found += [(piece[0] + distance, *piece[1:]) for piece in region.pieces]
        return {uid: spans(found) for uid, found in pieces.items()}


def _global(accesses: Iterable[Access]) -> list[Entry]:
    return [(access.region, 0) for access in accesses if access.region.memory.kind == "GM"]


def spans(pieces: list[Piece]) -> Spans:
    """Return the bytes of pieces (see :class:`Region`), as spans."""
    base, n0, s0, n1, s1, width = np.array(pieces, np.int64).reshape(-1, 6).T
    count = n0 * n1
    which = np.repeat(np.arange(len(count)), count)
    number = np.arange(len(which)) - np.repeat(np.cumsum(count) - count, count)
    start = base[which] + number // n1[which] * s0[which] + number % n1[which] * s1[which]
    order = np.argsort(start, kind="stable")
    start, end = start[order], np.maximum.accumulate((start + width[which])[order])
    first = np.flatnonzero(np.concatenate(([True], start[1:] > end[:-1])))
    return start[first], end[np.append(first[1:], len(end)) - 1]


def gather(data: np.ndarray, where: Spans) -> bytes:
    """Return the bytes of ``data`` in these spans, one after another."""
    return b"".join([data[start:end].tobytes() for start, end in zip(*_lists(where))])


def scatter(data: np.ndarray, where: Spans, content: bytes) -> None:
    """Put ``content`` back where :func:`gather` found it."""
    source, position = np.frombuffer(content, np.uint8), 0
    for start, end in zip(*_lists(where)):
        data[start:end] = source[position : position + end - start]
        position += end - start


def meets(bits: np.ndarray, where: Spans) -> bool:
    """Return whether ``bits`` is set anywhere in these spans."""
    return any(bits[start:end].any() for start, end in zip(*_lists(where)))


def fill(bits: np.ndarray, where: Spans) -> None:
    """Set ``bits`` in these spans."""
    for start, end in zip(*_lists(where)):
        bits[start:end] = True


def _lists(where: Spans) -> tuple[list[int], list[int]]:
    return where[0].tolist(), where[1].tolist()
