"""Work items of the backward operator at run time: the fields of a row of the table, and the steps of an item."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.kernels.tik.backward import words as word_of
from flash_attention.kernels.tik.backward.tiling import RING, BackwardPlan
from flash_attention.kernels.tik.common.table_row import TableRow, of_sequence, present
from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.language import Number, Scalar

_FIELDS = {
    "head": word_of.HEAD,
    "kv_head": word_of.KV_HEAD,
    "mask_plane": word_of.MASK_PLANE,
    "bias_plane": word_of.BIAS_PLANE,
    "slope": word_of.SLOPE,
    "slot": word_of.SLOT,
    "tile": word_of.TILE,
    "first": word_of.FIRST,
    "count": word_of.COUNT,
    "steps": word_of.STEPS,
    "middle": word_of.MIDDLE,
    "cross": word_of.CROSS,
    "before": word_of.BEFORE,
    "batch": word_of.BATCH,
    "final": word_of.FINAL,
    "final_end": word_of.FINAL_END,
    **of_sequence(word_of.SEQUENCE),
}


@dataclass(frozen=True)
class Unit:
    """A step's query tile: run-time scalars of one place in the ring.

    Attributes:
        position: place in the ring, known at build time.
        member: query head of the group.
        tile: number of the query tile.
        rows: rows of the tile, see `Core.tail_rows`; 0 or less where a packed sequence has no queries.
        kept: place among the tiles that stay in L1 where the tile is already there; -1 elsewhere. See BackwardSplit;
            None where none are kept.
    """

    position: int
    member: Scalar
    tile: Scalar
    rows: Scalar
    kept: Scalar | None


class KeyItem(TableRow):
    """One work item and its current step.

    Attributes:
        kept: as in BackwardSplit.
        fresh: run-time flag: the first item of a head, which loads the tiles that are kept.
    """

    def __init__(self, core: Core[BackwardPlan], name: str, owned: bool, kept: tuple[int, int]):
        """`owned` and `kept` as in BackwardSplit."""
        fields = {name: word for name, word in _FIELDS.items() if owned or not name.startswith("final")}
        super().__init__(core, name, present(fields, core.problem))
        self._member, self._tile = core.scalar("int32", "next_member", 0), core.scalar("int32", "next_tile", 0)
        self.units = [self._unit(place, kept[1] > 0) for place in range(RING)]
        self.kept = kept
        self.fresh = core.scalar("int32", "fresh", 1) if kept[1] else None
        self._kept_head = core.scalar("int32", "kept_head", -1) if kept[1] else None

    def _unit(self, place: int, keeps: bool) -> Unit:
        scalar = self.core.scalar
        member, tile, rows = (scalar("int32", f"{name}_{place}", 0) for name in ("member", "tile", "rows"))
        return Unit(place, member, tile, rows, scalar("int32", f"kept_{place}", -1) if keeps else None)

    def rewind(self) -> None:
        """Goes to the first step."""
        self._member.set_as(0)
        self._tile.set_as(self["first"])
        if self.fresh is not None and self._kept_head is not None:
            self.fresh.set_as(0)
            with self.core.tik.if_scope(self["head"] != self._kept_head):
                self.fresh.set_as(1)
            self._kept_head.set_as(self["head"])

    def keeps(self, unit: Unit) -> tuple[Number, Number]:
        """Run-time conditions: the tile of a step is one of those that are kept."""
        return unit.tile >= self.kept[0], unit.tile < self.kept[1]

    def advance(self, place: int) -> Unit:
        """Puts the next step of the item into a place of the ring."""
        core, unit = self.core, self.units[place]
        unit.member.set_as(self._member)
        unit.tile.set_as(self._tile)
        self._count_rows(unit)
        if unit.kept is not None:
            unit.kept.set_as(-1)
            with core.when(self.fresh == 0, *self.keeps(unit)):
                unit.kept.set_as(unit.tile - self.kept[0])
        self._tile.set_as(self._tile + 1)
        with core.tik.if_scope(self._tile == self["first"] + self["count"]):
            self._tile.set_as(self["first"])
            self._member.set_as(self._member + 1)
        return unit

    def last(self) -> Unit:
        """The last step of the item."""
        unit = self.units[0]
        unit.member.set_as(self.core.problem.group - 1)
        unit.tile.set_as(self["first"] + self["count"] - 1)
        self._count_rows(unit)
        return unit

    def _count_rows(self, unit: Unit) -> None:
        core = self.core
        if core.problem.sequences:
            unit.rows.set_as(self["queries"] - unit.tile * core.plan.rows)
            with core.tik.if_scope(unit.rows > core.plan.rows):
                unit.rows.set_as(core.plan.rows)
        elif core.tail_rows:
            unit.rows.set_as(core.plan.rows)
            with core.tik.if_scope(unit.tile == core.place("query").rows // core.plan.rows):
                unit.rows.set_as(core.tail_rows)
        else:
            unit.rows.set_as(core.plan.rows)

    def position(self, tile: Number) -> Number:
        """Position of the first row of a query tile among the keys."""
        problem = self.core.problem
        return tile * self.core.plan.rows + (self["offset"] if problem.sequences else problem.offset)

    def tile_number(self, number: Scalar, tile: Number) -> None:
        """Sets `number` to the visibility tile of a query tile, 0 where everything is visible."""
        core, table = self.core, self.core.on.table[0]
        if core.band:
            core.band.number(number, self.position(tile), self["tile"], self["keys"], self.get("prefix"))
            return
        with core.tik.if_scope(tile - self["first"] < word_of.EDGE):
            number.set_as(table[self.row + (tile - self["first"]) + word_of.LEFT])
        with core.tik.else_scope():
            number.set_as(self["middle"])
            with core.tik.if_scope(self["first"] + self["count"] - tile <= word_of.EDGE):
                number.set_as(table[self.row + (self["first"] + self["count"] - tile) + (word_of.RIGHT - 1)])

    def distance_number(self, number: Scalar, tile: Number) -> None:
        """Sets `number` to the distance tile of a query tile with keys on both sides, else to 0."""
        core, table = self.core, self.core.on.table[0]
        if core.band:
            crossing = self["cross"], self["before"]
            core.band.distance_number(number, self.position(tile), self["tile"], tile, *crossing)
            return
        number.set_as(0)
        with core.when(tile >= self["cross"], tile < self["before"]):
            number.set_as(table[self.row + (tile - self["cross"]) + word_of.DISTANCE])

    def plane(self, name: str, unit: Unit) -> Number:
        """Plane of the mask or the bias for the query head of a step."""
        heads, plane = getattr(self.core.problem, f"{name}_planes")[1], self.get(f"{name}_plane")
        return plane if heads == 1 else plane + unit.member
