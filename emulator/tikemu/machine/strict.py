"""Add strict mode to a micro-operation: defined bytes, and races between blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import numpy as np

from .. import native
from ..errors import TikError, TikSyncError, TikUndefinedError
from ..isa.micro_op import Access, MicroOp
from ..isa.region import Memory, Piece, Region
from .memories import POISON_BYTES
from .races import BlockRaces


def guarded(
    op: MicroOp, marked: bool, races: BlockRaces | None, report: Callable[[str, type[TikError], str], None]
) -> Callable[[], None]:
    """Run ``op.run`` with its checks.

    All bytes that a computation reads must be defined. Then the bytes that it writes are defined too. A pure copy moves
    the marks instead.

    Args:
        op: the micro-operation.
        marked: it is known which bytes are defined.
        races: accesses of the blocks to global memory; None if there is one block.
        report: takes class, error and message of a finding.
    """
    atomic = op.transfer is not None and op.transfer.direction == "atomic"
    global_reads = [] if atomic or races is None else [a.region for a in op.reads if a.region.memory.kind == "GM"]
    global_writes = [] if races is None else [a.region for a in op.writes if a.region.memory.kind == "GM"]
    computes = marked and op.run_defined is None
    checked = [access for access in op.reads if access not in op.examined]
    marks = native.marks(_marks_of(checked), _marks_of(op.writes)) if computes else None

    def run() -> None:
        if computes and (marks is None or not marks.defined()):
            for access in checked:
                message = undefined_bytes(access, op.name)
                if message:
                    report("undefined", TikUndefinedError, message)
        for region in global_reads:
            message = races.read(region, op.name)
            if message:
                report("race", TikSyncError, message)
        before = [[piece.copy() for piece in region.views(region.memory.data)] for region in global_writes]
        if op.run is not None:
            op.run()
        if op.run_defined is not None:
            op.run_defined()
        elif marks is not None:
            marks.mark()
        elif marked:
            for access in op.writes:
                mark(access.region, 1)
        if marked:
            for access in op.undefined:
                for data in access.region.views(access.region.memory.data):
                    data[...] = np.resize(POISON_BYTES, data.shape)
                mark(access.region, 0)
        for region, old in zip(global_writes, before):
            message = races.write(region, old, atomic, op.name)
            if message:
                report("race", TikSyncError, message)

    return run


def _marks_of(accesses: Sequence[Access]) -> list[Piece]:
    """Return the marks of the accessed bytes, as pieces at addresses in this process."""
    return [
        (access.region.memory.defined_base + piece[0], *piece[1:])
        for access in accesses
        for piece in access.region.pieces
    ]


def mark(region: Region, value: int) -> None:
    """Set the "defined" marks of a region."""
    for bits in region.views(region.memory.defined):
        bits[...] = value


def undefined_bytes(access: Access, who: str) -> str | None:
    """Return the finding for a byte of ``access`` that was never written."""
    defined = access.region.memory.defined
    for base, n0, s0, n1, s1, width in access.region.pieces:
        bits: np.ndarray = np.ndarray((n0, n1, width), np.uint8, defined, base, (s0, s1, 1))
        if bits.min(initial=1) == 0:
            row, piece, byte = np.argwhere(bits == 0)[0]
            first = int(base + row * s0 + piece * s1 + byte) - access.operand.start
            return (
                f"{who} reads {int((bits == 0).sum())} undefined bytes of tensor {access.operand.name!r} (element "
                f"{first // np.dtype(access.operand.dtype).itemsize} is the first): nothing has written them"
            )
    return None


def undefined_output(memory: Memory, size: int, itemsize: int) -> str | None:
    """Return the finding for a byte of an output tensor that was never written."""
    holes = np.flatnonzero(memory.defined[:size] == 0)
    if not len(holes):
        return None
    return (
        f"output {memory.name!r} holds {len(holes)} undefined bytes at the end (element {holes[0] // itemsize} is the "
        "first): they were never written, or undefined bytes were copied there"
    )
