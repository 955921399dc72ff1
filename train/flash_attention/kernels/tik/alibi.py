"""Computed ALiBi: -slope * |position of the query - key|, precise at any length.

Where all keys of a tile lie on one side of its queries the bias is a sum of what depends on the query and what depends
on the key, so the Cube adds it (lanes.py), exact to the 22 bits of the slope's two terms. In the few tiles with keys
on both sides Vector corrects the keys after a query by -2 * slope * distance, taken from a tile of distances.
"""

from __future__ import annotations

from . import lanes
from .core import Core
from .item import Item
from .rowmax import lane_slots
from .tiles import each_epoch


class Slopes:
    """Run-time scalars of the slope of the head in work."""

    def __init__(self, core: Core):
        self.core = core
        self.slope = core.scalar("float32", "slope")
        self.terms = [core.scalar("float16", f"slope_{index}") for index in range(7)]
        self.position = core.scalar("float32", "position")
        self.row = core.scalar("int32", "position_row")

    def load(self, item: Item) -> None:
        """Reads the slope terms of the item's head."""
        core, stage = self.core, self.core.on["vectors"][9]
        core.tik.data_move(stage, core.gm["slopes"][item["slope"] * lanes.SLOPE_WORDS], 0, 1, 1, 0, 0)
        half = core.on["halves"][3]
        core.tik.vec_conv(8, "none", half, stage, 1, 4, 8)
        self.slope.set_as(stage[0])
        for index, term in enumerate(self.terms):
            term.set_as(half[1 + index])

    @property
    def correction(self) -> tuple:
        """Terms of -2 * slope, in units of the final scores."""
        return self.terms[4], self.terms[5]

    @property
    def coarse(self):
        """-2 * slope in units of the scores before the post-scale."""
        return self.terms[6]

    def row_block(self, item: Item, a: int, epoch) -> None:
        """Writes the query lanes of a row block for the slope loaded last."""
        core, tik = self.core, self.core.tik
        value, back, half = core.on["vectors"][9], core.on["vectors"][10], core.on["halves"][3]
        written = []
        for pair, first in ((lanes.KEY_BLOCK, 0), (lanes.KEY_REST, 2)):
            for lane, term in zip(pair, self.terms[first : first + 2]):
                core.fill(half, term, 128)
                self._write(a, epoch, lane, half)
                written.append(lane)
        # -slope * (start + row + offset), split into three float16 terms.
        self.row.set_as(item["start", a] + core.problem.offset)
        tik.scalar_conv("", self.position, self.row)
        core.with_scalar("vec_adds", value, core.on["row_numbers"][0], self.position, 128, 64)
        core.with_scalar("vec_muls", value, value, self.slope, 128, 64)
        core.with_scalar("vec_muls", value, value, -1.0, 128, 64)
        for lane in lanes.POSITION:
            core.to_half(half, value, 128)
            core.to_single(back, half, 128)
            core.binary("vec_sub", value, value, back, 128, 64)
            self._write(a, epoch, lane, half)

    def _write(self, a: int, epoch, lane: int, half) -> None:
        core = self.core
        other = core.on["halves"][2]
        if len(lane_slots(core, a)[0]) > 1:
            core.with_scalar("vec_muls", other, half, -1.0, 128)
        for variants in each_epoch(core, lane_slots(core, a), epoch):
            lanes.write(core, variants[0], lane, half)
            if len(variants) > 1:
                lanes.write(core, variants[1], lane, other)


def initialise(core: Core) -> None:
    """Row numbers 0..127 as float32."""
    core.tik.data_move(core.on["row_numbers"][0], core.gm["row_numbers"], 0, 1, 16, 0, 0)
