"""Computed ALiBi: -slope * |position of the query - key|, precise at any length.

If all keys of a tile lie on one side of its queries, the bias is a query term plus a key term. The Cube adds both
(score_terms.py), exact to the 22 bits of the slope's two terms. A few tiles have keys on both sides. There Vector
corrects the keys after a query by -2 * slope * distance, taken from a tile of distances.
"""

from __future__ import annotations

from typing import Generic

from flash_attention.kernels.tik.common import score_terms
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import BlockPlan, Factor, Number, Plan, Scalar, Tensor, TilePlan


class Slopes(Generic[Plan]):
    """Run-time scalars of the slope of the head in work."""

    def __init__(self, core: Core[Plan]):
        self.core = core
        self.wide = [core.scalar("float32", f"slope_wide_{index}") for index in range(3)]
        self.terms = [core.scalar("float16", f"slope_{index}") for index in range(7)]
        self.number = core.scalar("float32", "position_number")
        self.block = core.scalar("int32", "position_block")
        self.rest = core.scalar("int32", "position_rest")

    def load(self, slope: Number) -> None:
        """Read the terms of a slope, by its number."""
        core, stage = self.core, self.core.on.slope_value[0]
        core.tik.data_move(stage, core.gm["slopes"][slope * score_terms.SLOPE_WORDS], 0, 1, 1, 0, 0)
        half = core.on.term[0]
        core.tik.vec_conv(8, "none", half, stage, 1, 4, 8)
        for index, scalar in enumerate(self.wide):
            scalar.set_as(stage[index])
        for index, term in enumerate(self.terms):
            term.set_as(half[1 + index])

    @property
    def correction(self) -> tuple[Scalar, Scalar]:
        """Return terms of -2 * slope, in units of the final scores."""
        return self.terms[4], self.terms[5]

    @property
    def coarse(self) -> Scalar:
        """Return -2 * slope in units of the scores before the post-scale."""
        return self.terms[6]

    def row_block(self, position: Number, a: int, epoch: Number) -> None:
        """Write the query terms of a row block for the slope loaded last."""
        core, half = self.core, self.core.on.term[0]
        for pair, first in ((score_terms.KEY_BLOCK, 0), (score_terms.KEY_REST, 2)):
            for place, term in zip(pair, self.terms[first : first + 2]):
                core.fill(half, term, 128)
                self._write(a, epoch, place, half)
        # -slope * position, with position = 128 * block + rest. First the leading term times the blocks, which is
        # exact in float32 and in two float16 terms, then the small remainder.
        value, part = core.on.slope_value[0], core.on.slope_part[0]
        self.block.set_as(position // 128)
        self.rest.set_as(position - self.block * 128)
        self._product(value, self.block, self.wide[1])
        self._split(a, epoch, score_terms.POSITION[:2], value, part)
        self._product(value, self.block, self.wide[2])
        core.tik.scalar_conv("", self.number, self.rest)
        core.with_scalar("vec_adds", part, core.on.row_numbers[0], self.number, 128)
        core.with_scalar("vec_muls", part, part, self.wide[0], 128)
        core.binary("vec_sub", value, value, part, 128)
        self._split(a, epoch, score_terms.POSITION[2:], value, part)

    def _product(self, target: Tensor, number: Number, factor: Factor) -> None:
        """Compute target = -number * factor in every element."""
        core = self.core
        core.tik.scalar_conv("", self.number, number)
        core.fill(target, self.number, 128)
        core.with_scalar("vec_muls", target, target, factor, 128)
        core.with_scalar("vec_muls", target, target, -1.0, 128)

    def _split(self, a: int, epoch: Number, pair: tuple[int, ...], value: Tensor, part: Tensor) -> None:
        """Write two float16 terms of `value` to two places. `value` keeps the rest."""
        core, half = self.core, self.core.on.term[0]
        for place in pair:
            core.to_half(half, value, 128)
            core.to_single(part, half, 128)
            core.binary("vec_sub", value, value, part, 128)
            self._write(a, epoch, place, half)

    def _write(self, a: int, epoch: Number, place: int, values: Tensor) -> None:
        """Put float16 values, one per row, where the terms of row block `a` are kept."""
        raise NotImplementedError


def fetch_distance(core: Core[TilePlan], number: Number) -> None:
    """Move distance tile `number` from L1 to the Unified Buffer. Skipped at run time for 0."""
    if core.band:
        core.band.fetch_distance(number)
        return
    area = core.plan.rows * core.plan.keys
    with core.tik.if_scope(number > 0):
        core.tik.data_move(core.on.distance[0], core.on.distances[0][(number - 1) * area], 0, 1, area // 16, 0, 0)


def initialise(core: Core[BlockPlan]) -> None:
    """Write row numbers 0..127 as float32."""
    core.tik.data_move(core.on.row_numbers[0], core.gm["row_numbers"], 0, 1, 16, 0, 0)
