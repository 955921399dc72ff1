"""The second decoding kernel: it merges the partial sums of a row from several cores to output and logsumexp.

With references m, totals l and sums s of the slots of a row: w = exp(m - max m), output = sum w s / sum w l.
"""

from __future__ import annotations

from flash_attention.kernels.tik.decode import schedule, softmax
from flash_attention.kernels.tik.decode.load import by_block
from flash_attention.kernels.tik.decode.schedule import Sequences, per_sequence
from flash_attention.kernels.tik.decode.tiling import MERGED, DecodePlan
from flash_attention.kernels.tik.hardware import LANES, LARGEST_SINGLE
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, RunTime, Step, Tensor

BLOCKS = 2 * LANES // 8  # of the statistics of a group of rows


class Merge:
    """The merging kernel. A unit is `columns` of the output of 16 rows; pairs are as in schedule.py."""

    flags = 0

    def __init__(self, problem: KernelProblem):
        choice = schedule.choose(problem)
        self.plan, self.columns, self.buffers = choice.plan, choice.split.columns, choice.split.merge_buffers
        self.pieces = self.plan.row_groups * self.plan.value_dim // self.columns
        self.share = problem.call.kv_heads * self.plan.row_blocks * self.pieces
        self.cores, total = problem.cores, problem.call.batch * self.share
        self.units = -(-total // problem.cores), total

    def emit(self, core: Core[DecodePlan], index: Number) -> None:
        """Emit the statements of one core."""
        self.core, self.tik, cores, (_, total) = core, core.tik, self.cores, self.units
        core.fill(core.on.ones[0], 1.0, LANES)
        self.sequence = Sequences(core, "merged")
        self.total, self.busy = self.sequence.totals()
        self.begin = core.scalar("int32", "begin", index * total // cores)
        self.end = core.scalar("int32", "end", (index + 1) * total // cores)
        # Sequence of the next unit, unit inside it, and tiles before the sequence.
        self.batch, self.inside, self.before = (core.scalar("int32", name, 0) for name in ("batch", "inside", "before"))
        units = [_Unit(core, number, self.columns) for number in range(min(MERGED, -(-total // cores)))]
        tik, width = core.tik, len(units)
        with tik.if_scope(self.begin < self.end):
            self.sequence.load(0)
            if self.sequence.paged:
                with tik.for_range(0, self.begin // self.share, name="passed") as passed:
                    self.before.set_as(self.before + self.sequence.tiles * per_sequence(self.core))
                    self.sequence.load(passed + 1)
            else:
                self.before.set_as(self.begin // self.share * per_sequence(self.core) * self.sequence.tiles)
            self.batch.set_as(self.begin // self.share)
            self.inside.set_as(self.begin % self.share)
            with tik.for_range(0, (self.end - self.begin + (width - 1)) // width, name="turn") as turn:
                for number, unit in enumerate(units):
                    self._find(unit, self.begin + turn * width + number)
                # The units take turns, because the instructions of one unit are short and depend on each other.
                for steps in zip(*(unit.weights() for unit in units)):
                    for step in steps:
                        step()
                for unit in units if self.core.problem.cores > 1 else ():
                    unit.add_others()
                for steps in zip(*(unit.finish() for unit in units)):
                    for step in steps:
                        step()
                # The last load waits for Vector, and so for all. The places differ, which synchronisation cannot see.
                units[-1].store()
                with tik.new_stmt_scope(disable_sync=True):
                    for unit in units[:-1]:
                        unit.store()

    def _find(self, unit: _Unit, number: Number) -> None:
        """Take the next unit, which has this number. Past the end there is no unit."""
        tik, sequence, core = self.tik, self.sequence, self.core
        unit.active.set_as(0)
        unit.count.set_as(0)
        unit.known.set_as(0)
        with tik.if_scope(number < self.end):
            with tik.if_scope(self.inside == self.share):
                self.inside.set_as(0)
                self.before.set_as(self.before + sequence.tiles * per_sequence(core))
                self.batch.set_as(self.batch + 1)
                sequence.load(self.batch)
            unit.active.set_as(1)
            unit.piece.set_as(self.inside % self.pieces)
            unit.pair.set_as(self.inside // self.pieces)
            with tik.if_scope(sequence.tiles > 0):
                first = self.before + unit.pair * sequence.tiles
                unit.first_core.set_as(((first + 1) * self.busy - 1) // self.total)
                last = ((first + sequence.tiles) * self.busy - 1) // self.total
                unit.count.set_as(last + 1 - unit.first_core)
            unit.pair.set_as(unit.pair + self.batch * per_sequence(core))
            self.inside.set_as(self.inside + 1)
            unit.load()


class _Unit:
    """One of the units in work: run-time scalars, and buffers by its number.

    Attributes:
        active: 1 if there is a unit.
        pair, piece: numbers of its pair and piece. Pieces go by groups of rows, then by columns.
        count, first_core: number of cores with sums of the pair, and the first of these cores.
        known: number of statistics: first of the sinks, then of the slots.
    """

    def __init__(self, core: Core[DecodePlan], number: int, columns: int):
        self.core, self.tik, self.plan, self.number, self.columns = core, core.tik, core.plan, number, columns
        self.slices, self.size = core.plan.value_dim // columns, columns * 16
        self.sinks = int(core.problem.call.sinks)
        names = ("active", "pair", "piece", "count", "first_core", "known")
        self.active, self.pair, self.piece, self.count, self.first_core, self.known = (
            core.scalar("int32", f"unit_{name}_{number}", 0) for name in names
        )

    def _on(self, name: str) -> Tensor:
        return self.core.on.copies(name)[self.number]

    @property
    def group(self) -> RunTime:
        """Return the group of 16 rows of the row block."""
        return self.piece // self.slices

    @property
    def first(self) -> RunTime:
        """Return the first column."""
        return self.piece % self.slices * self.columns

    def load(self) -> None:
        """Load statistics of all slots, sums of the first one."""
        core, tik, statistics = self.core, self.tik, self._on("statistics")
        self.known.set_as(self.count + self.sinks)
        if self.sinks:
            # The sink counts as a core that has seen one score, the sink, and a value of zeros.
            row = self.pair % per_sequence(core) * self.plan.row_groups + self.group
            tik.data_move(statistics, core.gm["row_sinks"][row * LANES], 0, 1, LANES // 8, 0, 0)
            core.fill(statistics[LANES:], 1.0, LANES)
            statistics = statistics[2 * LANES :]
        with tik.if_scope(self.count > 0):
            source = core.wide(self._slot(0) * self.plan.row_groups + self.group, 2 * LANES)
            tik.data_move(statistics, core.gm["statistics"][source], 0, 1, BLOCKS, 0, 0)
            self._load_sums(0, self._on("part"))
        if core.problem.cores == 1:
            return
        with tik.if_scope(self.count > 1):
            source = core.wide(self._slot(1) * self.plan.row_groups + self.group, 2 * LANES)
            gap = (self.plan.row_groups - 1) * BLOCKS
            target = statistics[2 * LANES :]
            tik.data_move(target, core.gm["statistics"][source], 0, self.count - 1, BLOCKS, gap, 0)

    def _slot(self, index: Number) -> RunTime:
        """Return the slot number `index` of the pair, see schedule."""
        if isinstance(index, int) and index == 0:
            return self.pair + self.core.problem.cores
        return self.first_core + index

    def _load_sums(self, index: Number, target: Tensor) -> None:
        core, plan = self.core, self.plan
        source = (
            core.wide(self._slot(index), plan.rows * plan.value_dim) + (self.group * plan.value_dim + self.first) * 16
        )
        self.tik.data_move(target, core.gm["sums"][source], 0, 1, self.size // 8, 0, 0)

    def weights(self) -> list[Step]:
        """Return steps to the weights, the row total, and the first weighted sums.

        Without a slot there are no repeats, and all results are zero.
        """
        core, tik, count, known = self.core, self.tik, self.count, self.known
        statistics, weight, peak, total = map(self._on, ("statistics", "weight", "peak", "total"))
        some = core.scalar("int32", "repeats", 0)

        def fill() -> None:
            core.fill(peak, softmax.NOTHING, LANES)
            core.fill(total, 0.0, LANES)
            core.fill(self._on("sum"), 0.0, self.size)
            some.set_as(0)
            with tik.if_scope(count > 0):
                some.set_as(self.size // LANES)

        return [
            fill,
            lambda: tik.vec_max(LANES, peak, statistics, peak, known, 0, 16, 0),
            lambda: tik.vec_sub(LANES, weight, statistics, peak, known, 8, 16, 0),
            lambda: tik.vec_exp(LANES, weight, weight, known, 8, 8),
            lambda: tik.vec_mul(LANES, statistics[LANES:], weight, statistics[LANES:], known, 16, 8, 16),
            lambda: tik.vec_mul(LANES, self._on("sum"), self._on("part"), weight[self.sinks * LANES], some, 8, 8, 0),
            lambda: tik.vec_add(LANES, total, statistics[LANES:], total, known, 0, 16, 0),
        ]

    def add_others(self) -> None:
        """Compute sum += weight * the sums of the other slots."""
        core, tik, size = self.core, self.tik, self.size
        with tik.if_scope(self.count > 1), tik.for_range(0, self.count // 2, name=f"others_{self.number}") as other:
            for turn, more in enumerate(core.on.more):
                index = other * 2 + turn + 1
                with tik.if_scope(index < self.count):
                    self._load_sums(index, more)
                    core.with_row("vec_mul", more, more, self._on("weight")[(index + self.sinks) * LANES], size)
                    core.binary("vec_add", self._on("sum"), self._on("sum"), more, size)

    def finish(self) -> list[Step]:
        """Return steps to output and logsumexp. A row total is 0, or 1 and more: the largest probability is 1."""
        core, tik, size, ones = self.core, self.tik, self.size, self.core.on.ones[0]
        names = ("total", "seen", "inverse", "peak", "unseen", "row_lse", "half", "sum")
        total, seen, inverse, peak, unseen, lse, half, sums = map(self._on, names)
        return [
            lambda: core.binary("vec_min", seen, total, ones, LANES),
            lambda: core.binary("vec_max", total, total, ones, LANES),
            lambda: core.with_scalar("vec_adds", unseen, seen, -1.0, LANES),
            lambda: tik.vdiv(LANES, inverse, ones, total, 1, 1, 1, 1, 8, 8, 8),
            lambda: core.unary("vec_ln", lse, total, LANES),
            lambda: core.with_scalar("vec_muls", inverse, inverse, 1 / softmax.PROBABILITY_SCALE, LANES),
            lambda: core.binary("vec_add", lse, lse, peak, LANES),
            lambda: core.with_row("vec_mul", sums, sums, inverse, size),
            lambda: core.with_scalar("vec_muls", unseen, unseen, LARGEST_SINGLE, LANES),
            lambda: core.binary("vec_mul", lse, lse, seen, LANES),
            lambda: core.to_half(half, sums, size),
            lambda: core.binary("vec_add", lse, lse, unseen, LANES),
            self._transpose,
        ]

    def _transpose(self) -> None:
        """Turn (columns, 16 rows) to (16 rows, columns)."""
        half, rows, blocks = self._on("half"), self._on("rows"), self.columns // 16
        strides = (0, 0) if blocks == 1 else (1, 16)  # one repeat starts a stride further on, D19a
        targets = [rows[row * self.columns] for row in range(16)]
        self.tik.vec_trans_scatter(False, False, targets, [half[column * 16] for column in range(16)], blocks, *strides)

    def store(self) -> None:
        """Store the rows that exist."""
        core, tik, plan, problem = self.core, self.tik, self.plan, self.core.problem
        dim, blocks = plan.value_dim, self.columns // 16
        block = core.scalar("int32", "row_block")

        def emit(heads: int) -> None:
            first_head = self.pair // plan.row_blocks * problem.call.group + block * plan.group_heads
            target = core.gm["output"][core.wide(first_head * problem.call.seq_q + self.group * 16, dim) + self.first]
            whole, rest = divmod(heads * problem.call.seq_q, 16)
            if whole:
                with tik.if_scope(self.group < whole):
                    tik.data_move(target, self._on("rows"), 0, 16, blocks, 0, dim // 16 - blocks)
            if rest:
                with tik.if_scope(self.group == whole):
                    tik.data_move(target, self._on("rows"), 0, rest, blocks, 0, dim // 16 - blocks)

        with tik.if_scope(self.active > 0):
            block.set_as(self.pair % plan.row_blocks)
            by_block(core, block, emit)
            with tik.if_scope(self.first == 0):
                place = core.gm["logsumexp"][self.pair * plan.rows + self.group * 16]
                tik.data_move(place, self._on("row_lse"), 0, 1, 2, 0, 0)
