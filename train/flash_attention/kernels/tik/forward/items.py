"""Rows of the forward work table, and the kernel's view of a row."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from flash_attention.kernels.tik.common import kept_tiles, tile_lists
from flash_attention.kernels.tik.common.double_buffer import each_epoch
from flash_attention.kernels.tik.common.score_terms import Planes
from flash_attention.kernels.tik.common.table_row import Field, TableRow
from flash_attention.kernels.tik.common.work_split import (
    Registry,
    TableOfWork,
)
from flash_attention.kernels.tik.forward.tiling import ForwardPlan
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.row_layout import RowLayout, Words
from flash_attention.kernels.tik.tik_types import Number, RunTime, Scalar
from flash_attention.kernels.tik.varlen import FAR, SEQUENCE_ROW

ROW_BLOCKS = 2  # of an item at most
EDGE = 4  # key tiles at either end of a row block's range that may be partly visible
NEVER = FAR  # key tile that no row block visits
MOST_STRIDE = 4000  # of a sample, in groups of 16 keys
ITEM_COST = 2  # of an item beside its tiles


def _rows(edges: dict[str, Words]) -> tuple[RowLayout, RowLayout]:
    """Return the rows of a row block and of an item.

    A row block has rows from `start` on, key tiles from first to last, and the sample of keys for the first row
    references. cross is the first key tile with keys after a query. after is the first tile with all keys after all
    queries. distance holds the numbers of the distance tiles of tiles cross and cross + 1.
    """
    row_block = RowLayout(
        {
            **dict.fromkeys(("start", "rows", "first", "last"), 1),
            **edges,
            **dict.fromkeys(("strided", "sample", "stride", "sample_tile", "cross", "after"), 1),
            "distance": 2,
        }
    )
    fields = ("head", "kv_head", "mask_plane", "bias_plane", "slope", "begin", "end", "batch")
    return row_block, RowLayout({**dict.fromkeys(fields, 1), "row_blocks": (row_block, ROW_BLOCKS)})


# Numbers of visibility tiles of the first and, counted backwards, of the last EDGE tiles; 0 = all visible.
ROW_BLOCK, ITEM = _rows({"left": EDGE, "right": EDGE})
# With packed sequences, whose tiles have no numbers, the first row block holds the sequence of the item there.
_, VARLEN_ITEM = _rows({"sequence": SEQUENCE_ROW})
# Under a block mask every row block has a list of tiles, and holds its first word in the table. first and last are
# places in the list. The sample is the first tile.
_, LISTED_ITEM = _rows({"list": 4})


@dataclass(frozen=True)
class WorkSplit(TableOfWork):
    """The work of a kernel.

    Attributes:
        table: see ITEM; rows of items that do not exist are inactive. With packed sequences or under a block
            mask it is an input of the kernel, see data_tables, and this one is room for it.
        tiles: float16 (n, rows, 16), columns of 16 keys, 1 = visible and 0 = hidden, or softmax.limits of them if
            scores are float16; n may be 0. Tile number i is keys / 16 columns from column i - 1 on.
        distances: float16 (n, keys / 16, rows, 16), tokens by which a key lies after its query; n may be 0.
        sample_misses: there are row blocks whose sample may show a row nothing although it sees keys.
        whole: number of the tile in which everything is visible, if it may be needed as a tile of limits; else 0.
    """

    sample_misses: bool
    whole: int


def row_block_groups(problem: KernelProblem, plan: ForwardPlan) -> list[tuple[int, ...]]:
    """Return the row blocks of each item of a head: neighbours share the key tiles that they both visit."""
    count = -(-problem.call.seq_q // plan.rows)
    groups = [tuple(range(count))[i : i + plan.row_blocks] for i in range(0, count, plan.row_blocks)]
    # The row block that sees more keys comes first. Then no unit is missing among the last units of an item.
    return [group[::-1] for group in groups] if problem.call.rules.causal else groups


def set_signs(problem: KernelProblem, plan: ForwardPlan, words: np.void, start: int, distances: Registry) -> None:
    """Set the tiles from which keys stand after a query: ALiBi takes the absolute distance."""
    keys = plan.keys
    position, last = start + problem.call.offset, start + plan.rows - 1 + problem.call.offset
    cross, after = (position + 1) // keys, -(-last // keys)
    cross, after = (min(max(tile, int(words["first"])), int(words["last"]) + 1) for tile in (cross, max(after, cross)))
    words["cross"], words["after"] = cross, after
    for index, tile in enumerate(range(cross, after)):
        words["distance"][index] = distances.number(tile * keys - position)


_SAMPLE = ("strided", "sample", "stride", "sample_tile")
_SIGNS = ("cross", "after")


class Item(TableRow):
    """One work item, with or without the fields of its sample. The kernel sets `index`, its number on this core."""

    def __init__(self, core: Core[ForwardPlan], name: str, sample: bool):
        problem = core.problem
        layout = VARLEN_ITEM if problem.sequences else LISTED_ITEM if problem.listed else ITEM
        words: dict[Field, int] = dict(layout.single().items())
        if problem.sequences:
            words.update(layout.single("row_blocks", 0, "sequence"))
        absent = (() if sample else _SAMPLE) + (() if problem.call.bias == "alibi" else _SIGNS)
        for a in range(core.plan.row_blocks):
            per_block = layout.single("row_blocks", a)
            words.update({(field, a): word for field, word in per_block.items() if field not in absent})
            if problem.listed:
                words["list", a] = layout.word("row_blocks", a, "list")
        super().__init__(core, name, layout, words)
        self.index, self._ways = core.scalar("int32", f"{name}_index", 0), core.plan.ways
        self.epoch = core.scalar("int32", f"{name}_epoch", 0) if problem.listed else self.index  # of its lists

    def load_lists(self, epoch: Number) -> None:
        """Bring the lists of tiles on chip, to the tensor of a run-time epoch."""
        core = self.core
        length = tile_lists.length(core.problem, core.plan)
        for lists in each_epoch(core, core.on.lists, epoch):
            for a in range(core.plan.row_blocks):
                source = core.gm["work"][self["list", a]]
                core.tik.data_move(lists[a * length], source, 0, 1, length // tile_lists.BLOCK_WORDS, 0, 0)
        self.epoch.set_as(epoch)

    def entry(self, a: int, place: Number, tile: Scalar, code: Scalar, kept: kept_tiles.Place | None = None) -> None:
        """Set tile, code and place on chip to an entry of a list."""
        for lists in each_epoch(self.core, self.core.on.lists, self.epoch):
            tile.set_as(lists[a * tile_lists.length(self.core.problem, self.core.plan) + place])
        code.set_as(tile % tile_lists.CODES)
        tile.set_as(tile // tile_lists.CODES)
        kept_tiles.split(tile, self._ways, kept)

    def skip(self, a: int) -> None:
        """Make row block `a` inactive."""
        self["rows", a].set_as(0)
        self["first", a].set_as(1)
        self["last", a].set_as(0)

    def skip_all(self) -> None:
        """Make the item inactive: no stage of the pipeline runs for it."""
        for a in range(self.core.plan.row_blocks):
            self.skip(a)
        self["begin"].set_as(0)
        self["end"].set_as(0)

    def visits(self, a: int, tile: Number) -> tuple[Number, Number]:
        """Return conditions for row block `a` to visit a key tile."""
        return tile >= self["first", a], tile <= self["last", a]

    def position(self, a: int) -> RunTime:
        """Return the position of row block `a`'s first row among the keys of its sequence."""
        offset = self._scalars.get("offset", self.core.problem.call.offset)
        return self["start", a] + offset

    def sample_number(self, number: Scalar, a: int) -> None:
        """Set `number` to the visibility tile of the sample of row block `a`."""
        if not self.core.band:
            number.set_as(self["sample_tile", a])
            return
        with self.core.tik.if_scope(self["strided", a] > 0):
            number.set_as(0)
        with self.core.tik.else_scope():
            self.tile_number(number, a, self["sample", a])

    def tile_number(self, number: Scalar, a: int, tile: Number) -> None:
        """Set `number` to a visibility tile. 0 if all is visible."""
        core, table = self.core, self.core.on.table[0]
        if core.band:
            core.band.number(number, self.position(a), tile, self["keys"], self.get("prefix"))
            return
        number.set_as(0)
        with core.tik.if_scope(tile - self["first", a] < EDGE):
            number.set_as(table[self.row + (tile - self["first", a]) + self.layout.word("row_blocks", a, "left")])
        with core.tik.else_scope(), core.tik.if_scope(self["last", a] - tile < EDGE):
            number.set_as(table[self.row + (self["last", a] - tile) + self.layout.word("row_blocks", a, "right")])

    def distance_number(self, number: Scalar, a: int, tile: Number) -> None:
        """Set `number` to the distance tile of keys on both sides, else 0."""
        core, table = self.core, self.core.on.table[0]
        if core.band:
            core.band.distance_number(number, self.position(a), tile, tile, self["cross", a], self["after", a])
            return
        number.set_as(0)
        with core.when(tile >= self["cross", a], tile < self["after", a]):
            number.set_as(table[self.row + (tile - self["cross", a]) + self.layout.word("row_blocks", a, "distance")])

    def planes(self) -> Planes:
        """Return planes of inputs with one vector per plane."""
        return Planes(self.get("bias_plane"), self.get("mask_plane"))
