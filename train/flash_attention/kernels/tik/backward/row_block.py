"""Blocks of rows at run time, for the kernels before and behind the main one."""

from __future__ import annotations

from flash_attention.kernels.tik.hardware import Buffer
from flash_attention.kernels.tik.layout import BLOCK, stored_rows
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import BlockPlan, Number, RunTime, Scalar
from flash_attention.kernels.tik.varlen import BLOCK_ROW

# The places of so many blocks of packed sequences stay on chip. With more blocks the scalar unit waits for each place,
# and no load is under way meanwhile.
MOST_BLOCKS = 2048


def _all_blocks(problem: KernelProblem) -> int:
    """Return blocks of packed sequences if all of their places are on chip, else 0."""
    count = stored_rows(problem) // BLOCK if problem.sequences else 0
    return count if count <= MOST_BLOCKS else 0


def buffers(problem: KernelProblem, copies: int) -> list[Buffer]:
    """Return the buffers of `copies` places, in the order of allocation."""
    if not problem.sequences:
        return []
    count = _all_blocks(problem)
    return [Buffer("block", "UB", "int32", BLOCK_ROW.size * max(count, 1), 1 if count else copies)]


def load(core: Core[BlockPlan]) -> None:
    """Bring the places of all blocks on chip, if there is room. Once, before the first `find`."""
    count = _all_blocks(core.problem)
    if count:
        core.tik.data_move(core.on.block[0], core.gm["blocks"], 0, 1, count * BLOCK_ROW.size // 8, 0, 0)


class Place:
    """Place of a block of core.plan.rows rows, as run-time scalars.

    Attributes:
        head: number of the head, counted over all batch items.
        start: first row, in tensors that are stored per row.
        rows: rows that it has; with packed sequences this may be 0.
        position: position of the first row.
        sequence: number of its sequence, if packed sequences have slopes of their own; else None.
    """

    def __init__(self, core: Core[BlockPlan], blocks: int, copy: int):
        """Declare the scalars of a row block. `blocks` are the blocks of a head, `copy` is the number of the buffer's
        copy.
        """
        self.core, self.blocks, self.copy = core, blocks, copy
        names = ("head", "block", "start", "rows")
        self.head, self.block, self.start, self.rows = (core.scalar("int32", name, 0) for name in names)
        self.sequence: Scalar | None = None
        if core.problem.sequences and core.problem.slope_stride:
            self.sequence = core.scalar("int32", "sequence", 0)
        self._varlen: tuple[Scalar, Scalar] | None = None
        if core.problem.sequences:
            self._varlen = core.scalar("int32", "first_row", 0), core.scalar("int32", "position", 0)

    def fetch(self, number: Number) -> None:
        """Set head and start to a block of all heads. `find` needs the words that are loaded."""
        core = self.core
        self.head.set_as(number // self.blocks)
        self.block.set_as(number - self.head * self.blocks)
        self.start.set_as(self.block * core.plan.rows)
        if core.problem.sequences and not _all_blocks(core.problem):
            source = core.gm["blocks"][self.start // BLOCK * BLOCK_ROW.size]
            core.tik.data_move(core.on.block[self.copy], source, 0, 1, BLOCK_ROW.size // 8, 0, 0)

    def find(self) -> None:
        """Set the other scalars to the block that was fetched."""
        core = self.core
        if self._varlen is None:
            self.rows.set_as(core.plan.rows)
            if core.tail_rows:
                with core.tik.if_scope(self.block == self.blocks - 1):
                    self.rows.set_as(core.tail_rows)
            return
        first, inside = self._varlen
        words = core.on.block[0 if _all_blocks(core.problem) else self.copy]
        at: Number = 0
        if _all_blocks(core.problem):
            at = core.scalar("int32", "block_words", self.start // BLOCK * BLOCK_ROW.size)
        inside.set_as(self.start % BLOCK)
        first.set_as(words[at + BLOCK_ROW.word("first_row")])
        first.set_as(first + inside)
        self.rows.set_as(words[at + BLOCK_ROW.word("rows")])
        self.rows.set_as(self.rows - inside)
        with core.tik.if_scope(self.rows < 0):
            self.rows.set_as(0)
        with core.tik.if_scope(self.rows > core.plan.rows):
            self.rows.set_as(core.plan.rows)
        if self.sequence is not None:
            self.sequence.set_as(words[at + BLOCK_ROW.word("sequence")])
        start = core.scalar("int32", "block_position")
        start.set_as(words[at + BLOCK_ROW.word("position")])
        inside.set_as(start + inside)

    @property
    def position(self) -> RunTime:
        return self.start + self.core.problem.call.offset if self._varlen is None else self._varlen[1]

    def address(self, name: str) -> RunTime:
        """Return first element of the rows in a tensor with one matrix per head."""
        core = self.core
        if self._varlen is not None:
            return core.start(name, self.head, self._varlen[0])
        return core.start(name, self.head, core.batch_of(self.head)) + self.start * 16
