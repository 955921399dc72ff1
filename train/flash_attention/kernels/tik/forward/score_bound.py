"""Bounds of scores by the lengths of queries and keys: |query . key| <= |query| |key|.

If no score of a work item can pass its row reference by CEILING, Vector does not cut exponents. If differences of
scores might not fit in float16, the query is divided by FAR_UNIT. Vector then cuts the scores that it takes out of L0C
to the range of float16, and multiplies them by FAR_UNIT.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from flash_attention.kernels.tik.common.table_row import TableRow
from flash_attention.kernels.tik.hardware import FRACTAL, LANES
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, Scalar, Tensor, TilePlan

CEILING = 11.0  # of the exponent: the largest probability is 59872, so that float16 holds all of them
FAR_UNIT = 4.0
NEAR = 16000  # largest |score| whose differences from a row reference stay in the range of float16
LIFT = 3.0  # the most by which a row reference may be raised, so that no score of its row passes it by CEILING
MOST = 40  # largest |score| for which a lift is tried: float16 tells smaller numbers well apart
SLACK = 1.01  # factor on the bound, for rounding on the way to the bound and to the exponent
LEAST_SQUARE = 2.0**-100  # in the place of squares that are zero
SQUARES = 2048  # products of queries, or keys, with each other that are compared at a time


def is_needed(problem: KernelProblem, half_scores: bool) -> bool:
    """Return if scores need a bound. If Vector scales them there is room for any: see KernelProblem.query_factor."""
    return half_scores and problem.post_scale == 1.0 and not problem.sequences


class Verdict(NamedTuple):
    """Run-time `cut` and `far` of `ScoreBound` for the item in work."""

    cut: Scalar
    far: Scalar


class ScoreBound:
    """Run-time numbers of one core.

    Attributes:
        far: 1 if the scores of the item that comes next may be far from zero.
        unit: float32, FAR_UNIT if far is 1, else 1.
        cut: 1 if an exponent of that item may pass CEILING.
        room: float16. Its sum with a row reference is not negative if no score passes the reference, raised by LIFT, by
            CEILING.
    """

    def __init__(self, core: Core[TilePlan]):
        self.core = core
        self.far = core.scalar("int32", "far", 0)
        self.unit = core.scalar("float32", "far_unit", 1.0)
        self.cut = core.scalar("int32", "next_cut", 1)
        self.room = core.scalar("float16", "room", 0.0)
        self._head = core.scalar("int32", "measured_head", -1)
        core.fill(core.on.lift[0], LIFT, 128)

    def place(self) -> None:
        """Place the queries in `stage` in L1, for an item that is measured later."""
        # Rows that do not exist hold values of an earlier item. At worst, exponents are cut without need.
        for stage, slot in zip(self.core.on.stage, self.core.on.norm_rows[2:]):
            self._place(slot, stage, 128, self.core.plan.rows, self.core.plan.rows)

    def multiply(self) -> None:
        """Record their products."""
        for slot, squares in zip(self.core.on.norm_rows[2:], self.core.on.squares):
            self._squares(squares, slot, self.core.plan.rows)

    def measure(self, item: TableRow, base: Number) -> None:
        """Set the numbers for an item; `base` is the first element of its keys.

        It uses the last tensor of `score`, which the tiles of an item leave alone if scores are float16.
        """
        core, tik, plan, on = self.core, self.core.tik, self.core.plan, self.core.on
        elements, largest, other = plan.rows * 16, on.score[-1][SQUARES:], on.score[-1]
        with tik.if_scope(item["kv_head"] != self._head):
            self._head.set_as(item["kv_head"])
            self._keys(base)
        if elements < SQUARES:
            core.fill(largest, 0.0, SQUARES)
        for target, squares in zip((largest, other), on.squares[: plan.row_blocks]):
            core.from_l0c(target, squares, elements // FRACTAL)
        if plan.row_blocks > 1:
            core.binary("vec_max", largest, largest, other, elements)
        self._logarithm(on.query_norm[0], largest)
        bound, least = on.query_norm[0], on.largest_total[0]
        core.binary("vec_add", bound, bound, on.key_norm[0], LANES)
        core.unary("vec_exp", bound, bound, LANES)
        core.binary("vec_min", bound, bound, on.largest_half[0], LANES)
        core.with_scalar("vec_muls", bound, bound, -1.0, LANES)
        core.with_scalar("vec_adds", bound, bound, CEILING + LIFT, LANES)
        core.to_half(on.half_total[0], bound, LANES)
        tik.vcmin(LANES, least, on.half_total[0], 1, 1, 1, 8)
        tik.vec_conv(8, "floor", on.score_bound[0], least, 1, 8, 4)
        room = core.scalar("int32", "whole_room")
        room.set_as(on.score_bound[0][0])
        self.room.set_as(least[0])
        self.far.set_as(0)
        self.unit.set_as(1.0)
        self.cut.set_as(0)
        with tik.if_scope(room < -MOST):
            self.cut.set_as(1)
        with tik.if_scope(room < -NEAR):
            self.far.set_as(1)
            self.unit.set_as(FAR_UNIT)

    def lift(self, reference: Tensor, work: Tensor) -> None:
        """Raise row references by at most LIFT, if that keeps exponents below CEILING."""
        core, numbers, least = self.core, self.core.plan.row_blocks * 128, self.core.on.largest_total[0]
        core.with_scalar("vec_adds", work, reference, self.room, numbers)
        core.tik.vcmin(128, least, work, self.core.plan.row_blocks, 1, 1, 8)
        core.tik.vec_conv(8, "floor", core.on.score_bound[1], least, 1, 8, 4)
        core.with_row("vec_max", work, work, core.on.zeros[0], numbers)
        core.with_row("vec_min", work, work, core.on.lift[0], numbers)
        core.binary("vec_sub", reference, reference, work, numbers)
        core.with_scalar("vec_adds", reference, reference, LIFT, numbers)

    def judge(self, attempt: Number) -> None:
        """Set `cut` by the result of `lift`. Attempt 1 does not lift."""
        core = self.core
        with core.when(attempt == 0, self.cut == 0):
            for a in range(core.plan.row_blocks):
                room = core.scalar("int32", "room_left")
                room.set_as(core.on.score_bound[1][2 * a])
                with core.tik.if_scope(room < 0):
                    self.cut.set_as(1)
        with core.tik.else_scope():
            self.cut.set_as(1)

    def _keys(self, base: Number) -> None:
        """Compute key_norm = ln(length of the longest key of a head) + ln(scale)."""
        core, plan, on = self.core, self.core.plan, self.core.on
        largest, other = on.score[-1][SQUARES:], on.score[-1]
        core.fill(largest, 0.0, SQUARES)
        place, squares = core.place("key"), on.squares[0]
        tile = core.scalar("int32", "norm_tile", 0)
        with core.tik.for_range(0, -(-place.rows // (2 * plan.keys)), name="norm_pair") as pair:
            for side, slot in enumerate(on.norm_rows[:2]):
                # The last tiles may overlap, or be the same.
                tile.set_as((pair * 2 + side) * plan.keys)
                with core.tik.if_scope(tile > max(0, place.rows - plan.keys)):
                    tile.set_as(max(0, place.rows - plan.keys))
                self._place(slot, core.gm["key"], base + tile * 16, min(place.rows, plan.keys), place.column)
                self._squares(squares, slot, plan.keys)
                core.from_l0c(other, squares, plan.columns)
                core.binary("vec_max", largest, largest, other, plan.columns * FRACTAL)
        self._logarithm(on.key_norm[0], largest)
        scale = math.log(max(abs(core.problem.call.scale), LEAST_SQUARE) * SLACK)
        core.with_scalar("vec_adds", on.key_norm[0], on.key_norm[0], scale, LANES)

    def _place(self, slot: Tensor, source: Tensor, first: Number, rows: int, height: int) -> None:
        """Place rows as fractals. They come as (head_dim / 16, height, 16) and become (rows / 16, head_dim / 16, 16,
        16).
        """
        tik, columns, (groups, rest) = self.core.tik, self.core.depth_columns, divmod(rows, 16)
        for column in range(columns):
            at = first + column * height * 16
            if groups:
                tik.data_move(slot[column * FRACTAL], source[at], 0, groups, 16, 0, (columns - 1) * 16)
            if rest:
                tail = slot[(column + groups * columns) * FRACTAL]
                tik.data_move(tail, source[at + groups * FRACTAL], 0, 1, rest, 0, 0)

    def _squares(self, squares: Tensor, slot: Tensor, height: int) -> None:
        """Compute squares = rows . rows^T, 16 rows at a time.

        Products of different rows take part. They do not pass the larger square of the two rows.
        """
        tik, on, columns = self.core.tik, self.core.on, self.core.depth_columns
        left, right, groups = on.l0_norm_left[0], on.l0_norm_right[0], height // 16
        tik.load2dv1(left, slot, 0, groups * columns, 1, 0, False)
        tik.load2dv1(right, slot, 0, groups * columns, 1, 0, False)
        with tik.for_range(0, groups, name="norm_group") as group:
            at = group * (columns * FRACTAL)
            tik.mmad(squares[group * FRACTAL], left[at], right[at], 16, columns * 16, 16, 0)

    def _logarithm(self, target: Tensor, largest: Tensor) -> None:
        """Compute target = ln(largest) / 2 in LANES lanes of which the largest counts."""
        core, size = self.core, SQUARES
        while size > LANES:
            size //= 2
            core.binary("vec_max", largest, largest, largest[size:], size)
        core.with_scalar("vec_adds", target, largest, LEAST_SQUARE, LANES)
        core.unary("vec_ln", target, target, LANES)
        core.with_scalar("vec_muls", target, target, 0.5, LANES)
