"""Schedule of decoding: the key tiles of all sequences and heads are one stream, of which cores take equal parts.

The lengths are data, so the cores find their parts themselves. The part of a core begins at tile core * total // cores
and ends before the part of the next core. With fewer tiles than cores only the first cores have a tile, so that the
slots of a pair have no holes. A part that begins or ends inside a sequence leaves sums to be merged, which slots hold.
A pair is a sequence and a row block. First comes one slot per core, for a pair that began on another core. Then comes
one slot per pair, for the core that has its first tile.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Callable

import numpy as np

from flash_attention.kernels.tik.common.work_split import Choice
from flash_attention.kernels.tik.decode import tiling
from flash_attention.kernels.tik.decode.tiling import DecodePlan
from flash_attention.kernels.tik.hardware import Buffer, excess
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, RunTime, Scalar

MOST_QUERIES = 16  # of a call
OUT_OF_REACH = 1 << 24  # keys before and after a query: more than there are, and exact in float32


@dataclass(frozen=True)
class DecodeSplit:
    """The work of both kernels.

    Attributes:
        slots: number of slots of sums, see the module.
        limits: see `VisibleKeys.table`.
        slope_rows: see `slope_rows`.
        columns: columns of the output in a unit of the merging kernel.
        merge_buffers: on-chip buffers of that kernel.
    """

    slots: int
    limits: np.ndarray
    slope_rows: np.ndarray
    columns: int
    merge_buffers: tuple[Buffer, ...]


DecodeChoice = Choice[DecodePlan, DecodeSplit]


@functools.lru_cache(maxsize=16)
def choose(problem: KernelProblem) -> DecodeChoice:
    """Return the plan and its buffers.

    Raises:
        ValueError: the problem asks for what the kernels do not have, or does not fit the memories of a core.
    """
    call = problem.call
    reason = refuse(problem, tiling.rows_at_once(problem))
    if reason:
        raise ValueError(f"decode: {reason}")
    plan = tiling.plan(problem)
    pairs = call.batch * call.kv_heads * plan.row_blocks * plan.row_groups
    # Columns of the output in a unit of the merging kernel: as many as leave units for all cores.
    divisors = [16 * size for size in range(8, 0, -1) if call.value_dim // 16 % size == 0]
    columns = next((size for size in divisors if pairs * (call.value_dim // size) >= problem.cores), 16)
    main, merge = tiling.buffers(problem, plan), tiling.merge_buffers(problem, columns)
    for parts in (main, merge):
        if excess(parts, problem):
            raise ValueError(f"decode: needs {excess(parts, problem)}")
    limits, rows = VisibleKeys.of(problem, plan).table(plan), slope_rows(problem, plan)
    work = DecodeSplit(slots(problem, plan), limits, rows, columns, tuple(merge))
    return Choice(plan, work, tuple(main))


def refuse(problem: KernelProblem, most_queries: int = MOST_QUERIES) -> str | None:
    """Return why the decoding kernels cannot compute a problem, or None. With more queries other kernels are faster."""
    call = problem.call
    rules = call.rules
    if call.seq_q > most_queries:
        return f"got {call.seq_q} queries, allowed are {most_queries}"
    for dim in (call.head_dim, call.value_dim):
        if dim % 16:
            return f"got head_dim {dim}, allowed are multiples of 16"
    for name, given in (
        ("a mask", problem.mask != "none"),
        ("a bias tensor", call.bias_shape is not None),
        ("dropout", call.dropout_threshold > 0),
        ("layout but BNSD", problem.layout != "BNSD"),
        ("block windows", rules.in_blocks),
        ("block masks", problem.listed),
    ):
        if given:
            return f"the decoding kernels have no {name.removeprefix('a ')}"
    if problem.cores > 255:
        return f"got {problem.cores} cores, allowed are 255"
    return None


@dataclass(frozen=True)
class VisibleKeys:
    """Keys that the rows of a row block see. Row r sees keys p + before[r] to p + after[r], p = position of query 0.

    Attributes:
        before, after: by row, relative to the position of query 0.
        seq_q: queries; row r belongs to query r % seq_q.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    seq_q: int

    @staticmethod
    def of(problem: KernelProblem, plan: DecodePlan) -> VisibleKeys:
        call = problem.call
        rules = call.rules
        queries = [row % call.seq_q for row in range(plan.group_heads * call.seq_q)]
        ends = [0] if rules.causal else []
        ends += [rules.window_right] if rules.window_right >= 0 else []
        return VisibleKeys(
            tuple(query - rules.window_left if rules.window_left >= 0 else -OUT_OF_REACH for query in queries),
            tuple(query + min(ends) if ends else OUT_OF_REACH for query in queries),
            call.seq_q,
        )

    @property
    def limits(self) -> tuple[int, int, int, int]:
        """Return least and largest first key of a row, least and largest last key."""
        return min(self.before), max(self.before), min(self.after), max(self.after)

    def table(self, plan: DecodePlan) -> np.ndarray:
        """Return float32 (groups of rows, 3, 64): after, before and query of 16 rows, four times over. Padding is as
        row 0.
        """
        rows = [row if row < len(self.after) else 0 for row in range(plan.rows)]
        queries = tuple(row % self.seq_q for row in range(len(self.after)))
        values = np.array([[column[row] for row in rows] for column in (self.after, self.before, queries)], np.float32)
        return np.tile(values.reshape(3, plan.row_groups, 16).transpose(1, 0, 2), (1, 1, 4))


def tiles_of(problem: KernelProblem, plan: DecodePlan, length: int) -> tuple[int, int, int]:
    """Return (position of query 0, first key tile, tiles) of a sequence of `length` keys."""
    least, _, _, most = VisibleKeys.of(problem, plan).limits
    base = problem.call.rules.offset(problem.call.seq_q, length)
    start, end = max(base + least, 0), min(base + most + 1, length)
    if end <= start:
        return base, 0, 0
    first = start // plan.keys
    return base, first, -(-end // plan.keys) - first


def slots(problem: KernelProblem, plan: DecodePlan) -> int:
    """Return slots of sums, see the module."""
    return problem.cores + problem.call.batch * problem.call.kv_heads * plan.row_blocks


def head_rows(problem: KernelProblem, plan: DecodePlan) -> np.ndarray:
    """Query head of every row: int32 (pairs of a sequence, groups of rows, 64), 16 rows four times over.

    Rows of padding have the head of row 0.
    """
    call = problem.call
    rows = np.arange(plan.rows)
    heads = np.zeros((call.kv_heads, plan.row_blocks, plan.rows), np.int32)
    for block in range(plan.row_blocks):
        inside = rows // call.seq_q + block * plan.group_heads
        real = (rows < plan.group_heads * call.seq_q) & (inside < call.group)
        heads[:, block] = np.where(real, inside, block * plan.group_heads)
    heads += np.arange(call.kv_heads, dtype=np.int32)[:, None, None] * call.group
    return np.tile(heads.reshape(-1, plan.row_groups, 16), (1, 1, 4))


def slope_rows(problem: KernelProblem, plan: DecodePlan) -> np.ndarray:
    """Return the number of each row's slope, like `head_rows`. If each sequence has slopes of its own, the rows repeat
    for all sequences.
    """
    rows = head_rows(problem, plan)
    if not problem.slope_stride:
        return rows
    return np.concatenate([rows + item * problem.slope_stride for item in range(problem.call.batch)])


class Sequences:
    """The sequence in hand, as run-time scalars.

    Attributes:
        length: keys.
        base: position of query 0.
        first, tiles: the key tiles that its queries see.
    """

    def __init__(self, core: Core[DecodePlan], name: str):
        self.core = core
        self.visible = VisibleKeys.of(core.problem, core.plan)
        self.paged = "context_lens" in core.gm
        names = ("length", "base", "first", "tiles", "start", "end")
        base, first, tiles = tiles_of(core.problem, core.plan, core.problem.call.seq_k)
        self.constant_tiles = tiles  # of a contiguous cache
        values = (0,) * len(names) if self.paged else (core.problem.call.seq_k, base, first, tiles, 0, 0)
        self.length, self.base, self.first, self.tiles, self._start, self._end = (
            core.scalar("int32", f"{name}_{field}", value) for field, value in zip(names, values)
        )
        if self.paged:
            lengths = core.on.lengths[0]
            core.tik.data_move(lengths, core.gm["context_lens"], 0, 1, lengths.shape[0] // 8, 0, 0)

    def load(self, batch: Number) -> None:
        """Take sequence number `batch` in hand. Sequences of a contiguous cache are all alike."""
        if not self.paged:
            return
        tik, problem, keys = self.core.tik, self.core.problem, self.core.plan.keys
        least, _, _, most = self.visible.limits
        self.length.set_as(self.core.on.lengths[0][batch])
        bottom = problem.call.rules.causal_alignment == "bottom_right"
        self.base.set_as(self.length - problem.call.seq_q if bottom else 0)
        self._start.set_as(self.base + least)
        with tik.if_scope(self._start < 0):
            self._start.set_as(0)
        self._end.set_as(self.base + (most + 1))
        with tik.if_scope(self._end > self.length):
            self._end.set_as(self.length)
        self.first.set_as(0)
        self.tiles.set_as(0)
        with tik.if_scope(self._end > self._start):
            self.first.set_as(self._start // keys)
            self.tiles.set_as((self._end + (keys - 1)) // keys - self.first)

    def totals(self, empty: Callable[[Number], None] | None = None) -> tuple[Scalar, Scalar]:
        """Return tiles of all sequences and heads, and cores that have some: new scalars.

        Args:
            empty: records what happens for the number of a sequence without tiles.
        """
        core = self.core
        total = core.scalar("int32", "total", 0)
        if not self.paged:
            total.set_as(self.tiles * (core.problem.call.batch * per_sequence(core)))
        if self.paged or self.constant_tiles == 0:
            with core.tik.for_range(0, core.problem.call.batch, name="counted") as batch:
                self.load(batch)
                total.set_as(total + self.tiles * per_sequence(core))
                if empty is not None:
                    with core.tik.if_scope(self.tiles == 0):
                        empty(batch)
        cores = core.scalar("int32", "busy_cores", core.problem.cores)
        with core.tik.if_scope(total < cores):
            cores.set_as(total)
        return total, cores

    def seek(self, tile: RunTime, batch: Scalar, pair: Scalar, inside: Scalar) -> None:
        """Find a tile of the stream: sets its sequence, the first pair of that, and the tile's number inside it."""
        core, tik = self.core, self.core.tik
        if not self.paged:
            batch.set_as(tile // (self.tiles * per_sequence(core)))
            pair.set_as(batch * per_sequence(core))
            inside.set_as(tile % (self.tiles * per_sequence(core)))
            return
        found = core.scalar("int32", "found", 0)
        inside.set_as(tile)
        pair.set_as(0)
        with tik.for_range(0, core.problem.call.batch, name="sought") as index, tik.if_scope(found == 0):
            self.load(index)
            with tik.if_scope(inside < self.tiles * per_sequence(core)):
                found.set_as(1)
                batch.set_as(index)
            with tik.else_scope():
                inside.set_as(inside - self.tiles * per_sequence(core))
                pair.set_as(pair + per_sequence(core))


def per_sequence(core: Core[DecodePlan]) -> int:
    """Return pairs of a sequence: row blocks of its key/value heads."""
    return core.problem.call.kv_heads * core.plan.row_blocks


class Stream:
    """The tiles of this core, one after the other: the one to load.

    Attributes:
        left: tiles to come, this one included.
        batch, head, block, pair: what the tile belongs to; head is the key/value head.
        tile: number of the tile among the tiles of its pair.
        fresh: 1 if it is the first one of its pair on this core.
        slot: where the sums of the pair go.
    """

    def __init__(self, core: Core[DecodePlan], index: Number, fill: Callable[[Number], None]):
        """Let `fill(slot)` record that a slot gets empty sums. Every slot has to be written, because the merge reads
        all.
        """
        self.core = core
        self.sequence = Sequences(core, "stream")
        names = ("left", "batch", "head", "block", "pair", "tile", "fresh", "slot")
        self.left, self.batch, self.head, self.block, self.pair, self.tile, self.fresh, self.slot = (
            core.scalar("int32", f"stream_{field}", 0) for field in names
        )
        tik, sequence = core.tik, self.sequence

        def empty(batch: Number) -> None:
            mine = tik.if_scope(batch % core.problem.cores == index)
            with mine, tik.for_range(0, per_sequence(core), name="empty") as pair:
                fill(core.problem.cores + batch * per_sequence(core) + pair)

        total, cores = sequence.totals(empty)
        begin, inside = core.scalar("int32", "begin"), core.scalar("int32", "inside")
        with tik.if_scope(index < cores):
            begin.set_as(index * total // cores)
            self.left.set_as((index + 1) * total // cores - begin)
        self.slot.set_as(core.problem.cores)
        with tik.if_scope(self.left > 0):
            sequence.seek(begin, self.batch, self.pair, inside)
            self.tile.set_as(inside % sequence.tiles)
            inside.set_as(inside // sequence.tiles)
            self.pair.set_as(self.pair + inside)
            self.head.set_as(inside // core.plan.row_blocks)
            self.block.set_as(inside % core.plan.row_blocks)
            self.fresh.set_as(1)
            self.slot.set_as(core.problem.cores + self.pair)
            with tik.if_scope(self.tile > 0):
                self.slot.set_as(index)
        with tik.if_scope(self.slot >= core.problem.cores):
            fill(index)

    @property
    def start(self) -> RunTime:
        """Return the first key of the tile."""
        return (self.sequence.first + self.tile) * self.core.plan.keys

    def advance(self) -> None:
        """Go on to the next tile."""
        core, tik, sequence = self.core, self.core.tik, self.sequence
        self.left.set_as(self.left - 1)
        self.fresh.set_as(0)
        self.tile.set_as(self.tile + 1)
        with core.when(self.left > 0, self.tile == sequence.tiles):
            self.fresh.set_as(1)
            self.tile.set_as(0)
            self.pair.set_as(self.pair + 1)
            self.block.set_as(self.block + 1)
            with tik.if_scope(self.block == core.plan.row_blocks):
                self.block.set_as(0)
                self.head.set_as(self.head + 1)
                with tik.if_scope(self.head == core.problem.call.kv_heads):
                    self.head.set_as(0)
                    # The next one that has tiles; there is one.
                    self.batch.set_as(self.batch + 1)
                    sequence.load(self.batch)
                    if sequence.paged:
                        with (
                            tik.for_range(0, core.problem.call.batch, name="skipped"),
                            tik.if_scope(sequence.tiles == 0),
                        ):
                            self.batch.set_as(self.batch + 1)
                            self.pair.set_as(self.pair + per_sequence(core))
                            sequence.load(self.batch)
            self.slot.set_as(core.problem.cores + self.pair)


class Current:
    """The tile in work, which is the one that was loaded before.

    Attributes:
        active: 1 if there is one.
        slot: where the sums of its pair go.
        start, base, length: first key of the tile, position of query 0, keys of the sequence.
        fresh, last: 1 if it is the first or the last tile of its pair on this core.
    """

    def __init__(self, core: Core[DecodePlan]):
        names = ("active", "slot", "start", "base", "length", "fresh", "last")
        self.active, self.slot, self.start, self.base, self.length, self.fresh, self.last = (
            core.scalar("int32", f"current_{field}", 0) for field in names
        )
        self.tik = core.tik

    def take(self, stream: Stream) -> None:
        """Set the tile that the stream stands at."""
        tik = self.tik
        self.active.set_as(0)
        with tik.if_scope(stream.left > 0):
            self.active.set_as(1)
            self.slot.set_as(stream.slot)
            self.start.set_as(stream.start)
            self.base.set_as(stream.sequence.base)
            self.length.set_as(stream.sequence.length)
            self.fresh.set_as(stream.fresh)
            self.last.set_as(0)
            with tik.if_scope(stream.left == 1):
                self.last.set_as(1)
            with tik.if_scope(stream.tile + 1 == stream.sequence.tiles):
                self.last.set_as(1)

    def shift(self, target: Scalar, position: Number) -> Scalar:
        """Return a key position counted from the tile's first key, in the scalar `target`."""
        target.set_as(position - self.start)
        return target
