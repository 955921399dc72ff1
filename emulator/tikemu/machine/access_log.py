"""Note what blocks read and write in global memory while they run.

A process that executes some of the blocks keeps a journal (see :mod:`tikemu.processes`). From the journals another
process learns whether blocks met.
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
#: How a byte was touched.
READ, WRITTEN, ADDED = 1, 2, 4


class Addition(NamedTuple):
    """One atomic addition: tensor, piece of it, the float32 bytes that were added, number of the call's site."""

    uid: int
    piece: Piece
    data: bytes
    site: int


#: First bytes and ends of spans without overlap, ascending.
Spans = tuple[np.ndarray, np.ndarray]


class Journal:
    """Note accesses to global memory: all are micro-operations, as the scalar unit reaches the Unified Buffer only.

    With ``adding`` the atomic additions to tensors that are declared for them are kept. The journal's reader does them.

    Args:
        gm: the global tensors by uid.

    Attributes:
        adding: keep the additions.
        additions: the atomic additions to do.
        site: number of the call that is being prepared.
    """

    def __init__(self, gm: Mapping[int, GlobalTensor]) -> None:
        self._tensors = {id(tensor.memory): (uid, tensor) for uid, tensor in gm.items()}
        self.adding = False
        self.additions: list[Addition] = []
        self.site = 0
        self._entries: dict[int, set[Entry]] = {READ: set(), WRITTEN: set(), ADDED: set()}

    def clear(self) -> None:
        """Begin anew."""
        for entries in self._entries.values():
            entries.clear()
        self.additions = []

    # -------------------------------------------------------------------------------------------- noting
    def noted(self, micro: MicroOp, run: Callable[[], None] | None) -> Callable[[], None] | None:
        """Wrap ``run`` of a micro-operation to note its accesses. None if there is nothing to run or note."""
        reads, writes = _global(micro.reads), _global((*micro.writes, *micro.undefined))
        if micro.transfer is not None and micro.transfer.direction == "atomic":
            uid, tensor = self._tensors[id(micro.writes[0].region.memory)]
            if tensor.info.is_atomic_add:
                return self._noted_addition(micro, uid, run)
            reads = writes
        return self.noted_at(run, reads, writes) if reads or writes else run

    def noted_at(
        self, run: Callable[[], None] | None, reads: list[Entry], writes: list[Entry]
    ) -> Callable[[], None] | None:
        """Run ``run``, noting these accesses."""
        note_reads, note_writes = self._entries[READ].update, self._entries[WRITTEN].update

        def noting() -> None:
            note_reads(reads)
            note_writes(writes)
            if run is not None:
                run()

        return noting

    def _noted_addition(self, micro: MicroOp, uid: int, run: Any) -> Callable[[], None]:
        source, target = micro.reads[0].region, micro.writes[0].region
        site, status = self.site, getattr(micro.run, "status", None)

        def noting() -> None:
            self._entries[ADDED].add((target, 0))
            if not self.adding:
                run()
                return
            data = b"".join([view.tobytes() for view in source.views(source.memory.data)])
            self.additions.append(Addition(uid, target.pieces[0], data, site))
            before = status.overflow
            run()  # for the checks of strict mode: others may add here at this moment
            status.overflow = before

        return noting

    # -------------------------------------------------------------------------------------------- reading it
    def touched(self) -> dict[int, dict[int, Spans]]:
        """Return the bytes that were touched, by uid and kind."""
        found: dict[int, dict[int, Spans]] = {}
        for flag, entries in self._entries.items():
            pieces: dict[int, list[Piece]] = {}
            for region, distance in entries:
                moved = [(piece[0] + distance, *piece[1:]) for piece in region.pieces]
                pieces.setdefault(self._tensors[id(region.memory)][0], []).extend(moved)
            for uid, of_tensor in pieces.items():
                found.setdefault(uid, {})[flag] = spans(of_tensor)
        return found


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


def _global(accesses: Iterable[Access]) -> list[Entry]:
    return [(access.region, 0) for access in accesses if access.region.memory.kind == "GM"]
