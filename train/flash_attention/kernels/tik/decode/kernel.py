"""The main decoding kernel: sums of a few queries against the key tiles of each core.

FlashAttention-2 (Dao, 2023), algorithm 1, with the keys split over the cores, as in Flash-Decoding:

    for K, V in key tiles of this core:                         schedule.py
        Q, K, V in fractals                                     load.py
        S = K Q^T                                               here
        S scaled, capped, biased, hidden                        softmax.take
        m' = max(m, S), P = exp(S - m'), l = l exp(m - m') + P  softmax.update
        O = O exp(m - m') + V^T P^T                             here (Cube), softmax.accumulate
        m, l, O if a row block ends on this core                store.py
    output and logsumexp from the parts of all cores            merge.py, a kernel

Memory is the limit: keys and values stream through double buffers without a stop from one sequence to the next, all
else happens meanwhile. The matrices are transposed: S has a key per row, O a column of the output.
"""

from __future__ import annotations

import functools

from flash_attention.kernels.tik.decode import load, softmax, store
from flash_attention.kernels.tik.decode.schedule import Current, Stream, choose, tiles_of
from flash_attention.kernels.tik.decode.tiling import DecodePlan
from flash_attention.kernels.tik.hardware import FRACTAL, LANES
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, Tensor


class Decode:
    """The main decoding kernel. Step by step a tile is loaded, and the one before it is worked on.

    Raises:
        ValueError: the problem asks for what the kernels do not have.
    """

    flags = 0

    def __init__(self, problem: KernelProblem):
        call = problem.call
        self.problem, self.pages = problem, problem.pages
        choice = choose(problem)
        self.plan, self.buffers, self.cores = choice.plan, choice.buffers, problem.cores
        most = call.batch * call.kv_heads * self.plan.row_blocks * tiles_of(problem, self.plan, call.seq_k)[2]
        self.units = -(-most // problem.cores), most

    def emit(self, core: Core[DecodePlan], index: Number) -> None:
        """Emit the statements of one core."""
        self.core, self.tik = core, core.tik
        softmax.initialise(core)
        core.fill(core.on.query_stage[0], 0.0, self.plan.rows * self.plan.head_dim)
        softmax.clear(core)
        self.stream, self.current = Stream(core, index, functools.partial(store.fill, core)), Current(core)
        pages, stream = self.pages, self.stream
        self.rows = load.Rows(core, stream) if pages is None else load.PagedRows(core, stream, pages[1])
        last_key, shift = core.scalar("int32", "last_key"), core.scalar("int32", "shift")
        self.scratch = softmax.Scratch(last_key, shift, core.scalar("float32", "number"))
        steps = core.scalar("int32", "steps", self.stream.left + 1)
        with self.tik.if_scope(self.stream.left > 0), self.tik.for_range(0, (steps + 1) // 2, name="step"):
            for parity in range(2):
                self._step(parity)

    def _step(self, parity: int) -> None:
        tik, stream, current = self.tik, self.stream, self.current
        with tik.if_scope(stream.left > 0):
            self.rows.next_tile()
            with tik.if_scope(stream.fresh > 0):
                load.load_query(self.core, stream, self.core.on.query[parity])
                if self.core.problem.call.rules.alibi:
                    core, size = self.core, self.plan.row_groups * LANES
                    block = stream.head * self.plan.row_blocks + stream.block
                    source = core.gm["row_slopes"][(stream.pair if core.problem.slope_stride else block) * size]
                    tik.data_move(core.on.next_slopes[parity], source, 0, 1, size // 8, 0, 0)
            self.rows.load("key", self._slots("key", parity))
            self.rows.load("value", self._slots("value", parity))
        with tik.if_scope(current.active > 0):
            self._scores(1 - parity)
            self._output(1 - parity)
        current.take(stream)
        stream.advance()

    def _slots(self, name: str, parity: int) -> list[Tensor]:
        """Return Tensors in L1 of the segments of a tile."""
        count = self.plan.segments
        return self.core.on.copies(name)[parity * count : (parity + 1) * count]

    def _scores(self, parity: int) -> None:
        core, plan, tik = self.core, self.plan, self.tik
        with tik.if_scope(self.current.fresh > 0):
            tik.load2dv1(
                core.on.l0_query[0], core.on.query[parity], 0, plan.rows * plan.head_dim // FRACTAL, 1, 0, False
            )
            softmax.clear(core)
            for slopes in core.on.copies("slopes"):
                core.with_scalar("vec_adds", slopes, core.on.next_slopes[parity], 0.0, slopes.shape[0])
        columns, groups = plan.head_dim // 16, plan.segment // 16
        for target, key in zip(core.on.scores, self._slots("key", parity)):
            operand = core.on.l0_key[0]
            for group in range(groups):
                tik.load2dv1(operand[group * columns * FRACTAL], key[group * FRACTAL], 0, columns, groups, 0, False)
            tik.mmad(target, operand, core.on.l0_query[0], plan.segment, plan.head_dim, plan.rows, 0)
        softmax.take(core, self.current, self.scratch)
        softmax.update(core)

    def _output(self, parity: int) -> None:
        core, plan, tik = self.core, self.plan, self.tik
        columns, size = plan.segment // 16, plan.segment * 16
        for segment, (value, probability) in enumerate(
            zip(self._slots("value", parity), self._slots("probability", parity))
        ):
            for group in range(plan.row_groups):
                source = core.on.half[0][(segment * plan.row_groups + group) * size]
                tik.data_move(probability[group * FRACTAL], source, 0, columns, 16, 0, (plan.row_groups - 1) * 16)
            left, right = core.on.l0_value[0], core.on.l0_probability[0]
            tik.load2dv1(right, probability, 0, columns * plan.row_groups, 1, 0, True)
            tik.load2dv1(left, value, 0, plan.segment * plan.value_dim // FRACTAL, 1, 0, True)
            tik.mmad(core.on.product[0], left, right, plan.value_dim, plan.segment, plan.rows, int(segment > 0))
        softmax.accumulate(core)
        with tik.if_scope(self.current.last > 0):
            softmax.finish(core)
            store.fill(core, self.current.slot)
