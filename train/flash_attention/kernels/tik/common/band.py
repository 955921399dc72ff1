"""Visibility in packed sequences, whose lengths are data: tiles of zeros and ones put together at run time.

A window moves by one key from row to row. So the pattern of 16 keys that a row sees comes again in the next fractal
column, 16 rows further down. A ramp is all patterns in a row. It holds every tile of a band: a fractal column of a
tile is a stretch of the ramp. The end of a sequence and a prefix cut columns off.
"""

from __future__ import annotations

import numpy as np

from flash_attention.kernels.tik.hardware import HALF_LANES
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, Scalar, TilePlan
from flash_attention.kernels.tik.varlen import FAR, Limits


class Ramp:
    """Hold patterns of 16 keys by number, and the numbers of a tile's patterns. Row r and column c have pattern
    b + r - 16 c.

    Pattern i shows keys i - plateau to i of its 16, or all up to i without a limit on the left.

    Attributes:
        lowest, highest: pattern numbers.
        nothing, everything: the b with which all of a tile is hidden or visible.
        end: the b from which it is all hidden again.
    """

    def __init__(self, problem: KernelProblem, plan: TilePlan):
        limits, rows, keys = Limits.of(problem), plan.rows, plan.keys
        self.left, self.right = limits.left < FAR, limits.right < FAR
        width = limits.left + limits.right if self.left and self.right else FAR
        self.plateau = min(width, rows + keys)
        self.nothing, self.everything = -rows, keys - 1
        self.end = self.plateau + keys if self.left else self.everything
        self.lowest, self.highest = self.nothing - (keys - 16), self.end + rows - 1

    def patterns(self) -> np.ndarray:
        """Return float16 (patterns, 16)."""
        number, key = np.arange(self.lowest, self.highest + 1)[:, None], np.arange(16)
        return ((key <= number) & ((key >= number - self.plateau) | (not self.left))).astype(np.float16)


def tiles(problem: KernelProblem, plan: TilePlan) -> np.ndarray:
    """Return float16 (n, 16), 1 = visible: the ramp, and behind it a column's keys before its key 0, 1, ..., 15."""
    parts = np.repeat(np.tri(16, k=-1, dtype=np.float16), HALF_LANES // 16, axis=0)
    return np.concatenate([Ramp(problem, plan).patterns(), parts])


def distances(plan: TilePlan) -> np.ndarray:
    """Return float16 (n, 16): tokens by which keys lie after their queries; pattern i, from -(rows + keys) on, is key -
    i.
    """
    reach = plan.rows + plan.keys
    return np.maximum(np.arange(16) - np.arange(-reach, reach)[:, None], 0).astype(np.float16)


class BandAtRunTime:
    """Record a kernel's work for the tiles of a band. `position` is the position of the first row of a row block."""

    def __init__(self, core: Core[TilePlan]):
        self.core, self.ramp = core, Ramp(core.problem, core.plan)
        self.limits = Limits.of(core.problem)
        names = ("band_base", "band_keys", "band_prefix", "band_source", "band_rest", "band_distance")
        self._base, self._keys, self._prefix, self._source, self._rest, self._distance = (
            core.scalar("int32", name, 0) for name in names
        )

    def number(self, number: Scalar, position: Number, tile: Number, keys: Number, prefix: Number) -> None:
        """Set `number` to 1 if some key of a tile is hidden, else to 0. `fetch` then brings the tile.

        Args:
            keys, prefix: of the sequence.
        """
        tik, plan, ramp, base = self.core.tik, self.core.plan, self.ramp, self._base
        number.set_as(0)
        base.set_as(ramp.everything)
        if ramp.left:
            # The lower end of the visible keys. If it does not cut the tile, the upper end counts.
            base.set_as(position - tile * plan.keys + (ramp.plateau - self.limits.left))
            with tik.if_scope(base > ramp.plateau - plan.rows + 1):
                number.set_as(1)
            with tik.else_scope():
                base.set_as(ramp.everything)
        if ramp.right:
            self._rest.set_as(position - tile * plan.keys + self.limits.right)
            with tik.if_scope(self._rest < ramp.everything):
                base.set_as(self._rest)
                number.set_as(1)
        with tik.if_scope(base < ramp.nothing):
            base.set_as(ramp.nothing)
        with tik.if_scope(base > ramp.end):
            base.set_as(ramp.end)
        if self.limits.prefixed:
            self._prefix.set_as(prefix - tile * plan.keys)
            with tik.if_scope(self._prefix >= plan.keys):
                number.set_as(0)
        self._keys.set_as(keys - tile * plan.keys)
        with tik.if_scope(self._keys < plan.keys):
            number.set_as(1)

    def fetch(self, number: Number) -> None:
        """Write the tile that `number` was asked for to `visible`. Skipped at run time for 0."""
        core, plan, ramp, source = self.core, self.core.plan, self.ramp, self._source
        visible, column = core.on.visible[0], plan.rows * 16
        with core.tik.if_scope(number > 0):
            with core.tik.for_range(0, plan.columns, name="band") as index:
                source.set_as(self._base - index * 16 - ramp.lowest)
                if self.limits.prefixed:
                    with core.tik.if_scope(self._prefix >= index * 16 + 16):
                        source.set_as(ramp.everything - ramp.lowest)
                with core.tik.if_scope(self._keys <= index * 16):
                    source.set_as(0)
                core.tik.data_move(visible[index * column], core.on.tiles[0][source * 16], 0, 1, plan.rows, 0, 0)
            if self.limits.prefixed:
                self._part("vec_max", self._prefix)
            self._part("vec_min", self._keys)

    def _part(self, name: str, keys: Number) -> None:
        """Apply op to the fractal column that `keys` ends inside of. It shows the keys up to there."""
        core, plan, rest = self.core, self.core.plan, self._rest
        part, column, behind = core.on.visible_part[0], plan.rows * 16, self.ramp.highest - self.ramp.lowest + 1
        with core.when(keys > 0, keys < plan.keys):
            rest.set_as(keys % 16)
            with core.tik.if_scope(rest > 0):
                rest.set_as(rest * HALF_LANES + behind * 16)
                core.tik.data_move(part, core.on.tiles[0][rest], 0, 1, HALF_LANES // 16, 0, 0)
                rest.set_as(keys // 16 * column)
                for mask, at, count in core.spans(column, HALF_LANES):
                    target = core.on.visible[0][rest + at]
                    getattr(core.tik, name)(mask, target, target, part, count, 8, 8, 0)

    def distance_number(
        self, number: Scalar, position: Number, tile: Number, index: Number, cross: Number, after: Number
    ) -> None:
        """Set `number` to 1 for tiles with keys on both sides, else to 0.

        Args:
            index: of the tile, keys or queries, that runs over the range from cross to after.
        """
        number.set_as(0)
        with self.core.when(index >= cross, index < after):
            number.set_as(1)
            self._distance.set_as(position - tile * self.core.plan.keys)

    def fetch_distance(self, number: Number) -> None:
        """Write the distances of that tile to `distance`. Skipped at run time for 0."""
        core, plan = self.core, self.core.plan
        with core.tik.if_scope(number > 0), core.tik.for_range(0, plan.columns, name="distances") as index:
            source = (self._distance + (plan.rows + plan.keys) - index * 16) * 16
            target = core.on.distance[0][index * plan.rows * 16]
            core.tik.data_move(target, core.on.distances[0][source], 0, 1, plan.rows, 0, 0)
