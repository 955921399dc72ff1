"""Rows of the backward work table, and the kernel's view of a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flash_attention.kernels.tik.backward import kept_sums
from flash_attention.kernels.tik.backward.tiling import (
    RING,
    BackwardPlan,
)
from flash_attention.kernels.tik.common import kept_tiles, tile_lists
from flash_attention.kernels.tik.common.double_buffer import each_epoch
from flash_attention.kernels.tik.common.table_row import Field, TableRow
from flash_attention.kernels.tik.common.tile_lists import CODES
from flash_attention.kernels.tik.common.work_split import (
    Registry,
    TableOfWork,
)
from flash_attention.kernels.tik.problem import KernelProblem, padded
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.row_layout import RowLayout, Words
from flash_attention.kernels.tik.tik_types import BlockPlan, Number, Scalar
from flash_attention.kernels.tik.varlen import SEQUENCE_ROW

EDGE = 8  # query tiles at either end of a key tile's range that may be partly visible
DISTANCES = 8  # query tiles with keys on both sides
_FIELDS = (
    *("head", "kv_head", "mask_plane", "bias_plane", "slope", "slot", "tile", "first", "count", "steps", "middle"),
    *("cross", "before", "batch"),
    # Query tiles final .. final_end - 1 are visited by no later item of the head, see BackwardSplit.writes_d_query.
    *("final", "final_end"),
)


def _item(numbers: dict[str, Words]) -> RowLayout:
    return RowLayout({**dict.fromkeys(_FIELDS, 1), **numbers, "right": EDGE, "distance": DISTANCES})


# left, right: numbers of the visibility tiles of the first and, counted backwards, of the last EDGE query tiles.
ITEM = _item({"left": EDGE})
# The tiles of packed sequences have no numbers.
VARLEN_ITEM = _item({"sequence": SEQUENCE_ROW})
# Under a block mask count is the length of the item's list of query tiles; the steps go through it for each query head
# of the group, or once if the heads have masks of their own. list is the first word of the list in the table.
LISTED_ITEM = _item({"list": EDGE})


def row_of(problem: KernelProblem) -> RowLayout:
    """Return the row of an item of a problem."""
    return VARLEN_ITEM if problem.sequences else LISTED_ITEM if problem.listed else ITEM


ITEM_STEPS = 3  # steps that an item costs beside its own


@dataclass(frozen=True)
class BackwardSplit(TableOfWork):
    """The work of the main kernel.

    Attributes:
        table: see ITEM; items with count 0 do not exist. As in forward.items.WorkSplit.
        tiles, distances: as in forward.items.WorkSplit, of (rows, keys) of the plan; if the Cube lowers hidden
            scores, tiles hold LOWEST for them and 0 elsewhere.
        slots: accumulators per query head.
        writes_d_query: the main kernel gives d_query itself: each accumulator has one core, which visits all of it.
        kept: (first, end) of the query tiles of a head that stay in L1 while a core works on it.
    """

    slots: int
    writes_d_query: bool
    kept: tuple[int, int] = (0, 0)


class PartialTilesError(ValueError):
    """A range of visible tiles has more partly visible tiles than an item can number.

    It is also raised if too many tiles have keys on both sides.
    """


def set_signs(problem: KernelProblem, plan: BackwardPlan, words: np.void, start: int, distances: Registry) -> None:
    """Set `cross` and `before`: query tiles stand before all keys up to `cross`, after all keys from `before` on."""
    rows = plan.rows

    def position(index: int) -> int:
        return index * rows + problem.call.offset

    tiles = range(words["first"], words["first"] + words["count"])
    cross = next((i for i in tiles if position(i) + rows - 1 > start), tiles.stop)
    before = next((i for i in tiles if position(i) >= start + plan.keys - 1), tiles.stop)
    words["cross"], words["before"] = cross, before
    if before - cross > DISTANCES:
        raise PartialTilesError(
            f"alibi: keys {start}..{start + plan.keys - 1} stand on both sides of more than {DISTANCES} tiles "
            f"of {rows} queries"
        )
    for index, tile in enumerate(range(cross, before)):
        words["distance"][index] = distances.number(start - position(tile))


# ---- lists of tiles under a block mask
MOST_TILES = 8192  # of queries of a head, that an entry of a list tells apart


def own_lists(problem: KernelProblem) -> bool:
    """Return if the query heads of a group have block masks of their own. Entries of a list then name the head."""
    return problem.listed and problem.call.group > 1 and (problem.call.block_mask_shape or (1, 1))[1] > 1


def list_length(problem: KernelProblem, plan: BlockPlan) -> int:
    """Return words of a list of query tiles."""
    tiles = query_tiles(problem, plan) * (problem.call.group if own_lists(problem) else 1)
    return padded(tiles, tile_lists.BLOCK_WORDS)


def query_tiles(problem: KernelProblem, plan: BlockPlan) -> int:
    """Return query tiles of a head."""
    return -(-problem.call.seq_q // plan.rows)


_FINAL = ("final", "final_end")


def words(problem: KernelProblem) -> dict[str, int]:
    """Return places of the fields of an item and of its sequence."""
    layout = row_of(problem)
    more = layout.single("sequence") if problem.sequences else {"list": layout.word("list")} if problem.listed else {}
    return {**layout.single(), **more}


@dataclass(frozen=True)
class Unit:
    """A step's query tile: run-time scalars of one place in the ring.

    Attributes:
        position: place in the ring, known at build time.
        member: query head of the group.
        tile: number of the query tile.
        rows: rows of the tile, see `Core.tail_rows`; 0 or less if a packed sequence has no queries.
        kept: place among the tiles that stay in L1 if the tile is already there, else -1. See BackwardSplit;
            None if no tiles are kept.
        number: under a block mask the number of the visibility tile, else None.
        place: place in its slot of the ring, if tiles stay on chip, else None.
        sum: place of its part of the query gradient, if sums stay on chip, else None.
    """

    position: int
    member: Scalar
    tile: Scalar
    rows: Scalar
    kept: Scalar | None
    number: Scalar | None = None
    place: kept_tiles.Place | None = None
    sum: kept_sums.Sum | None = None


class KeyItem(TableRow):
    """One work item and its current step.

    Attributes:
        kept: as in BackwardSplit.
        fresh: run-time flag: the first item of a head, which loads the tiles that are kept.
    """

    def __init__(self, core: Core[BackwardPlan], name: str, writes_d_query: bool, kept: tuple[int, int]):
        """Choose `writes_d_query` and `kept` as in BackwardSplit."""
        fields: dict[Field, int] = {
            field: word for field, word in words(core.problem).items() if writes_d_query or field not in _FINAL
        }
        super().__init__(core, name, row_of(core.problem), fields)
        self._member, self._tile = core.scalar("int32", "next_member", 0), core.scalar("int32", "next_tile", 0)
        self._plan, self._ways = core.plan, core.plan.ways
        self.units = [self._unit(place, kept[1] > 0) for place in range(RING)]
        self.kept = kept
        self.fresh = core.scalar("int32", "fresh", 1) if kept[1] else None
        self._kept_head = core.scalar("int32", "kept_head", -1) if kept[1] else None

    def _unit(self, place: int, keeps: bool) -> Unit:
        scalar = self.core.scalar
        member, tile, rows = (scalar("int32", f"{name}_{place}", 0) for name in ("member", "tile", "rows"))
        number = scalar("int32", f"number_{place}", 0) if self.core.problem.listed else None
        kept = scalar("int32", f"kept_{place}", -1) if keeps else None
        way = kept_tiles.Place.of(self.core, place) if self._ways > 1 else None
        part = kept_sums.Sum.of(self.core, place) if self._plan.sums else None
        return Unit(place, member, tile, rows, kept, number, way, part)

    def rewind(self) -> None:
        """Go to the first step."""
        self._member.set_as(0)
        self._tile.set_as(self["first"])  # under a block mask the place in the list: first is 0
        if self.fresh is not None and self._kept_head is not None:
            self.fresh.set_as(0)
            with self.core.tik.if_scope(self["head"] != self._kept_head):
                self.fresh.set_as(1)
            self._kept_head.set_as(self["head"])

    def keeps(self, unit: Unit) -> tuple[Number, Number]:
        """Return run-time conditions: the tile of a step is one of those that are kept."""
        return unit.tile >= self.kept[0], unit.tile < self.kept[1]

    def advance(self, place: int) -> Unit:
        """Put the next step of the item into a place of the ring."""
        core, unit = self.core, self.units[place]
        unit.member.set_as(self._member)
        self._find(unit, self._tile)
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
        """Return the last step of the item."""
        unit = self.units[0]
        unit.member.set_as(0 if own_lists(self.core.problem) else self.core.problem.call.group - 1)
        self._find(unit, self["first"] + self["count"] - 1)
        self._count_rows(unit)
        return unit

    def _find(self, unit: Unit, place: Number) -> None:
        """Set a step to a query tile, or to an entry of the item's list."""
        if unit.number is None:
            unit.tile.set_as(place)
            return
        word = unit.tile
        for lists in each_epoch(self.core, self.core.on.lists, self["list"]):
            word.set_as(lists[place])
        unit.number.set_as(word % CODES)
        word.set_as(word // CODES)
        kept_tiles.split(word, self._ways, unit.place)
        if unit.sum is not None:
            unit.sum.split(self.core, self._plan, word)
        if own_lists(self.core.problem):
            tiles = query_tiles(self.core.problem, self.core.plan)
            unit.member.set_as(word // tiles)
            word.set_as(word % tiles)

    def load_list(self, side: Number) -> None:
        """Bring the item's list on chip, to a run-time tensor 0 or 1. "list" is then its number."""
        core = self.core
        length = list_length(core.problem, core.plan)
        for lists in each_epoch(core, core.on.lists, side):
            core.tik.data_move(lists, core.gm["work"][self["list"]], 0, 1, length // tile_lists.BLOCK_WORDS, 0, 0)
        self["list"].set_as(side)

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
        """Return the position of the first row of a query tile among the keys."""
        problem = self.core.problem
        return tile * self.core.plan.rows + (self["offset"] if problem.sequences else problem.call.offset)

    def tile_number(self, number: Scalar, unit: Unit) -> None:
        """Set `number` to the visibility tile of a step, 0 if everything is visible."""
        core, table, tile = self.core, self.core.on.table[0], unit.tile
        if unit.number is not None:
            number.set_as(unit.number)
            return
        if core.band:
            core.band.number(number, self.position(tile), self["tile"], self["keys"], self.get("prefix"))
            return
        with core.tik.if_scope(tile - self["first"] < EDGE):
            number.set_as(table[self.row + (tile - self["first"]) + self.layout.word("left")])
        with core.tik.else_scope():
            number.set_as(self["middle"])
            with core.tik.if_scope(self["first"] + self["count"] - tile <= EDGE):
                number.set_as(
                    table[self.row + (self["first"] + self["count"] - tile) + (self.layout.word("right") - 1)]
                )

    def distance_number(self, number: Scalar, tile: Number) -> None:
        """Set `number` to the distance tile of queries with keys on both sides, or 0."""
        core, table = self.core, self.core.on.table[0]
        if core.band:
            crossing = self["cross"], self["before"]
            core.band.distance_number(number, self.position(tile), self["tile"], tile, *crossing)
            return
        number.set_as(0)
        with core.when(tile >= self["cross"], tile < self["before"]):
            number.set_as(table[self.row + (tile - self["cross"]) + self.layout.word("distance")])

    def plane(self, name: str, unit: Unit) -> Number:
        """Return the plane of the mask or the bias for a step's query head."""
        heads, plane = getattr(self.core.problem, f"{name}_planes")[1], self.get(f"{name}_plane")
        return plane if heads == 1 else plane + unit.member
