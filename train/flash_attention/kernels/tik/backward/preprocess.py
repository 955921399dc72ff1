"""Pre-pass of the backward operator: what the gradients need once per query row.

It computes D_i = rowsum(d_output * output) minus the incoming gradient of the logsumexp. That is equation 4 of Dao,
"FlashAttention-2" (2023), extended to a logsumexp that is an output. D and the logsumexp become float16 terms that the
Cube adds to its products (score_terms.py). Computed ALiBi contributes its query terms here too.

The products of d_output and value leave the Cube as float16. So rows of great d_output are divided by a power of two,
and the exponents of their probabilities are raised by its logarithm. Gradients of scores and values stay the same.

The row sums are the diagonals of d_output . output^T, 16 rows at a time. The Cube makes 16 times as many products as
are wanted. It still takes less time than Vector would take to convert the operands. Memory is the limit of the pass.
"""

from __future__ import annotations

import math

from flash_attention.kernels.tik.backward import row_block
from flash_attention.kernels.tik.backward.row_block import Place
from flash_attention.kernels.tik.common import alibi, score_terms
from flash_attention.kernels.tik.common.tails import by_rows, if_rows
from flash_attention.kernels.tik.hardware import FRACTAL, Buffer, excess
from flash_attention.kernels.tik.layout import SINK_LANES, row_term_kinds, row_terms_shape, stored_rows
from flash_attention.kernels.tik.problem import KernelProblem, padded
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, Tensor

ROWS = (128, 64, 32, 16)  # queries of a block
# Kinds of terms: of d_output . value, of the scores, of the scores of keys after queries.
DELTA, SCORE, AFTER = range(3)
COPIES = 3  # blocks in the Unified Buffer at a time
# One float32 value per query row each.
LOADED = ("logsumexp", "d_logsumexp")
VECTORS = ("delta", "seen", "slope_value", "slope_part", "largest", "steps", "shrink")
SINK_VECTORS = {"sink": COPIES, "sink_rows": 1}
# Constants per query row.
CONSTANTS = {"zero": 0.0, "one": 1.0, "largest_half": 65504.0, "least_half": -65504.0}
LEAST_SCORE = -120000.0  # of a row that sees nothing: its probabilities are zero
FOLD = 4  # rows of a fractal in one repeat of float32
# A row whose largest number passes one of these limits is divided by STEP for each that it passes.
STEP, LIMITS = 32.0, (1.0, 32.0, 1024.0)
GAPS = 1024.0  # float16 numbers from a power of two to the next


class RowPlan:
    """Shape of a block, as the shared helpers ask for it: the largest that fits.

    Raises:
        ValueError: none fits the memories of a core.
    """

    strategy, keys, row_blocks = "rows128", 16, 1

    def __init__(self, problem: KernelProblem):
        call = problem.call
        self.head_dim, self.value_dim = padded(call.head_dim), padded(call.value_dim)
        for rows in ROWS:
            self.rows = rows if problem.sequences else min(rows, padded(call.seq_q))
            self.buffers = buffers(problem, self)
            reason = excess(self.buffers, problem)
            if not reason:
                return
        raise ValueError(f"backward: the pre-pass needs {reason}")


def buffers(problem: KernelProblem, plan: RowPlan) -> list[Buffer]:
    """Return on-chip buffers in the order of allocation."""
    whole = plan.rows * plan.value_dim
    return [
        # The next block is on its way while this one is in work.
        Buffer("output", "L1", "float16", whole, COPIES),
        Buffer("d_output", "L1", "float16", whole, COPIES),
        Buffer("l0_d_output", "L0A", "float16", whole),
        Buffer("l0_output", "L0B", "float16", whole),
        Buffer("squares", "L0C", "float32", plan.rows * 16),
        Buffer("square", "UB", "float32", plan.rows * 16),
        Buffer("diagonal", "UB", "float32", plan.rows * FOLD),
        Buffer("half_sum", "UB", "float32", plan.rows * FOLD // 2),
        Buffer("zeros", "UB", "float16", 16 * plan.value_dim),
        Buffer("scaled", "UB", "float16", whole, COPIES),
        *(Buffer(name, "UB", "float16", plan.rows * 16) for name in ("extremes", "turned")),
        *(Buffer(name, "UB", "float32", 128, COPIES) for name in LOADED),
        Buffer("rounded_term", "UB", "float32", 128, 2),
        Buffer("passed", "UB", "float32", 128, len(LIMITS)),
        *(Buffer(name, "UB", "float32", 128) for name in (*VECTORS, *CONSTANTS)),
        *(Buffer(name, "UB", "float32", 128, copies) for name, copies in SINK_VECTORS.items() if problem.call.sinks),
        Buffer("term", "UB", "float16", 128),
        Buffer("row_numbers", "UB", "float32", 128),
        Buffer("terms", "UB", "float16", plan.rows * 16, row_term_kinds(problem)),
        *row_block.buffers(problem, COPIES),
    ]


class _RowSlopes(alibi.Slopes[RowPlan]):
    """Query terms of computed ALiBi, to their place in the Unified Buffer."""

    def _write(self, a: int, epoch: Number, place: int, half: Tensor) -> None:
        core = self.core
        for kind, sign in ((SCORE, 1.0), (AFTER, -1.0))[: len(core.on.terms) - 1]:
            target = core.on.terms[kind][place * 16]
            core.tik.vec_muls(16, target, half, sign, core.plan.rows // 16, 16, 1)


class Preprocess:
    """The pre-pass, block after block.

    Raises:
        ValueError: it does not fit the memories of a core.
    """

    flags = 0

    def __init__(self, problem: KernelProblem):
        call = problem.call
        self.plan, self.with_gradient = RowPlan(problem), call.return_lse
        self.blocks, self.buffers = -(-stored_rows(problem) // self.plan.rows), self.plan.buffers
        total = call.batch * call.heads * self.blocks
        self.cores = min(problem.cores, total)
        self.units = -(-total // self.cores), total

    def emit(self, core: Core[RowPlan], index: Number) -> None:
        """Emit the statements of one core."""
        self.core, cores, (_, total) = core, self.cores, self.units
        self.slopes = _RowSlopes(core) if core.problem.call.bias == "alibi" else None
        self._constants()
        core.clear_padding("scaled_d_output", core.on.extremes[0], index, cores)
        share, rest = divmod(total, cores)
        count = core.scalar("int32", "count", share)
        with core.tik.if_scope(index < rest):
            count.set_as(share + 1)
        places = [Place(core, self.blocks, copy) for copy in range(COPIES)]
        row_block.load(core)

        def load(item: Number, copy: int) -> None:
            with core.tik.if_scope(item < count):
                places[copy].fetch(item * cores + index)
                places[copy].find()
                self._load(places[copy], copy)

        load(0, 0)
        with core.tik.for_range(0, -(-(share + 1) // COPIES), name="pair") as pair:
            for copy in range(COPIES):
                item = pair * COPIES + copy
                # Before the work on this block: the queue of Vector holds less than a block's instructions.
                load(item + 1, (copy + 1) % COPIES)
                with core.tik.if_scope(item < count):
                    self._block(places[copy], copy)

    def _constants(self) -> None:
        core, plan, problem = self.core, self.core.plan, self.core.problem
        for buffer in (*core.on.terms, *core.on.zeros):
            core.fill(buffer, 0.0, buffer.shape[0])
        core.fill(core.on.diagonal[0], 0.0, plan.rows * FOLD)
        if core.tail_rows:  # rows past the last ones take part in products that nothing reads
            for buffer in (*core.on.output, *core.on.d_output):
                for group in range(plan.rows // 16):
                    target = buffer[group * 16 * plan.value_dim]
                    core.tik.data_move(target, core.on.zeros[0], 0, 1, plan.value_dim, 0, 0)
        for name, value in {
            **dict.fromkeys((*LOADED, "rounded_term", "passed", *VECTORS, *SINK_VECTORS), 0.0),
            **CONSTANTS,
        }.items():
            for vector in core.on.copies(name):
                core.fill(vector, value, 128)
        core.fill(core.on.term[0], 0.0, 128)
        for place, value in score_terms.query_constants(problem).items():
            for kind in core.on.terms[SCORE:]:
                core.tik.vec_dup(16, kind[place * 16], value, plan.rows // 16, 16)
        if self.slopes:
            alibi.initialise(core)

    def _load(self, place: Place, copy: int) -> None:
        """Load rows of output and d_output, and a number per row of the others."""
        core, plan, tik = self.core, self.core.plan, self.core.tik
        logsumexp, d_logsumexp = (core.on.copies(name)[copy] for name in LOADED)

        def vector(target: Tensor, name: str, have: Number) -> None:
            source = core.gm[name][core.wide(place.head, core.seq_q) + place.start]
            if isinstance(have, int):
                tik.data_move(target, source, 0, 1, padded(have) // 8, 0, 0)
                return
            core.fill(target, 0.0, 128)  # nobody has written rows that no row block has
            with tik.if_scope(have > 0):
                tik.data_move(target, source, 0, 1, (have + 7) // 8, 0, 0)

        def emit(have: Number) -> None:
            vector(logsumexp, "logsumexp", have)
            if self.with_gradient:
                vector(d_logsumexp, "d_logsumexp", have)
            if core.problem.call.sinks:
                source = core.gm["sinks"][place.head * SINK_LANES]
                tik.data_move(core.on.sink[copy], source, 0, 1, SINK_LANES // 8, 0, 0)
            first = place.address("output")
            for name in ("output", "d_output"):
                tensor = core.on.copies(name)[copy]
                if not isinstance(have, int):
                    self._load_short(tensor, name, first, have)
                    continue
                if have % 16:  # the terms of the rows up to the next 16 are stored too
                    rest = 16 - have % 16
                    tik.data_move(tensor[have * 16], core.on.zeros[0], 0, core.value_columns, rest, 0, plan.rows - rest)
                core.load((tensor, 0), name, first, have, plan.rows)

        by_rows(core, place.rows, emit)

    def _load_short(self, tensor: Tensor, name: str, first: Number, have: Number) -> None:
        """Move a run-time number of rows, and zeros in those behind: what is stored per row is whole."""
        core, plan = self.core, self.core.plan
        for group in range(plan.rows // 16):
            target = tensor[group * 16 * plan.value_dim]
            core.tik.data_move(target, core.on.zeros[0], 0, 1, plan.value_dim, 0, 0)
        with core.tik.if_scope(have > 0):
            core.load((tensor, 0), name, first, have, plan.rows)

    def _block(self, place: Place, copy: int) -> None:
        core, tik, problem = self.core, self.core.tik, self.core.problem
        delta, (lse, extra) = core.on.delta[0], (core.on.copies(name)[copy] for name in LOADED)
        # Vector divides rows while the Cube multiplies them.
        rows = core.on.scaled[copy]
        tik.data_move(rows, core.on.d_output[copy], 0, 1, core.value_columns * core.plan.rows, 0, 0)
        self._row_products(copy)
        self._divide_rows(place, rows)
        self._row_sums(delta)
        if self.with_gradient:
            core.binary("vec_sub", delta, delta, extra, 128)
        if problem.call.sinks:
            self._sink_rows(core.on.sink[copy], delta, lse)
        core.with_scalar("vec_muls", delta, delta, -1.0 / problem.call.dropout_scale, 128)
        self._negate(lse)
        core.binary("vec_mul", delta, delta, core.on.shrink[0], 128)
        core.with_scalar("vec_axpy", lse, core.on.steps[0], math.log(STEP) / problem.post_scale, 128)
        for number in score_terms.REFERENCE:
            self._terms(number, ((delta, (DELTA,)), (lse, tuple(range(SCORE, len(core.on.terms))))))
        if self.slopes:
            slope = core.scalar("int32", "slope_head")
            if place.sequence is not None:
                slope.set_as(place.head + place.sequence * problem.call.heads)
            elif problem.slope_stride:
                slope.set_as(place.head)
            else:
                slope.set_as(place.head - place.head // problem.call.heads * problem.call.heads)
            self.slopes.load(slope)
            self.slopes.row_block(place.position, 0, 0)

        def store(have: Number) -> None:
            _, heads, groups, terms, _ = row_terms_shape(problem)
            for kind, source in enumerate(core.on.terms):
                target = core.wide(place.head + kind * heads, groups * terms * 16) + place.start * terms
                gap = score_terms.TERMS - terms
                tik.data_move(core.gm["row_lanes"][target], source, 0, have // 16, terms, gap, 0)
            if problem.call.sinks:
                target = core.wide(place.head, core.seq_q) + place.start
                tik.data_move(core.gm["d_sink_rows"][target], core.on.sink_rows[0], 0, 1, have // 8, 0, 0)

        if problem.sequences:
            store(core.plan.rows)
        else:
            by_rows(core, place.rows, lambda have: store(padded(have)))

    def _divide_rows(self, place: Place, rows: Tensor) -> None:
        """Store scaled_d_output: the rows of d_output times their `shrink`, which is STEP to the power of -`steps`."""
        core, tik, plan = self.core, self.core.tik, self.core.plan
        groups, columns, column = plan.rows // 16, self.core.value_columns, plan.rows * 16
        extremes, turned = core.on.extremes[0], core.on.turned[0]
        for name, target in (("vec_max", extremes), ("vec_min", turned)):
            core.binary(name, target, rows, rows[(columns - 1) * column :], column)
            for first in range(1, columns - 1):
                core.binary(name, target, target, rows[first * column :], column)
        core.with_scalar("vec_muls", turned, turned, -1.0, column)
        core.binary("vec_max", extremes, extremes, turned, column)
        # A fractal of 16 rows becomes 16 columns of theirs, whose halves are compared until one is left.
        tik.vec_trans(turned, extremes, groups, 1, 1)
        for lanes in (128, 64, 32, 16):
            tik.vec_max(lanes, turned, turned, turned[lanes], groups, 16, 16, 16)
        largest, steps, shrink = (core.on.copies(name)[0] for name in ("largest", "steps", "shrink"))
        tik.vec_conv(16, "none", largest, turned, groups, 2, 16)
        # 1 for a number beyond a limit, else 0: float16 has none in between. The limits take turns, as in `_terms`.
        passed = list(zip(core.on.passed, LIMITS))
        for one, limit in passed:
            core.with_scalar("vec_adds", one, largest, -limit, 128)
        for one, limit in passed:
            core.with_scalar("vec_muls", one, one, GAPS / limit, 128)
        for one, _ in passed:
            core.binary("vec_max", one, one, core.on.zero[0], 128)
        for one, _ in passed:
            core.binary("vec_min", one, one, core.on.one[0], 128)
        core.fill(steps, 0.0, 128)
        core.fill(shrink, 1.0, 128)
        for number, (one, _) in enumerate(passed):
            core.with_scalar("vec_axpy", shrink, one, STEP ** -(number + 1) - STEP**-number, 128)
            core.binary("vec_add", steps, steps, one, 128)
        tik.vec_conv(16, "none", turned, shrink, groups, 16, 2)
        for lanes in (16, 32, 64, 128):
            tik.vec_muls(lanes, turned[lanes], turned, 1.0, groups, 16, 16)
        tik.vec_trans(extremes, turned, groups, 1, 1)
        for first in range(columns):
            part = rows[first * column :]
            core.binary("vec_mul", part, part, extremes, column)

        def store(have: Number) -> None:
            name = "scaled_d_output"
            core.store(name, place.address(name), (rows, 0), have, plan.rows)

        with if_rows(core, place.rows):
            by_rows(core, place.rows, store)

    def _negate(self, lse: Tensor) -> None:
        """Compute lse = -lse in units of the scores of L0C. It is LEAST_SCORE if a row sees nothing."""
        core, seen = self.core, self.core.on.seen[0]
        core.with_scalar("vec_muls", seen, lse, 2.0**-10, 128)
        core.with_scalar("vec_adds", seen, seen, 2000.0, 128)
        core.binary("vec_max", seen, seen, core.on.zero[0], 128)
        core.binary("vec_min", seen, seen, core.on.one[0], 128)
        core.binary("vec_mul", lse, lse, seen, 128)
        core.with_scalar("vec_muls", lse, lse, -1.0 / core.problem.post_scale, 128)
        core.with_scalar("vec_adds", seen, seen, -1.0, 128)
        core.with_scalar("vec_axpy", lse, seen, -LEAST_SCORE, 128)

    def _sink_rows(self, sink: Tensor, delta: Tensor, lse: Tensor) -> None:
        """Compute sink_rows = -exp(sink - lse) * delta: the part of each row in the gradient of a sink."""
        core, (share,) = self.core, self.core.on.sink_rows
        core.binary("vec_sub", share, sink, lse, 128)
        core.binary("vec_min", share, share, core.on.zero[0], 128)
        core.unary("vec_exp", share, share, 128)
        core.binary("vec_mul", share, share, delta, 128)
        core.with_scalar("vec_muls", share, share, -1.0, 128)

    def _row_products(self, copy: int) -> None:
        """Compute squares = d_output . output^T of 16 rows each."""
        core, tik, groups, columns = self.core, self.core.tik, self.core.plan.rows // 16, self.core.value_columns
        left, right, squares = core.on.l0_d_output[0], core.on.l0_output[0], core.on.squares[0]
        for group in range(groups):
            at = group * columns * FRACTAL
            tik.load2dv1(left[at], core.on.d_output[copy], group, columns, groups, 0, False)
            tik.load2dv1(right[at], core.on.output[copy], group, columns, groups, 0, False)
        for group in reversed(range(groups)):  # waiting for the last operands covers the others
            at = group * columns * FRACTAL
            tik.mmad(squares[group * FRACTAL], left[at], right[at], 16, columns * 16, 16, 0)

    def _row_sums(self, delta: Tensor) -> None:
        """Compute delta (rows,) = rowsum(d_output * output), the diagonals of the products."""
        core, tik, groups = self.core, self.core.tik, self.core.plan.rows // 16
        square, diagonal, half = core.on.square[0], core.on.diagonal[0], core.on.half_sum[0]
        core.from_l0c(square, core.on.squares[0], groups)
        # A repeat takes four rows of each fractal. Only lanes of the diagonal are written, each by one instruction. The
        # other lanes stay zero, whatever the products of different rows are.
        for first in range(0, 16, FOLD):
            lanes = sum(1 << (17 * row + first) for row in range(FOLD))
            tik.vec_adds([0, lanes], diagonal, square[first * 16], 0.0, groups, 8, 32)
        tik.vec_add(32, half, diagonal, diagonal[32], groups, 4, 8, 8)
        tik.vec_add(16, delta, half, half[16], groups, 2, 4, 4)

    def _terms(self, place: int, values: tuple[tuple[Tensor, tuple[int, ...]], ...]) -> None:
        """Write the next float16 term of each value to some kinds. The value keeps the rest.

        The values take turns: Vector works on one value while it waits for the result of another.
        """
        core, tik, groups = self.core, self.core.tik, self.core.plan.rows // 16
        # The last term takes what is left; if that does not fit, the result does not either.
        last = place == score_terms.REFERENCE[-1]
        work = [(value, kinds, back) for (value, kinds), back in zip(values, core.on.rounded_term)]
        if not last:
            for value, _, back in work:
                core.binary("vec_min", back, value, core.on.largest_half[0], 128)
            for _, _, back in work:
                core.binary("vec_max", back, back, core.on.least_half[0], 128)
        for value, kinds, back in work:
            for kind in kinds:
                tik.vec_conv(16, "none", core.on.terms[kind][place * 16], value if last else back, groups, 16, 2)
        if last:
            return
        for _, kinds, back in work:
            tik.vec_conv(16, "none", back, core.on.terms[kinds[0]][place * 16], groups, 2, 16)
        for value, _, back in work:
            core.binary("vec_sub", value, value, back, 128)
