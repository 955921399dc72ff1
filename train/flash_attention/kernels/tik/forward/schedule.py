"""Schedule of the forward operator: row blocks paired into work items, balanced over the cores, as integer tables.

A kernel reads its share of the work from a table in global memory, so that every visibility rule stays in
`flash_attention.call.visibility`. Tiles that are partly visible refer to a tile of zeros and ones by number.

For packed sequences the table is data: `table` has the same formulas for lengths at run time. Items are then the row
blocks of every sequence and head. They are dealt to the cores, longest first, in turns that change direction. So all
cores have equally many items, and about as much to do.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple

import numpy as np

from flash_attention.kernels.tik import instruction_forms, varlen
from flash_attention.kernels.tik.common import band, tile_lists
from flash_attention.kernels.tik.common.score_terms import Planes
from flash_attention.kernels.tik.common.table_row import Field, TableRow
from flash_attention.kernels.tik.common.tile_lists import CODES
from flash_attention.kernels.tik.common.work_split import (
    Choice,
    Registry,
    TableOfWork,
    clip,
    deal,
    distance_tiles,
    name_head,
    neighbours,
    visibility_strip,
)
from flash_attention.kernels.tik.forward import score_bound, softmax
from flash_attention.kernels.tik.forward.tiling import ForwardPlan, buffers, candidates
from flash_attention.kernels.tik.hardware import excess
from flash_attention.kernels.tik.layout import capacity, placement
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.row_layout import RowLayout, Words
from flash_attention.kernels.tik.tik_types import Number, RunTime, Scalar
from flash_attention.kernels.tik.varlen import FAR, SEQUENCE_ROW, Array, Limits, Sequences

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
# Under a block mask first and last are places in the item's list of tiles, and stride is the place of the sample. The
# first row block holds the first word of the list in the table.
_, LISTED_ITEM = _rows({"list": 4})
# Time of a unit whose key and value tiles serve one row block instead of two, at head_dim 128: the memory is its limit.
UNSHARED = 1.4
APART = 0.97  # share of the busiest core's load: if taking the last items apart gets below it, they are taken apart


@dataclass(frozen=True)
class WorkSplit(TableOfWork):
    """The work of a kernel.

    Attributes:
        table: see ITEM; rows of items that do not exist are inactive. With packed sequences it is an input
            of the kernel, see forward.packed, and this one is empty.
        tiles: float16 (n, rows, 16), columns of 16 keys, 1 = visible and 0 = hidden, or softmax.limits of them if
            scores are float16; n may be 0. Tile number i is keys / 16 columns from column i - 1 on.
        distances: float16 (n, keys / 16, rows, 16), tokens by which a key lies after its query; n may be 0.
        sample_misses: there are row blocks whose sample may show a row nothing although it sees keys.
        whole: number of the tile in which everything is visible, if it may be needed as a tile of limits; else 0.
    """

    sample_misses: bool
    whole: int


ForwardChoice = Choice[ForwardPlan, WorkSplit]


def choose(problem: KernelProblem) -> ForwardChoice:
    """Return the first plan that fits. If cores would idle, return a plan with the same tiles and more items.

    The tiles stay the same, so that some of the heads alone give the same bits as all heads together.

    Raises:
        ValueError: no tiling strategy fits the memories of a core.
    """
    return _choose(problem, instruction_forms.current())


@functools.lru_cache(maxsize=4)
def _choose(problem: KernelProblem, _: instruction_forms.InstructionForms) -> ForwardChoice:
    reasons, chosen = [], None
    for plan in candidates(problem):
        if chosen is not None and (plan.rows, plan.keys) != (chosen.plan.rows, chosen.plan.keys):
            continue
        work = split(problem, plan)
        parts = buffers(problem, plan, work)
        reason = excess(parts, problem)
        if reason:
            reasons.append(f"{plan.strategy} needs {reason}")
        elif chosen is None or UNSHARED * max(work.units) < max(chosen.split.units):
            chosen = Choice(plan, work, tuple(parts))
        if chosen is not None and (problem.sequences or chosen.split.cores == problem.cores):
            break
    if chosen is None:
        raise ValueError(f"tiling: no strategy fits this call: {'; '.join(reasons)}")
    return chosen


def split(problem: KernelProblem, plan: ForwardPlan) -> WorkSplit:
    """Divide the row blocks of all heads among the cores, the longest items first."""
    if problem.sequences:
        return _of_sequences(problem, plan)
    if problem.listed:
        return _of_lists(problem, plan).work
    tiles, distances = Registry(), Registry()
    count = -(-problem.seq_q // plan.rows)
    blocks = ROW_BLOCK.zeros(count)
    misses = [_row_block(problem, plan, index, blocks[index], tiles, distances) for index in range(count)]
    counts = len(tiles.numbers) > 0 and score_bound.is_needed(problem, plan.half_scores)
    whole = tiles.number(((0, plan.keys),) * plan.rows) if counts else 0
    visible, starts = visibility_strip(plan, tiles)
    numbers = np.array([0, *(start + 1 for start in starts)], np.int32)
    for field in ("left", "right", "sample_tile"):
        blocks[field] = numbers[blocks[field]]
    groups = _row_block_groups(problem, plan)
    heads = [(b, h) for b in range(problem.batch) for h in range(problem.heads)]
    units = (blocks["last"] - blocks["first"] + 1).tolist()
    shares = _shares(groups, units, len(heads), problem.cores, score_bound.is_needed(problem, plan.half_scores))

    table = ITEM.zeros(len(shares), max(map(len, shares)))
    table["row_blocks"]["first"] = 1  # beyond the last: inactive
    for core, share in enumerate(shares):
        # Heads in order, so that neighbouring cores meet in the same keys.
        for row, (head, group) in enumerate(sorted(share)):
            item, row_blocks = table[core, row], blocks[list(group)]
            name_head(item, problem, *heads[head])
            item["begin"], item["end"] = row_blocks["first"].min(), row_blocks["last"].max() + 1
            item["row_blocks"][: len(row_blocks)] = row_blocks
    return WorkSplit(
        table,
        softmax.limits(problem, visible) if plan.half_scores else visible,
        distance_tiles(plan, distances),
        tuple(sum(units[index] for _, group in share for index in group) for share in shares),
        any(misses),
        int(numbers[whole]),
    )


def _row_block_groups(problem: KernelProblem, plan: ForwardPlan) -> list[tuple[int, ...]]:
    """Return the row blocks of each item of a head: neighbours share the key tiles that they both visit."""
    count = -(-problem.seq_q // plan.rows)
    groups = [tuple(range(count))[i : i + plan.row_blocks] for i in range(0, count, plan.row_blocks)]
    # The row block that sees more keys comes first. Then no unit is missing among the last units of an item.
    return [group[::-1] for group in groups] if problem.rules.causal else groups


#: A head and the numbers of the row blocks of a work item.
_Item = tuple[int, tuple[int, ...]]


def _shares(
    groups: list[tuple[int, ...]], units: list[int], heads: int, cores: int, gathered: bool
) -> list[list[_Item]]:
    """Return the items of every core. Each group has an item for each head.

    If the number of cores does not divide the items, the left-over items are taken apart into row blocks if that helps.

    Args:
        units: number of units of each row block.
        gathered: a core should have few heads, because it measures the keys of each.
    """
    whole = [(head, group) for head in range(heads) for group in groups]
    spare = len(whole) % cores if len(whole) > cores else 0

    def cost(item: _Item) -> int:
        blocks = item[1]
        shared = 1.0 if len(blocks) > 1 or len(groups[0]) == 1 else UNSHARED
        return round(10 * (sum(units[block] for block in blocks) * shared + ITEM_COST))

    def dealt(items: list[_Item]) -> tuple[list[list[_Item]], int]:
        costs = [cost(item) for item in items]
        hands, loads = deal(costs, cores)
        if gathered:
            hands = neighbours(hands, costs)
        return [[items[index] for index in hand] for hand in hands], max(loads)

    usual, busiest = dealt(whole)
    order = sorted(range(len(whole)), key=lambda index: (cost(whole[index]), -index))
    left = set(order[:spare])
    apart = [
        (head, part)
        for index, (head, group) in enumerate(whole)
        for part in ([(block,) for block in group] if index in left else [group])
    ]
    other, load = dealt(apart) if len(apart) > len(whole) else (usual, busiest)
    return other if load < APART * busiest else usual


def _of_sequences(problem: KernelProblem, plan: ForwardPlan) -> WorkSplit:
    """Return the work of packed sequences: room for the table, which is data. The units count row blocks."""
    ranks, _ = _deal_items(problem, plan)
    signed = problem.bias == "alibi" and not problem.rules.causal
    visible = band.tiles(problem, plan)
    return WorkSplit(
        VARLEN_ITEM.zeros(*ranks.shape),
        softmax.limits(problem, visible) if plan.half_scores else visible,
        band.distances(plan) if signed else np.zeros((0, 16), np.float16),
        tuple(int(count) * plan.row_blocks for count in (ranks < _groups(problem, plan)).sum(axis=1)),
        Limits.of(problem).bounded,
        0,
    )


def _row_block(
    problem: KernelProblem, plan: ForwardPlan, index: int, words: np.void, tiles: Registry, distances: Registry
) -> bool:
    """Fill the record of a row block. Returns whether its sample may show a row nothing although it sees keys."""
    band, keys = problem.band, plan.keys
    start = index * plan.rows
    last_row = min(start + plan.rows, problem.seq_q) - 1
    words["start"] = start
    words["rows"] = min(placement(problem, "query").rows - start, plan.rows)
    lo, hi = band.union(start, last_row)
    common = band.common(start, last_row)
    bounds = [band.keys(row) for row in range(start, start + plan.rows)]
    misses = False

    def number(tile: int) -> int:
        if common[0] <= tile * keys and (tile + 1) * keys <= common[1]:
            return 0
        return tiles.number(tuple(clip(pair, tile * keys, keys) for pair in bounds))

    if lo >= hi:  # nothing visible: one tile with everything hidden gives output 0
        words["left"][0] = words["right"][0] = words["sample_tile"] = tiles.number(((0, 0),) * plan.rows)
    else:
        first, last = lo // keys, (hi - 1) // keys
        words["first"], words["last"] = first, last
        for edge in range(min(EDGE, last - first + 1)):
            words["left"][edge] = number(first + edge)
            words["right"][edge] = number(last - edge)
        if last - first + 1 > 2 * EDGE and (number(first + EDGE) or number(last - EDGE)):
            raise ValueError(
                f"prev_blocks, next_blocks, tile: partly visible key tiles of rows {start}..{last_row} "
                f"reach further than {EDGE} tiles of {keys} keys into their range"
            )
        if plan.shared_sample:
            _shared_sample(problem, plan, words, index - index % 2, number)
        else:
            misses = _sample(problem, plan, words, bounds[: last_row + 1 - start], common, number)
    if problem.bias == "alibi" and not problem.rules.causal:
        _signs(problem, plan, words, start, distances)
    else:
        words["cross"] = words["after"] = NEVER
    return misses


def _shared_sample(
    problem: KernelProblem, plan: ForwardPlan, words: np.void, index: int, number: Callable[[int], int]
) -> None:
    """Sample as `_sample` does, for two row blocks from `index` on: the keys all rows see, else the first tile.

    The second row block sees these keys too, whether or not it is computed beside the first. The first tile is always
    part of the sample.
    """
    start = index * plan.rows
    _, high = problem.band.common(start, min(start + plan.rows, problem.seq_q) - 1)
    low = plan.segment_start(plan.near_segments) // 16
    if high < plan.keys or not _spread(words, plan.columns - low, low, high // 16):
        words["sample_tile"] = number(0)


def _spread(words: np.void, groups: int, low: int, high: int) -> bool:
    """Sample groups of 16 keys, spread over the keys from `low` to `high`. Returns whether there are enough."""
    if not high - low >= groups > 1:
        return False
    stride = min((high - low - 1) // (groups - 1), MOST_STRIDE)
    words["strided"], words["sample"], words["stride"] = 1, low, stride
    return True


def _sample(
    problem: KernelProblem, plan: ForwardPlan, words: np.void, bounds: list, common: tuple, number: Callable[[int], int]
) -> bool:
    """Return keys whose scores give the first reference of the row maxima: spread over what all rows see, else one
    tile.

    A mask per score may show a query only nearby keys, so then the sample is one tile too.

    Returns:
        Whether the sample may show nothing to a row that sees other keys.
    """
    masked = problem.mask == "per_score"
    if problem.bias == "none" and not masked and _spread(words, plan.columns, -(-common[0] // 16), common[1] // 16):
        return False

    def widths_in(tile: int) -> list[int]:
        return [max(0, min(b, (tile + 1) * plan.keys) - max(a, tile * plan.keys)) for a, b in bounds]

    def seen(tile: int) -> tuple[int, int]:
        widths = widths_in(tile)
        return sum(width > 0 for width in widths), sum(widths)

    first, last = int(words["first"]), int(words["last"])
    middle = (bounds[len(bounds) // 2][0] + bounds[len(bounds) // 2][1]) // 2 // plan.keys
    diagonal = (int(words["start"]) + problem.offset) // plan.keys
    choices = [min(max(tile, first), last) for tile in (diagonal, diagonal + 1, last, first, middle)]
    if problem.bias != "none":  # a bias by distance: the nearest key has the largest
        choices = choices[:2]
    tile = max(choices, key=seen)
    words["sample"], words["sample_tile"] = tile, number(tile)
    return masked or any(low < high and width == 0 for (low, high), width in zip(bounds, widths_in(tile)))


def _signs(problem: KernelProblem, plan: ForwardPlan, words: np.void, start: int, distances: Registry) -> None:
    """Set the tiles from which keys stand after a query: ALiBi takes the absolute distance."""
    keys = plan.keys
    position, last = start + problem.offset, start + plan.rows - 1 + problem.offset
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
        if problem.listed:
            words["list"] = layout.word("row_blocks", 0, "list")
        absent = (() if sample else _SAMPLE) + (() if problem.bias == "alibi" else _SIGNS)
        for a in range(core.plan.row_blocks):
            per_block = layout.single("row_blocks", a)
            words.update({(field, a): word for field, word in per_block.items() if field not in absent})
        super().__init__(core, name, layout, words)
        self.index = core.scalar("int32", f"{name}_index", 0)
        if problem.listed:
            self._word = core.scalar("int32", f"{name}_word", 0)

    def load_list(self, epoch: Number) -> None:
        """Bring the item's list of tiles on chip, to the place of a run-time epoch. "list" is then its place there."""
        core = self.core
        length = tile_lists.length(core.problem, core.plan)
        source, target = core.gm["work"][self["list"]], core.on.lists[0][epoch * length]
        core.tik.data_move(target, source, 0, 1, length // tile_lists.BLOCK_WORDS, 0, 0)
        self["list"].set_as(epoch * length)

    def entry(self, place: Number, tile: Scalar, codes: Sequence[Scalar]) -> None:
        """Set tile and codes of the row blocks to an entry of the item's list."""
        word = self._word
        word.set_as(self.core.on.lists[0][self["list"] + place])
        for code in codes:
            code.set_as(word % tile_lists.CODES)
            word.set_as(word // tile_lists.CODES)
        tile.set_as(word)

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
        offset = self._scalars.get("offset", self.core.problem.offset)
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


_OF_ROW_BLOCK = ("start", "rows", "first", "last", "strided", "sample", "stride", "cross", "after")


def _groups(problem: KernelProblem, plan: ForwardPlan) -> int:
    """Return the most work items of a head."""
    return capacity(problem.seq_q, problem.sequences, plan.rows * plan.row_blocks)


def _deal_items(problem: KernelProblem, plan: ForwardPlan) -> tuple[np.ndarray, np.ndarray]:
    """Return (rank, head) of the item in every place, (cores, items) each. The last rank is nothing."""
    count = _groups(problem, plan)
    total = count * problem.heads
    cores = min(problem.cores, total)
    turn, core = np.arange(-(-total // cores))[None, :], np.arange(cores)[:, None]
    number = turn * cores + np.where(turn % 2 == 0, core, cores - 1 - core)
    exists = number < total
    return np.where(exists, number // problem.heads, count), np.where(exists, number % problem.heads, 0)


def table(xp: Any, problem: KernelProblem, plan: ForwardPlan) -> Callable[[tuple], Array]:
    """Return make(sequences) -> the table, int32 (cores, items, VARLEN_ITEM.size)."""
    count = _groups(problem, plan) + 1  # one more than there can be: the last does not exist
    rows, row_blocks = plan.rows, plan.row_blocks
    ranks, heads = _deal_items(problem, plan)
    own = VARLEN_ITEM.zeros(*ranks.shape)
    own["head"] = own["slope"] = heads
    own["kv_head"] = heads // problem.group
    of_sequence = len(Sequences._fields)
    words = [VARLEN_ITEM.word(name) for name in ("begin", "end", *(["slope"] if problem.slope_stride else []))]
    words += VARLEN_ITEM.single("row_blocks", 0, "sequence").values()
    for a in range(row_blocks):
        words += [VARLEN_ITEM.word("row_blocks", a, name) for name in _OF_ROW_BLOCK]
    ranked, tiles = varlen.ranked(xp, count, words, ranks, VARLEN_ITEM.words(own)), varlen.tiles(xp, problem, count)
    row_block, unit = _row_blocks_at_run_time(xp, problem, plan), rows * row_blocks
    # As in `split`: of two row blocks, the row block that sees more keys comes first.
    swaps, slope_stride = problem.rules.causal and row_blocks == 2, problem.slope_stride

    def make(described):  # type: ignore[no-untyped-def]
        _, _, _, keys, offset, prefix, queries, _ = described
        owner, inside, active = tiles((queries + (unit - 1)) // unit)
        nothing = inside * 0
        zero, length, before = xp.take(offset, owner, 0), xp.take(keys, owner, 0), xp.take(prefix, owner, 0)
        begin, end, cost, of_blocks = nothing + FAR, nothing, nothing, ()
        swapped = xp.as_int(xp.take(queries, owner, 0) - inside * unit > rows)
        for a in range(row_blocks):
            start = inside * unit + a * rows
            if swaps:
                start = inside * unit + rows * (swapped if a == 0 else 1 - swapped)
            have = xp.minimum(xp.maximum(xp.take(queries, owner, 0) - start, 0), rows) * xp.as_int(active)
            block = row_block(start, have, start + zero, length, before)
            _, _, first, last, _, _, _, _, _ = block
            exists = have > 0
            begin = xp.where(exists, xp.minimum(begin, first), begin)
            end = xp.where(exists, xp.maximum(end, last + 1), end)
            cost = cost + (last - first + 1) * xp.as_int(exists)
            of_blocks = of_blocks + block
        active = xp.as_int(active)
        values = (begin * active, end)
        if slope_stride > 0:
            values = values + (owner * slope_stride,)
        for index in range(of_sequence):
            values = values + (xp.take(described[index], owner, 0),)
        return ranked(values + of_blocks, (cost + ITEM_COST) * active)

    return make


def _row_blocks_at_run_time(xp: Any, problem: KernelProblem, plan: ForwardPlan) -> Callable[..., tuple]:
    """Return row_block(start, rows, position, keys, prefix) -> a row block's words, as in _OF_ROW_BLOCK.

    The sample of the row maxima is spread over the keys that all rows see. If there are too few, the sample is the tile
    that shows something to most rows.
    """
    left, right, prefixed = Limits.of(problem)
    whole, columns, stride_at_most, gaps = plan.keys, plan.keys // 16, MOST_STRIDE, max(plan.keys // 16 - 1, 1)
    spread, by_distance = problem.bias == "none" and columns > 1, problem.bias == "alibi"
    signed, rows_of_tile = by_distance and not problem.rules.causal, plan.rows

    def bounds(position: Array, keys: Array, prefix: Array) -> tuple:
        """Return keys [low, high) that the query at a position sees."""
        low = keys * 0 if left == FAR else xp.minimum(xp.maximum(position - left, 0), keys)
        high = keys if right == FAR else xp.minimum(xp.maximum(position + (right + 1), 0), keys)
        return low, xp.maximum(high, xp.minimum(prefix, keys)) if prefixed else high

    def seen(tile: Array, rows: Array, position: Array, keys: Array, prefix: Array) -> Array:
        """Return rows that see a key of a tile."""
        stop = rows if left == FAR else xp.minimum((tile + 1) * whole + left - position, rows)
        start = rows * 0 if right == FAR else xp.maximum(tile * whole - right - position, 0)
        if prefixed:
            start = start * xp.as_int(prefix <= tile * whole)
        return xp.maximum(stop - start, 0) * xp.as_int(tile * whole < keys)

    def make(start: Array, rows: Array, position: Array, keys: Array, prefix: Array) -> tuple:
        exists, nothing = rows > 0, rows * 0
        ending = position + rows - 1
        first_low, first_high = bounds(position, keys, prefix)
        last_low, last_high = bounds(ending, keys, prefix)
        sees = last_high > first_low
        sees = xp.as_int(sees)
        first, last = first_low // whole * sees, (last_high - 1) // whole * sees
        low, high = (last_low + 15) // 16, first_high // 16
        strided = high - low >= columns if spread else rows < 0
        stride = xp.minimum(xp.maximum((high - low - 1) // gaps, 1), stride_at_most)
        diagonal, middle = position // whole, (position + rows // 2) // whole
        tile, most = nothing, nothing - 1
        for choice in (diagonal, diagonal + 1) if by_distance else (diagonal, diagonal + 1, last, first, middle):
            clipped = xp.minimum(xp.maximum(choice, first), last)
            count = seen(clipped, rows, position, keys, prefix)
            tile, most = xp.where(count > most, clipped, tile), xp.maximum(count, most)
        cross = after = nothing + FAR
        if signed:
            cross = xp.minimum(xp.maximum((position + 1) // whole, first), last + 1)
            after = (position + (rows_of_tile - 1) + (whole - 1)) // whole
            after = xp.minimum(xp.maximum(xp.maximum(after, (position + 1) // whole), first), last + 1)
        exists = xp.as_int(exists)
        sample = xp.as_int(strided), xp.where(strided, low, tile), stride
        return (start, rows, first * exists + (1 - exists), last * exists) + sample + (cross, after)

    return make


# ---- lists of tiles under a block mask
class _Lists(NamedTuple):
    """Room for the work under a block mask, and what follows from the rules.

    Attributes:
        codes: see `tile_lists.codes`, with the numbers of the strip of visibility tiles.
        hidden: code of a tile with nothing visible.
        blocks: record of each row block, without the fields that are data.
        groups: row blocks of each item of a head.
    """

    work: WorkSplit
    codes: np.ndarray
    hidden: int
    blocks: np.ndarray
    groups: list[tuple[int, ...]]


def _of_lists(problem: KernelProblem, plan: ForwardPlan) -> _Lists:
    tiles, distances, count = Registry(), Registry(), -(-problem.seq_q // plan.rows)
    codes = tile_lists.codes(problem, plan, tiles, False)
    hidden = tiles.number(((0, 0),) * plan.rows)
    counts = score_bound.is_needed(problem, plan.half_scores)
    whole = tiles.number(((0, plan.keys),) * plan.rows) if counts else 0
    visible, starts = visibility_strip(plan, tiles)
    numbers = np.array([0, *(start + 1 for start in starts)], np.int32)
    blocks = ROW_BLOCK.zeros(count)
    for index, words in enumerate(blocks):
        words["start"] = start = index * plan.rows
        words["rows"] = min(placement(problem, "query").rows - start, plan.rows)
        low, high = problem.band.union(start, min(start + plan.rows, problem.seq_q) - 1)
        words["first"], words["last"] = low // plan.keys, max(low, high - 1) // plan.keys
        words["cross"] = words["after"] = NEVER
        if problem.bias == "alibi" and not problem.rules.causal:
            _signs(problem, plan, words, start, distances)
    groups = _row_block_groups(problem, plan)
    items = tile_lists.dealt(problem, len(groups)).exists
    misses = problem.mask == "per_score" or len(codes) > 2 or not problem.band.unlimited()
    work = WorkSplit(
        LISTED_ITEM.zeros(*items.shape),
        softmax.limits(problem, visible) if plan.half_scores else visible,
        distance_tiles(plan, distances),
        tuple((items.sum(axis=1) * plan.row_blocks * codes.shape[2]).tolist()),
        misses,
        int(numbers[whole]),
    )
    return _Lists(work, np.where(codes > 0, 1 + numbers[codes - 1], 0), 1 + int(numbers[hidden]), blocks, groups)


def list_words(problem: KernelProblem, plan: ForwardPlan) -> int:
    """Return words of all lists."""
    lists = tile_lists.planes(problem) * -(-problem.seq_q // (plan.rows * plan.row_blocks))
    return lists * tile_lists.length(problem, plan)


def listed_table(xp: Any, problem: KernelProblem, plan: ForwardPlan) -> Callable[[Array], Array]:
    """Return make(block_mask) -> the table, int32 (words,): rows of items, LISTED_ITEM, and behind them the lists."""
    work, codes, hidden, blocks, groups = _of_lists(problem, plan)
    height, width, row_blocks = len(groups), codes.shape[2], plan.row_blocks
    planes, dealt = tile_lists.planes(problem), tile_lists.dealt(problem, height)
    lines, size = planes * height, tile_lists.length(problem, plan)
    of = np.array(
        [(*group, *(-1,) * (row_blocks - len(group))) for group in groups]
    ).T  # (row blocks of an item, items)
    exists = [xp.array(np.tile(one >= 0, planes).astype(int).tolist()) for one in of]
    column = np.arange(width)
    coded = tuple(
        [
            tile_lists.coded(xp, problem, plan, codes, np.stack(np.broadcast_arrays(one[:, None], column), -1))
            for one in of
        ]
    )
    wanted = [xp.array(np.tile(_wanted(problem, plan)[one], (planes, 1)).tolist()) for one in of]
    # One constant, because a graph may not multiply by two, see `bridge.constants.unfolded`.
    hides, tiles = (xp.array(one[None].tolist()) for one in ((column == 0) * hidden, column))
    rows = xp.array((np.arange(lines) * width).tolist())
    starts = xp.array((work.words.size + np.arange(lines) * size).tolist())
    fields = ("start", "rows", "cross", "after")

    def known(of_block: np.ndarray, field: str, *index: int) -> Array:
        """Return a field of all items' row blocks that no block mask changes."""
        values = blocks[field][(of_block, *index)]
        return xp.array(np.tile(np.where(of_block >= 0, values, 0), planes).tolist())

    constants = [
        tuple([known(one, field) for field in fields] + [known(one, "distance", index) for index in range(2)])
        for one in of
    ]
    # A bias by distance makes the nearest tile of each row block its sample.
    alone = 0 if problem.bias == "none" else width
    compact, names = tile_lists.compact_behind(xp, lines, width), tile_lists.Names(xp, problem, LISTED_ITEM, height)
    of_planes = names.values
    words = [LISTED_ITEM.word("row_blocks", 0, "list"), LISTED_ITEM.word("end"), *names.words]
    for a in range(row_blocks):
        data = "first", "last", "sample", "stride", "sample_tile"
        words += [LISTED_ITEM.word("row_blocks", a, field) for field in (*data, *fields)]
        words += [LISTED_ITEM.word("row_blocks", a, "distance") + i for i in range(2)]
    own = names.own(dealt)
    ranked = varlen.ranked(xp, lines + 1, words, dealt.ranks, LISTED_ITEM.words(own))
    inactive = [LISTED_ITEM.word("row_blocks", a, "first") for a in range(row_blocks)]
    endings, nothing_more = [xp.array([int(word in inactive)]) for word in words], xp.array([0])

    def make(block_mask):  # type: ignore[no-untyped-def]
        found, entries, visited = (), tiles, 0
        for a in range(row_blocks):
            code = coded[a](block_mask)
            # A row block that sees nothing visits a tile with everything hidden.
            nothing = exists[a] * xp.as_int(xp.count_true(code > 0) == 0)
            code = code + xp.reshape(nothing, (-1, 1)) * hides
            found = found + (code,)
            visited = visited + code
        for a in range(row_blocks):
            entries = entries * CODES + found[row_blocks - 1 - a]
        visited = xp.as_int(visited > 0)
        # The tiles of the samples come first in a list. Without a bias both row blocks take a tile that both visit.
        mine = tuple([xp.as_int(code > 0) for code in found])
        first = second = xp.first_true(mine[0] * wanted[0])
        if row_blocks > 1:
            both = mine[0] * mine[1]
            meet = xp.as_int(xp.count_true(both > 0) > alone)
            shared = meet * xp.first_true(both * (wanted[0] + wanted[1]))
            first = shared + (1 - meet) * first
            second = shared + (1 - meet) * xp.first_true(mine[1] * wanted[1])
            second = second * exists[1] + first * (1 - exists[1])
        samples, apart = (first, second), xp.as_int(first != second)
        rest = visited * (1 - xp.as_int(tiles == xp.reshape(first, (-1, 1))))
        rest = rest * (1 - xp.as_int(tiles == xp.reshape(second, (-1, 1))))
        lists = compact(rest, entries, first, second)
        values, cost = (starts, xp.count_true(visited > 0)) + of_planes, apart * 0
        for a in range(row_blocks):
            left = mine[a] * rest
            before, total = xp.cumsum(left, 1), xp.count_true(left > 0)
            earlier = xp.count_true(rest * xp.as_int(before < xp.reshape(total, (-1, 1))) > 0)
            place = apart if a > 0 else apart * 0
            # A row block may visit the sample of the other one too.
            begin = place * (1 - xp.take(xp.reshape(mine[a], (-1,)), rows + first, 0))
            behind = apart * xp.take(xp.reshape(mine[a], (-1,)), rows + second, 0)
            last = xp.where(total > 0, apart + 1 + earlier, behind)
            # Row blocks that do not exist visit nothing.
            begin, last = begin * exists[a] + (1 - exists[a]), last * exists[a]
            sample_tile = xp.take(xp.reshape(found[a], (-1,)), rows + samples[a], 0) - 1
            values = values + (begin, last, samples[a], place, sample_tile * exists[a]) + constants[a]
            cost = cost + xp.count_true(found[a] > 0)
        ended = ()
        for value, ending in zip(values, endings):
            ended = ended + (xp.concatenate((value, ending)),)
        table = ranked(ended, xp.concatenate((cost + ITEM_COST, nothing_more)))
        return xp.concatenate((xp.reshape(table, (-1,)), xp.reshape(lists, (-1,))))

    return make


def _wanted(problem: KernelProblem, plan: ForwardPlan) -> np.ndarray:
    """Return int (row blocks, key tiles): the larger, the better is the tile as a sample. 1 or more.

    It shows something to most rows, and then most keys. With a bias by distance the nearest tiles come first.
    """
    count, keys = -(-problem.seq_q // plan.rows), plan.keys
    starts = np.arange(0, problem.seq_k, keys)
    result = np.ones((count, len(starts)), np.int64)
    for index in range(count):
        ends = [problem.band.keys(row) for row in range(index * plan.rows, min((index + 1) * plan.rows, problem.seq_q))]
        low, high = np.array(ends).T[..., None]
        seen = np.clip(np.minimum(high, starts + keys) - np.maximum(low, starts), 0, None)
        near = seen.sum(0)
        if problem.bias != "none":
            near = 4096 - np.abs(starts // keys - (index * plan.rows + problem.offset) // keys)
        result[index] += (seen > 0).sum(0) * 2 * 128 * 128 + np.maximum(near, 0)
    return result
