"""Gradients out of L0C and on to global memory: of keys and values once an item, of queries in every step.

Gradients of keys and values: if the Unified Buffer holds them whole (Pipeline.deferred), they leave L0C in the first
step of the next item. They go to global memory one part a step. So the products of that item wait for neither move,
and other results that leave the Unified Buffer are not queued behind the gradients.

Gradients of queries are added to their accumulator in global memory. If one core visits all of an accumulator (see
BackwardSplit.writes_d_query), the last item that visits a query tile does not add to it. Instead Vector adds the sum
in the accumulator to its part, in the same order and with the same rounding, and d_query leaves at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable

from flash_attention.kernels.tik.backward import kept_sums
from flash_attention.kernels.tik.backward.items import BackwardSplit, KeyItem, Unit, row_of, words
from flash_attention.kernels.tik.backward.tiling import RING, BackwardPlan
from flash_attention.kernels.tik.common import softcap
from flash_attention.kernels.tik.common.table_row import Field, TableRow
from flash_attention.kernels.tik.common.tails import by_keys, by_rows, if_any, if_rows
from flash_attention.kernels.tik.hardware import FRACTAL, HALF_ROUND
from flash_attention.kernels.tik.layout import accumulator_shape
from flash_attention.kernels.tik.problem import padded
from flash_attention.kernels.tik.recorder import Address, Core
from flash_attention.kernels.tik.tik_types import Number, Tensor

_PLACE = ("kv_head", "batch", "tile", "key_row", "keys")  # of an item's gradients


@dataclass(frozen=True)
class Gradient:
    """A gradient that adds up in L0C during an item.

    Attributes:
        name: name of the output.
        sums: buffer in L0C.
        stage: buffer in the Unified Buffer, for Pipeline.deferred.
        factor: factor of the sums.
    """

    name: str
    sums: str
    stage: str
    factor: float


class Results:
    """Record the stores of the key and value gradients of one core's items.

    Attributes:
        values, keys: the two gradients.
        pending: run-time flag: there is an item whose gradients `take` and `store` have to store.
    """

    def __init__(self, core: Core[BackwardPlan]):
        self.core, problem = core, core.problem
        self.values = Gradient("d_value", "value_sum", "value_gradient", problem.call.dropout_scale)
        factor = softcap.gradient_sign(problem) * problem.call.scale * problem.call.dropout_scale
        self.keys = Gradient("d_key", "key_sum", "key_stage" if core.plan.pipeline.single else "key_gradient", factor)
        if core.plan.pipeline.deferred:
            self.pending = core.scalar("int32", "pending", 0)
            places = words(problem)
            place: dict[Field, int] = {field: places[field] for field in _PLACE if field in places}
            self._item = TableRow(core, "ended", row_of(problem), place)

    def keep(self, item: TableRow) -> None:
        """Note an item that has ended, for `take` and `store`."""
        self._item.copy(item)
        self.pending.set_as(1)

    def take(self, gradient: Gradient) -> None:
        """Take the gradient out of L0C. Uses the scores' buffers, except with factor 1."""
        core, plan, stage = self.core, self.core.plan, self.core.on.copies(gradient.stage)[0]
        total, scores = core.place(gradient.name).columns * plan.keys * 16, core.on.score
        if plan.pipeline.whole and 2 * plan.half == plan.area:  # in turns as well
            scores = [scores[0], scores[0][plan.half :]]
        size = total if gradient.factor == 1.0 else plan.half if len(scores) > 1 else plan.area
        parts = [(at, min(size, total - at), stage[at:]) for at in range(0, total, size)]
        for first in range(0, len(parts), len(scores)):
            self._round(gradient, parts[first : first + len(scores)], scores)

    def store(self, gradient: Gradient, part: int) -> None:
        """Store part 0 to RING - 1 of a gradient that was taken."""
        core, stage = self.core, self.core.on.copies(gradient.stage)[0]
        columns = core.place(gradient.name).columns
        size = -(-columns // RING)
        first = part * size
        count = min(size, columns - first)
        if count > 0:
            self._store(gradient, self._item, first, count, (stage, first * core.plan.keys * 16))

    def finish(self, item: TableRow) -> None:
        """Store all gradients of an item that ends in one go, its bias among them."""
        core = self.core
        halves, stage, turn = [core.on.probability_half[0], core.on.d_score_half[0]], core.on.key_stage[0], 0
        for gradient in (self.values, self.keys):
            columns = core.place(gradient.name).columns
            if gradient.factor == 1.0 and columns <= core.depth_columns:
                # No keys are on their way now, so their stage is free without a wait.
                self._round(gradient, [(0, columns * core.plan.keys * 16, stage)], core.on.score)
                self._store(gradient, item, 0, columns, (stage, 0))
                continue
            for first in range(0, columns, self._columns_of_score):
                count = min(self._columns_of_score, columns - first)
                half, turn = halves[turn % 2], turn + 1
                part = first * core.plan.keys * 16, count * core.plan.keys * 16, half
                self._round(gradient, [part], core.on.score)
                self._store(gradient, item, first, count, (half, 0))
        self._bias(item)

    @property
    def _columns_of_score(self) -> int:
        """Return fractal columns of a gradient that the scores' buffer holds."""
        return max(1, self.core.plan.rows // 16)

    def _round(self, gradient: Gradient, parts: list[tuple[int, int, Tensor]], scores: list[Tensor]) -> None:
        """Take parts of a gradient out of L0C, times the factor, as float16.

        Args:
            parts: (first element, elements, where they go), no more than there are places. They take turns: Vector
                works on one part while it waits for the result of another.
            scores: places for float32, a part each.
        """
        core = self.core
        sums = core.on.copies(gradient.sums)[0]
        if gradient.factor == 1.0:
            for at, elements, half in parts:
                core.from_l0c(half, sums[at], elements // FRACTAL)
            return
        for (at, elements, _), score in zip(parts, scores):
            core.from_l0c(score[HALF_ROUND], sums[at], elements // FRACTAL)
        for (_, elements, _), score in zip(parts, scores):
            core.with_scalar("vec_muls", score, score[HALF_ROUND:], gradient.factor, elements)
        for (_, elements, half), score in zip(parts, scores):
            core.to_half(half, score, elements)

    def _store(self, gradient: Gradient, item: TableRow, first: int, count: int, half: Address) -> None:
        core, plan = self.core, self.core.plan
        base = core.start(gradient.name, item["kv_head"], item.origin(gradient.name))

        def emit(have: Number) -> None:
            start = base + first * core.place(gradient.name).column * 16 + item["tile"] * (plan.keys * 16)
            with if_any(core, have):
                core.store(gradient.name, start, half, have, plan.keys, count)

        by_keys(core, item["tile"], emit, item.keys)

    def _bias(self, item: TableRow) -> None:
        """Add up sums per key of the gradient of a bias per key."""
        core, plan, score = self.core, self.core.plan, self.core.on.score[0]
        column = plan.keys * 16
        for chunk in range(plan.bias_chunks):
            core.from_l0c(score[HALF_ROUND], core.on.bias_sum[chunk], plan.columns)
            core.with_scalar("vec_muls", score, score[HALF_ROUND:], core.problem.call.dropout_scale, column)

            def emit(have: int, chunk: int = chunk) -> None:
                line = core.wide(item["kv_head"] * plan.bias_chunks + chunk, core.seq_k * 16)
                target = core.gm["d_bias_sums"][line + item["tile"] * column]
                core.tik.data_move(target, score, 0, 1, padded(have) * 2, 0, 0)

            by_keys(core, item["tile"], emit)


class QuerySums:
    """Record the stores of the query gradients of one core's steps."""

    def __init__(self, core: Core[BackwardPlan], item: KeyItem, split: BackwardSplit):
        self.core, self.item, self.split = core, item, split
        self._whole = core.plan.rows * core.plan.head_dim
        self._numbers = [core.scalar("int32", "sums", 0) for _ in range(RING)]  # of the steps' places

    def locate(self, unit: Unit) -> None:
        """Note the number of a step's place in the accumulators, for `store`."""
        item = self.item
        _, heads, tiles, *_ = accumulator_shape(self.core.problem, self.core.plan, self.split.slots)
        number = (item["slot"] * heads + item["head"] + unit.member) * tiles + unit.tile
        self._numbers[unit.position].set_as(number)

    def fetch(self, unit: Unit) -> None:
        """Load before `store` the sums of earlier items, at a query tile's last step."""
        self.locate(unit)
        if not self.split.writes_d_query:
            return
        core = self.core
        with core.when(*self._is_final(unit)):
            self._move(
                unit,
                lambda sums: core.tik.data_move(core.on.query_total[0][HALF_ROUND], sums, 0, 1, self._whole // 8, 0, 0),
            )

    def store(self, unit: Unit) -> None:
        """Move the query gradients of a step from L0C to their accumulator or d_query."""
        core, tik = self.core, self.core.tik
        if unit.sum is not None:
            self._keep(unit, unit.sum)
            return
        self.take(core.plan.query_parts[-1])
        if not self.split.writes_d_query:
            self._add(unit)
            return
        with core.when(*self._is_final(unit)):
            self._finish(unit)
        with tik.else_scope():
            self._add(unit)

    def _add(self, unit: Unit, at: Number = 0) -> None:
        """Add a place of `d_query` to the step's place in the accumulators."""
        tik, stage = self.core.tik, self.core.on.d_query[0][at]

        def add(sums: Tensor) -> None:
            tik.set_atomic_add(1)
            tik.data_move(sums, stage, 0, 1, self._whole // 8, 0, 0)
            tik.set_atomic_add(0)

        self._move(unit, add)

    def _keep(self, unit: Unit, part: kept_sums.Sum) -> None:
        """Do the same as `store` if sums stay on chip."""
        core, tik, stage = self.core, self.core.tik, self.core.on.d_query[0]
        target = core.scalar("int32", "sum_target", 0)
        with tik.if_scope(part.kind == kept_sums.STARTS):
            target.set_as(part.at)
        # What stays in L0C is there already.
        with tik.if_scope(core.module.any(part.product == 0, part.kind == kept_sums.ENDS)):
            self.take(core.plan.query_parts[-1], target, part.product)
            if core.plan.vector_sums:
                with core.when(part.at > 0, part.kind > kept_sums.STARTS):
                    core.binary("vec_add", stage[part.at :], stage[part.at :], stage, self._whole)
            with tik.if_scope(part.kind == kept_sums.ENDS):
                self._add(unit, part.at)

    def take(self, part: tuple[int, int], target: Number = 0, product: Number = 0) -> None:
        """Take one of plan.query_parts from a place in L0C to one in `d_query`.

        `store` takes the last one itself.
        """
        core, whole = self.core, part[1] * self.core.plan.rows * 16
        first, size = part[0] * core.plan.rows * 16, whole // len(core.on.query_sum)
        # Backwards, because waiting for the last products covers the others. So the next products wait for one move.
        for at, source in reversed(list(zip(range(first, first + whole, size), core.on.query_sum))):
            core.from_l0c(core.on.d_query[0][target + at], source[product * size], size // FRACTAL)

    def _is_final(self, unit: Unit) -> tuple[Number, Number]:
        return unit.tile >= self.item["final"], unit.tile < self.item["final_end"]

    def _move(self, unit: Unit, emit: Callable[[Tensor], object]) -> None:
        """Record a move of the step's place in the accumulators."""
        core, place = self.core, self._numbers[unit.position]
        with if_rows(core, unit.rows):
            first = self.item.stored(core.wide(place, self._whole), core.plan.head_dim)
            emit(core.gm["d_query_sums"][first])

    def _finish(self, unit: Unit) -> None:
        """Store the last part of a query tile: sums and scale in float32, rounded once."""
        core, item, problem, plan, whole = self.core, self.item, self.core.problem, self.core.plan, self._whole
        stage, total, half = core.on.d_query[0], core.on.query_total[0], core.on.query_half[0]
        # In halves if Vector is the limit: the result of one half is there when Vector is done with the other.
        size = whole if plan.pipeline.single else whole // 2
        parts = range(0, whole, size)
        for at in parts:
            core.binary("vec_add", total[at:], total[at + HALF_ROUND :], stage[at:], size)
        factor = softcap.gradient_sign(problem) * problem.post_scale * problem.call.dropout_scale
        if factor != 1.0:
            for at in parts:
                core.with_scalar("vec_muls", stage[at:], total[at:], factor, size)
            total = stage
        for at in parts:
            core.to_half(half[at:], total[at:], size)
        start = core.start("d_query", item["head"] + unit.member, item.origin("d_query"))

        def store(have: Number) -> None:
            core.store("d_query", start + unit.tile * (plan.rows * 16), (half, 0), have, plan.rows)

        by_rows(core, unit.rows, store)
