"""Gradients of the queries of a step: added to their accumulator in global memory, or rounded when the last part comes.

Where one core visits all of an accumulator (BackwardSplit.owned), the last item that visits a query tile does not add
to it: Vector adds what is there to its part, in the same order and with the same rounding, and d_query leaves at once.
"""

from __future__ import annotations

from typing import Callable

from flash_attention.kernels.tik.backward.plan import RING, BackwardPlan
from flash_attention.kernels.tik.backward.work import BackwardSplit, KeyItem, Unit
from flash_attention.kernels.tik.common import softcap
from flash_attention.kernels.tik.common.tiles import by_rows
from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.hardware import HALF_ROUND, F
from flash_attention.kernels.tik.language import Number, Tensor
from flash_attention.kernels.tik.layout import accumulator_shape


class QuerySums:
    """Records what happens to the query gradients of the steps of one core."""

    def __init__(self, core: Core[BackwardPlan], item: KeyItem, split: BackwardSplit):
        self.core, self.item, self.split = core, item, split
        self._whole = core.plan.rows * core.plan.head_dim
        self._numbers = [core.scalar("int32", "sums", 0) for _ in range(RING)]  # of the steps' places

    def locate(self, unit: Unit) -> None:
        """Notes the number of a step's place in the accumulators, for `store`."""
        item = self.item
        _, heads, tiles, *_ = accumulator_shape(self.core.problem, self.core.plan, self.split.slots)
        number = (item["slot"] * heads + item["head"] + unit.member) * tiles + unit.tile
        self._numbers[unit.position].set_as(number)

    def fetch(self, unit: Unit) -> None:
        """Before `store`: what the items before have added, if a step is the last one for its query tile."""
        self.locate(unit)
        if not self.split.owned:
            return
        core = self.core
        with core.when(*self._is_final(unit)):
            self._move(
                unit,
                lambda sums: core.tik.data_move(core.on.query_total[0][HALF_ROUND], sums, 0, 1, self._whole // 8, 0, 0),
            )

    def store(self, unit: Unit) -> None:
        """The query gradients of a step out of L0C, and on to their accumulator or to d_query."""
        core, tik = self.core, self.core.tik
        stage = core.on.d_query[0]
        self.take(core.plan.query_parts[-1])

        def add(sums: Tensor) -> None:
            tik.set_atomic_add(1)
            tik.data_move(sums, stage, 0, 1, self._whole // 8, 0, 0)
            tik.set_atomic_add(0)

        if not self.split.owned:
            self._move(unit, add)
            return
        with core.when(*self._is_final(unit)):
            self._finish(unit)
        with tik.else_scope():
            self._move(unit, add)

    def take(self, part: tuple[int, int]) -> None:
        """One of plan.query_parts out of L0C; `store` takes the last one itself."""
        core, whole = self.core, part[1] * self.core.plan.rows * 16
        first, size = part[0] * core.plan.rows * 16, whole // len(core.on.query_sum)
        # Backwards: waiting for the last products covers the others, and theirs for this.
        for at, source in reversed(list(zip(range(first, first + whole, size), core.on.query_sum))):
            core.from_l0c(core.on.d_query[0][at], source, size // F)

    def _is_final(self, unit: Unit) -> tuple[Number, Number]:
        return unit.tile >= self.item["final"], unit.tile < self.item["final_end"]

    def _move(self, unit: Unit, record: Callable[[Tensor], object]) -> None:
        """Records a move of the step's place in the accumulators."""
        core, place = self.core, self._numbers[unit.position]

        def move() -> None:
            first = self.item.stored(core.wide(place, self._whole), core.plan.head_dim)
            record(core.gm["d_query_sums"][first])

        if not core.problem.sequences:
            move()
            return
        with core.tik.if_scope(unit.rows > 0):  # keys of a sequence without queries
            move()

    def _finish(self, unit: Unit) -> None:
        """The last part of a query tile: sums and scale in float32, rounded once."""
        core, item, problem, plan, whole = self.core, self.item, self.core.problem, self.core.plan, self._whole
        stage, total, half = core.on.d_query[0], core.on.query_total[0], core.on.query_half[0]
        # Where Vector is the limit, in halves: the result of one is there when it is done with the other.
        size = whole if plan.single else whole // 2
        parts = range(0, whole, size)
        for at in parts:
            core.binary("vec_add", total[at:], total[at + HALF_ROUND :], stage[at:], size, 64)
        factor = softcap.gradient_sign(problem) * problem.post_scale * problem.dropout_scale
        if factor != 1.0:
            for at in parts:
                core.with_scalar("vec_muls", stage[at:], total[at:], factor, size, 64)
            total = stage
        for at in parts:
            core.to_half(half[at:], total[at:], size)
        start = core.start("d_query", item["head"] + unit.member, item.origin("d_query"))

        def store(have: Number) -> None:
            core.store("d_query", start + unit.tile * (plan.rows * 16), (half, 0), have, plan.rows)

        by_rows(core, unit.rows, store)
