"""Blocks of rows of all heads at run time, for the kernels before and behind the main one."""

from __future__ import annotations

from flash_attention.kernels.tik import packed
from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.hardware import Buffer
from flash_attention.kernels.tik.problem import KernelProblem


def buffers(problem: KernelProblem, copies: int) -> list[Buffer]:
    """What `copies` places need on chip, in the order of allocation."""
    return [Buffer("block", "UB", "int32", packed.BLOCK_FIELDS, copies)] if problem.sequences else []


class Place:
    """Place of a block of core.plan.rows rows, as run-time scalars.

    Attributes:
        head: over all batch items.
        start: first row, in what is stored per row.
        rows: rows that it has; with packed sequences 0 is one of the numbers.
        position: of the first row.
    """

    def __init__(self, core: Core, blocks: int, copy: int):
        """`blocks` of a head; `copy` is that of the buffer."""
        self.core, self.blocks, self.copy = core, blocks, copy
        names = ("head", "block", "start", "rows")
        self.head, self.block, self.start, self.rows = (core.scalar("int32", name, 0) for name in names)
        self._first = self._position = None
        if core.problem.sequences:
            self._first, self._position = (core.scalar("int32", name, 0) for name in ("first_row", "position"))

    def fetch(self, number) -> None:
        """Sets head and start to block `number` of all heads, and loads what `find` needs to know of it."""
        core = self.core
        self.head.set_as(number // self.blocks)
        self.block.set_as(number - self.head * self.blocks)
        self.start.set_as(self.block * core.plan.rows)
        if core.problem.sequences:
            source = core.gm["blocks"][self.start // packed.BLOCK * packed.BLOCK_FIELDS]
            core.tik.data_move(core.on.block[self.copy], source, 0, 1, packed.BLOCK_FIELDS // 8, 0, 0)

    def find(self) -> None:
        """Sets the other scalars to the block that was fetched."""
        core = self.core
        if core.problem.sequences:
            self._find_packed()
            return
        self.rows.set_as(core.plan.rows)
        if core.tail_rows:
            with core.tik.if_scope(self.block == self.blocks - 1):
                self.rows.set_as(core.tail_rows)

    def _find_packed(self) -> None:
        core, words, inside = self.core, self.core.on.block[self.copy], self._position
        inside.set_as(self.start % packed.BLOCK)
        self._first.set_as(words[packed.FIRST_ROW])
        self._first.set_as(self._first + inside)
        self.rows.set_as(words[packed.ROWS])
        self.rows.set_as(self.rows - inside)
        with core.tik.if_scope(self.rows < 0):
            self.rows.set_as(0)
        with core.tik.if_scope(self.rows > core.plan.rows):
            self.rows.set_as(core.plan.rows)
        start = core.scalar("int32", "block_position")
        start.set_as(words[packed.POSITION])
        self._position.set_as(start + inside)

    @property
    def position(self):
        return self.start + self.core.problem.offset if self._position is None else self._position

    def address(self, name: str):
        """First element of the rows in a tensor with one matrix per head."""
        core = self.core
        if self._first is not None:
            return core.start(name, self.head, self._first)
        return core.start(name, self.head, core.batch_of(self.head)) + self.start * 16
