"""Work items at run time: the fields of a row of the work table in scalars."""

from __future__ import annotations

from flash_attention.kernels.tik.common.score_terms import Planes
from flash_attention.kernels.tik.common.table_row import TableRow, of_sequence, present
from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.forward import words as word_of
from flash_attention.kernels.tik.forward.tiling import ForwardPlan
from flash_attention.kernels.tik.language import Number, RunTime, Scalar

_PER_ITEM = {
    "head": word_of.HEAD,
    "kv_head": word_of.KV_HEAD,
    "mask_plane": word_of.MASK_PLANE,
    "bias_plane": word_of.BIAS_PLANE,
    "slope": word_of.SLOPE,
    "begin": word_of.BEGIN,
    "end": word_of.END,
    "batch": word_of.BATCH,
    **of_sequence(word_of.SEQUENCE),
}
_PER_ROW_BLOCK = {"start": word_of.START, "rows": word_of.ROWS, "first": word_of.FIRST, "last": word_of.LAST}
_SAMPLE = {
    "strided": word_of.SAMPLE_STRIDED,
    "sample": word_of.SAMPLE_START,
    "stride": word_of.SAMPLE_STRIDE,
    "sample_tile": word_of.SAMPLE_TILE,
}
_SIGNS = {"cross": word_of.CROSS, "after": word_of.AFTER}


class Item(TableRow):
    """One work item, with or without the fields of its sample. The kernel sets `index`, its number on this core."""

    def __init__(self, core: Core[ForwardPlan], name: str, sample: bool):
        problem = core.problem
        per_block = {**_PER_ROW_BLOCK, **(_SAMPLE if sample else {}), **(_SIGNS if problem.bias == "alibi" else {})}
        words = present(_PER_ITEM, problem)
        for a in range(core.plan.row_blocks):
            for field, word in per_block.items():
                words[field, a] = word_of.ROW_BLOCK + a * word_of.ROW_BLOCK_FIELDS + word
        super().__init__(core, name, words)
        self.index = core.scalar("int32", f"{name}_index", 0)

    def skip(self, a: int) -> None:
        """Makes row block `a` inactive."""
        self["rows", a].set_as(0)
        self["first", a].set_as(1)
        self["last", a].set_as(0)

    def skip_all(self) -> None:
        """Makes the item inactive: no stage of the pipeline runs for it."""
        for a in range(self.core.plan.row_blocks):
            self.skip(a)
        self["begin"].set_as(0)
        self["end"].set_as(0)

    def visits(self, a: int, tile: Number) -> tuple[Number, Number]:
        """Conditions for row block `a` to visit a key tile."""
        return tile >= self["first", a], tile <= self["last", a]

    def position(self, a: int) -> RunTime:
        """Position of the first row of row block `a` among the keys of its sequence."""
        offset = self._scalars.get("offset", self.core.problem.offset)
        return self["start", a] + offset

    def sample_number(self, number: Scalar, a: int) -> None:
        """Sets `number` to the visibility tile of the sample of row block `a`."""
        if not self.core.band:
            number.set_as(self["sample_tile", a])
            return
        with self.core.tik.if_scope(self["strided", a] > 0):
            number.set_as(0)
        with self.core.tik.else_scope():
            self.tile_number(number, a, self["sample", a])

    def tile_number(self, number: Scalar, a: int, tile: Number) -> None:
        """Sets `number` to the visibility tile of (row block, key tile), 0 where everything is visible."""
        core, table = self.core, self.core.on.table[0]
        if core.band:
            core.band.number(number, self.position(a), tile, self["keys"], self.get("prefix"))
            return
        base = word_of.ROW_BLOCK + a * word_of.ROW_BLOCK_FIELDS
        number.set_as(0)
        with core.tik.if_scope(tile - self["first", a] < word_of.EDGE):
            number.set_as(table[self.row + (tile - self["first", a]) + (base + word_of.LEFT)])
        with core.tik.else_scope(), core.tik.if_scope(self["last", a] - tile < word_of.EDGE):
            number.set_as(table[self.row + (self["last", a] - tile) + (base + word_of.RIGHT)])

    def distance_number(self, number: Scalar, a: int, tile: Number) -> None:
        """Sets `number` to the distance tile of a tile with keys on both sides of its queries, else to 0."""
        core, table = self.core, self.core.on.table[0]
        if core.band:
            core.band.distance_number(number, self.position(a), tile, tile, self["cross", a], self["after", a])
            return
        base = word_of.ROW_BLOCK + a * word_of.ROW_BLOCK_FIELDS
        number.set_as(0)
        with core.when(tile >= self["cross", a], tile < self["after", a]):
            number.set_as(table[self.row + (tile - self["cross", a]) + (base + word_of.DISTANCE)])

    def planes(self) -> Planes:
        """Planes of inputs with one vector per plane."""
        return Planes(self.get("bias_plane"), self.get("mask_plane"))
