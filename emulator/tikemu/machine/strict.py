"""What strict mode adds to the execution of a micro-operation: defined bytes and races between blocks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Callable

import numpy as np

from .. import native
from ..errors import TikUndefinedError
from ..isa.micro_op import Access, MicroOp, Operand
from ..isa.region import Memory, Piece, Region
from .memories import POISON_BYTES
from .races import BlockRaces


def guarded(op: MicroOp, races: BlockRaces | None) -> Callable[[], None]:
    """``op.run`` with its checks.

    All bytes that a computation reads must be defined; what it writes becomes so. A pure copy moves the marks instead.

    Args:
        op: the micro-operation.
        races: accesses of the blocks to global memory; None where there is one block.
    """
    atomic = op.transfer is not None and op.transfer.direction == "atomic"
    global_reads = [] if atomic or races is None else [a.region for a in op.reads if a.region.memory.kind == "GM"]
    global_writes = [] if races is None else [a.region for a in op.writes if a.region.memory.kind == "GM"]
    marks = None if op.run_defined is not None else native.marks(_marks_of(op.reads), _marks_of(op.writes))

    def run() -> None:
        if op.run_defined is None and (marks is None or not marks.defined()):
            for access in op.reads:
                require_defined(access, op.name)
        for region in global_reads:
            races.read(region, op.name)
        before = [[piece.copy() for piece in region.views(region.memory.data)] for region in global_writes]
        if op.run is not None:
            op.run()
        if op.run_defined is not None:
            op.run_defined()
        elif marks is not None:
            marks.mark()
        else:
            for access in op.writes:
                mark(access.region, 1)
        for access in op.undefined:
            for data in access.region.views(access.region.memory.data):
                data[...] = np.resize(POISON_BYTES, data.shape)
            mark(access.region, 0)
        for region, old in zip(global_writes, before):
            races.write(region, old, atomic, op.name)

    return run


def _marks_of(accesses: Sequence[Access]) -> list[Piece]:
    """The marks of what is accessed, as pieces at addresses in this process."""
    return [
        (access.region.memory.defined_base + piece[0], *piece[1:])
        for access in accesses
        for piece in access.region.pieces
    ]


def mark(region: Region, value: int) -> None:
    """Set the "defined" marks of a region."""
    for bits in region.views(region.memory.defined):
        bits[...] = value


def require_defined(access: Access, who: str) -> None:
    """Raise TikUndefinedError if a byte of ``access`` holds nothing that was written."""
    defined = access.region.memory.defined
    for base, n0, s0, n1, s1, width in access.region.pieces:
        bits: np.ndarray = np.ndarray((n0, n1, width), np.uint8, defined, base, (s0, s1, 1))
        if bits.min(initial=1) == 0:
            row, piece, byte = np.argwhere(bits == 0)[0]
            _fail(access.operand, int(base + row * s0 + piece * s1 + byte), int((bits == 0).sum()), who)


def _fail(operand: Operand, byte: int, count: int, who: str) -> None:
    element = (byte - operand.start) // np.dtype(operand.dtype).itemsize
    raise TikUndefinedError(
        f"{who} reads {count} undefined bytes of tensor {operand.name!r} (element {element} is the "
        "first): nothing has written them"
    )


def require_output_defined(memory: Memory, size: int, itemsize: int) -> None:
    """Raise TikUndefinedError if a byte of an output tensor holds nothing that was written."""
    holes = np.flatnonzero(memory.defined[:size] == 0)
    if len(holes):
        raise TikUndefinedError(
            f"output {memory.name!r} holds {len(holes)} undefined bytes at the end (element "
            f"{holes[0] // itemsize} is the first): they were never written, or undefined bytes "
            "were copied there"
        )
