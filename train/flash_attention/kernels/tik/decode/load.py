"""Rows of queries, keys and values in global memory to fractals in L1.

Rows come to the Unified Buffer whole. From there a move per 16 columns, one block of 32 bytes a row, turns them into
FRACTAL_NZ. Bursts that short out of global memory would fetch each of its lines several times.
"""

from __future__ import annotations

from typing import Callable

from flash_attention.kernels.tik.decode.schedule import Stream
from flash_attention.kernels.tik.decode.tiling import WINDOW, DecodePlan
from flash_attention.kernels.tik.hardware import BLOCK_HALVES
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, Tensor
from flash_attention.kernels.tik.varlen import FAR


class Rows:
    """Load rows of a contiguous cache (batch, kv_heads, keys, head_dim)."""

    def __init__(self, core: Core[DecodePlan], stream: Stream):
        self.core, self.stream = core, stream
        self.count = core.scalar("int32", "count")
        self.begin = core.scalar("int32", "segment_begin")
        self.loads = 0

    def load(self, name: str, slots: list[Tensor]) -> None:
        """Load keys or values of the stream's tile to its segments in L1."""
        core, tik, plan = self.core, self.core.tik, self.core.plan
        dim = plan.head_dim if name == "key" else plan.value_dim
        for segment, slot in enumerate(slots):
            stage = core.on.stage[self.loads % plan.ring]
            self.loads += 1
            self.begin.set_as(self.stream.start + segment * plan.segment)
            self.count.set_as(self.stream.sequence.length - self.begin)
            with tik.if_scope(self.count >= plan.segment):
                self.count.set_as(plan.segment)
            with tik.else_scope():
                # Values past the end must be numbers, whatever another sequence has left here.
                core.fill(stage, 0.0, plan.segment * dim)
            with tik.if_scope(self.count > 0):
                self._fetch(name, stage, dim)
            scatter(core, slot, stage, plan.segment, dim)

    def next_tile(self) -> None:
        """Prepare the loads of a tile."""

    def _fetch(self, name: str, stage: Tensor, dim: int) -> None:
        """Load `count` rows from key `begin` on."""
        core, problem = self.core, self.core.problem
        head = core.wide(self.stream.batch * problem.call.kv_heads + self.stream.head, problem.call.seq_k * dim)
        source = core.gm[name][head + self.begin * dim]
        core.tik.data_move(stage, source, 0, 1, self.count * (dim // BLOCK_HALVES), 0, 0)


class PagedRows(Rows):
    """Load rows of a paged cache (blocks, block_size, kv_heads, head_dim)."""

    def __init__(self, core: Core[DecodePlan], stream: Stream, block_size: int):
        super().__init__(core, stream)
        self.block_size = block_size
        self.entries, self.most = core.gm["block_tables"].shape[0], core.problem.call.seq_k // block_size
        names = ("window", "entry", "page", "offset", "rows", "done", "runs")
        self.window, self.entry, self.page, self.offset, self.rows, self.done, self.runs = (
            core.scalar("int32", f"pages_{name}", -FAR if name == "window" else 0) for name in names
        )

    def next_tile(self) -> None:
        """Load entries of the table that the tile needs, unless they are on chip."""
        core, tik, plan, block_size = self.core, self.core.tik, self.core.plan, self.block_size
        first, last = self.entry, self.page
        first.set_as(self.stream.start // block_size)
        last.set_as((self.stream.start + (plan.keys - 1)) // block_size)
        with tik.if_scope(last > self.most - 1):
            last.set_as(self.most - 1)
        row = self.stream.batch * self.most
        with tik.if_scope(core.module.any(row + first < self.window, row + last >= self.window + WINDOW)):
            size = min(WINDOW, self.entries)
            self.window.set_as(row + first)
            with tik.if_scope(self.window > self.entries - size):
                self.window.set_as(self.entries - size)
            tik.data_move(core.on.table[0], core.gm["block_tables"][self.window], 0, 1, size // 8, 0, 0)

    def _fetch(self, name: str, stage: Tensor, dim: int) -> None:
        """Load run by run. A run is as many rows as a block holds."""
        tik, block_size, segment = self.core.tik, self.block_size, self.core.plan.segment
        self.entry.set_as(self.stream.batch * self.most + self.begin // block_size - self.window)
        if segment % block_size:
            self._fetch_some(name, stage, dim)
            return
        # Whole blocks have places that are known while the kernel is compiled, so that no move waits for another.
        with tik.if_scope(self.count == segment):
            for run in range(segment // block_size):
                self.page.set_as(self.core.on.table[0][self.entry + run])
                self._move(name, stage[run * block_size * dim], self.page, 0, block_size, dim)
        with tik.else_scope():
            self._fetch_some(name, stage, dim)

    def _fetch_some(self, name: str, stage: Tensor, dim: int) -> None:
        """Load any number of rows from any place on. The runs do not overlap."""
        tik, block_size = self.core.tik, self.block_size
        self.offset.set_as(self.begin % block_size)
        self.done.set_as(0)
        self.runs.set_as((self.offset + self.count + (block_size - 1)) // block_size)
        # The first run waits until the place is free, and the others follow on the same pipe.
        self._run(name, stage, dim)
        others, apart = tik.if_scope(self.runs > 1), tik.new_stmt_scope(disable_sync=True)
        with others, apart, tik.for_range(1, self.runs, name="run"):
            self._run(name, stage, dim)

    def _run(self, name: str, stage: Tensor, dim: int) -> None:
        """Load rows of one block."""
        core, tik = self.core, self.core.tik
        self.rows.set_as(self.block_size - self.offset)
        with tik.if_scope(self.rows > self.count - self.done):
            self.rows.set_as(self.count - self.done)
        self.page.set_as(core.on.table[0][self.entry])
        self._move(name, stage[self.done * dim], self.page, self.offset, self.rows, dim)
        self.done.set_as(self.done + self.rows)
        self.entry.set_as(self.entry + 1)
        self.offset.set_as(0)

    def _move(self, name: str, target: Tensor, page: Number, offset: Number, rows: Number, dim: int) -> None:
        core, kv_heads, blocks = self.core, self.core.problem.call.kv_heads, dim // BLOCK_HALVES
        row = core.wide(page, self.block_size) + offset
        source = core.gm[name][(row * kv_heads + self.stream.head) * dim]
        core.tik.data_move(target, source, 0, rows, blocks, (kv_heads - 1) * blocks, 0)


def load_query(core: Core[DecodePlan], stream: Stream, slot: Tensor) -> None:
    """Load the rows of the stream's row block. Padding rows keep their zeros."""
    problem, plan, tik = core.problem, core.plan, core.tik
    dim, stage = plan.head_dim, core.on.query_stage[0]
    heads = stream.batch * problem.call.heads + stream.head * problem.call.group + stream.block * plan.group_heads
    source = core.gm["query"][core.wide(heads, problem.call.seq_q * dim)]

    def emit(heads: int) -> None:
        tik.data_move(stage, source, 0, 1, heads * problem.call.seq_q * dim // BLOCK_HALVES, 0, 0)

    by_block(core, stream.block, emit)
    scatter(core, slot, stage, plan.rows, dim)


def by_block(core: Core[DecodePlan], block: Number, emit: Callable[[int], None]) -> None:
    """Emit `emit(query heads)` for full row blocks, and for a shorter last one."""
    plan = core.plan
    rest = core.problem.call.group - (plan.row_blocks - 1) * plan.group_heads
    if rest == plan.group_heads:
        emit(rest)
        return
    with core.tik.if_scope(block < plan.row_blocks - 1):
        emit(plan.group_heads)
    with core.tik.else_scope():
        emit(rest)


def scatter(core: Core[DecodePlan], target: Tensor, stage: Tensor, rows: int, dim: int) -> None:
    """Move rows of `dim` values to FRACTAL_NZ (dim / 16, rows, 16) in L1."""
    columns = dim // BLOCK_HALVES
    for column in range(columns):
        source = stage[column * BLOCK_HALVES]
        core.tik.data_move(target[column * rows * BLOCK_HALVES], source, 0, rows, 1, columns - 1, 0)
