"""Schedule of the key tiles of the backward operator, described by integer tables.

A work item is one key tile of one key/value head against all query tiles that see it, for every query head of the
group. So the gradients of the keys and values add up on chip. The gradients of the queries are sums over key tiles:
every core adds its part to a float32 accumulator in global memory. If one core does all of a head, it also rounds the
gradients of a query tile when it adds their last part (BackwardSplit.writes_d_query). If heads are few, or their number
leaves cores without work, the key tiles of a head are divided into slots. Each slot has an accumulator and a core of
its own, so the same shapes and cores give the same bits.

For packed sequences the table is data: `table` has the same formulas for lengths at run time. The key tiles of all
sequences, longest first, are dealt to the slots of a head in turns that change direction. Without a limit to the left,
later tiles of a sequence have no more query tiles than earlier ones, and so come later.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Callable, NamedTuple

import numpy as np

from flash_attention.kernels.tik import instruction_forms, varlen
from flash_attention.kernels.tik.backward.tiling import (
    RING,
    WASTE,
    BackwardPlan,
    buffers,
    finish_buffers,
    lowers_on_cube,
    plans,
)
from flash_attention.kernels.tik.common import band, tile_lists
from flash_attention.kernels.tik.common.mask import LOWEST
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
    visibility_tiles,
)
from flash_attention.kernels.tik.hardware import BYTES, Buffer, excess, usage
from flash_attention.kernels.tik.layout import accumulator_shape, capacity
from flash_attention.kernels.tik.problem import KernelProblem, padded
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.row_layout import RowLayout, Words
from flash_attention.kernels.tik.tik_types import BlockPlan, Number, Scalar
from flash_attention.kernels.tik.varlen import FAR, SEQUENCE_ROW, Array, Limits, Sequences

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


# A coarse cost of plans. The limit of a step is the Cube, Vector, loads of operands, the memory, or the way from pipe
# to pipe. The estimate decides only if cores lack work.
ITEM_STEPS = 3  # steps that an item costs beside its own
LEAST_STEP = 500  # cycles: a step, however small, passes through all pipes
START = 8000  # cycles of the first item's way on chip and the last one's way out
FINISH_START = 1200  # cycles of the last pass beside what its traffic takes
VECTOR_PASSES = 7  # over 64 numbers each, of a score
L0B_BANDWIDTH = 256  # bytes a cycle from L1, twice as many to L0A
CORE_BANDWIDTH, BANDWIDTH = 78, 1160  # bytes a cycle that one core, and all of them, get from global memory


def _bandwidth(cores: int) -> float:
    """Return bytes a cycle of each of so many cores."""
    return min(CORE_BANDWIDTH, BANDWIDTH / cores)


def _step(plan: BackwardPlan, cores: int) -> float:
    """Return cycles of a step on one of so many busy cores."""
    both = plan.head_dim + plan.value_dim
    cube = plan.area * (2 * plan.head_dim + both * 1.5) / 4096
    vector = (plan.area * VECTOR_PASSES + plan.rows * plan.head_dim) / 64
    right, left = plan.keys * (both + plan.head_dim) + plan.rows * both, plan.rows * both + 3 * plan.area
    loads = BYTES["float16"] * (right + left / 2) / L0B_BANDWIDTH
    moved = plan.rows * (both * BYTES["float16"] + plan.head_dim * BYTES["float32"])
    return max(cube, vector, loads, moved / _bandwidth(cores), LEAST_STEP)


def _finish(problem: KernelProblem, plan: BackwardPlan, slots: int) -> float:
    """Return cycles of the last pass over the accumulators of so many slots."""
    _, heads, tiles, *tile = accumulator_shape(problem, plan, slots)
    cores = min(problem.cores, heads * tiles)
    moved = math.prod(tile) * (slots * BYTES["float32"] + BYTES["float16"])
    return FINISH_START + -(-heads * tiles // cores) * moved / _bandwidth(cores)


ACCUMULATOR_LIMIT = 2**31  # bytes of accumulators beyond which no further slots are used
GAIN = 0.95  # of the estimated time of the usual plan, from which on another one takes its place


@dataclass(frozen=True)
class BackwardSplit(TableOfWork):
    """The work of the main kernel.

    Attributes:
        table: see ITEM; items with count 0 do not exist. As in forward.schedule.WorkSplit.
        tiles, distances: as in forward.schedule.WorkSplit, of (rows, keys) of the plan; if the Cube lowers hidden
            scores, tiles hold LOWEST for them and 0 elsewhere.
        slots: accumulators per query head.
        writes_d_query: the main kernel gives d_query itself: each accumulator has one core, which visits all of it.
        kept: (first, end) of the query tiles of a head that stay in L1 while a core works on it.
    """

    slots: int
    writes_d_query: bool
    kept: tuple[int, int] = (0, 0)


BackwardChoice = Choice[BackwardPlan, BackwardSplit]


class PartialTilesError(ValueError):
    """A range of visible tiles has more partly visible tiles than an item can number.

    It is also raised if too many tiles have keys on both sides.
    """


def choose(problem: KernelProblem) -> BackwardChoice:
    """Return the first plan that fits.

    Raises:
        ValueError: an argument is not allowed, or no tiling strategy fits the memories of a core.
    """
    return _choose(problem, instruction_forms.current())


@functools.lru_cache(maxsize=4)
def _choose(problem: KernelProblem, _: instruction_forms.InstructionForms) -> BackwardChoice:
    reasons: list[str] = []
    usual = next(_fitting(problem, reasons), None)
    if usual is None:
        raise ValueError(f"tiling: no strategy fits this call: {'; '.join(reasons)}")
    if problem.tiling != "auto" or problem.sequences or problem.listed or not _idle(problem, usual.split):
        return usual
    # Key tiles are so few that the busiest core has much more than its share: smaller tiles are faster.
    choices = [usual, *_fitting(problem, [])]
    costs = [_cost(problem, choice) for choice in choices]
    return choices[costs.index(min(costs))] if min(costs) < GAIN * costs[0] else usual


def _fitting(problem: KernelProblem, reasons: list[str]) -> Iterator[BackwardChoice]:
    """Yield plans that fit, the fastest for busy cores first. Why others do not fit goes to `reasons`."""
    for plan in plans(problem):
        try:
            work = split(problem, plan)
        except PartialTilesError as error:
            reasons.append(f"{plan.strategy}: {error}")
            continue
        if plan.pipeline.tight and problem.tiling == "auto" and _idle(problem, work):
            continue
        parts, reason = _parts(problem, plan, work)
        if reason and work.writes_d_query:
            work = dataclasses.replace(work, writes_d_query=False)
            parts, reason = _parts(problem, plan, work)
        if not reason:
            kept = _kept(problem, plan, work, parts)
            if kept[0] < kept[1]:
                work = dataclasses.replace(work, kept=kept)
                parts, _ = _parts(problem, plan, work)
            yield Choice(plan, work, tuple(parts))
        else:
            reasons.append(f"{plan.strategy} needs {reason}")


def _cost(problem: KernelProblem, choice: BackwardChoice) -> float:
    """Return estimated cycles of a choice."""
    plan, work = choice.plan, choice.split
    busiest = int(np.argmax(work.units))
    items = int(np.count_nonzero(work.table["count"][busiest]))
    last = 0.0 if work.writes_d_query else _finish(problem, plan, work.slots)
    return START + (work.units[busiest] + ITEM_STEPS * items) * _step(plan, work.cores) + last


def _parts(problem: KernelProblem, plan: BackwardPlan, work: BackwardSplit) -> tuple[list[Buffer], str]:
    """Return the buffers of the main kernel. The text is an excess of it or the last pass."""
    kept = work.kept[1] - work.kept[0]
    length = list_length(problem, plan) if problem.listed else 0
    parts = buffers(problem, plan, work, work.writes_d_query, kept, length)
    last = [] if work.writes_d_query else finish_buffers(problem, plan, work.slots)
    return parts, excess(parts, problem) or excess(last, problem)


def _idle(problem: KernelProblem, work: BackwardSplit) -> bool:
    """Return if the busiest core has much more than its share: smaller key tiles are faster."""
    return max(work.units) * problem.cores > WASTE * sum(work.units)


def _kept(problem: KernelProblem, plan: BackwardPlan, work: BackwardSplit, parts: list[Buffer]) -> tuple[int, int]:
    """Return (first, end) of a head's last query tiles that fit in L1.

    None are kept if memory is not the limit, or if hardly any other items use the tiles. The first item of a core for a
    head loads them once more, so it must visit all. With causality the last tiles see most keys.
    """
    if not plan.pipeline.tight or plan.widest <= 176 or problem.group > 1 or problem.listed:
        return 0, 0
    size = plan.rows * (plan.head_dim + plan.value_dim) * BYTES["float16"]
    end = problem.seq_q // plan.rows
    first = max(0, end - (problem.capacity["L1"] - usage(parts)["L1"]) // size)
    total = loading = 0
    for items in work.table:
        items = items[items["count"] > 0]
        fresh = items[np.diff(items["head"], prepend=-1) != 0]
        if (fresh["first"] > first).any() or (fresh["first"] + fresh["count"] < end).any():
            return 0, 0
        total, loading = total + len(items), loading + len(fresh)
    return (first, end) if total > 2 * loading else (0, 0)


def split(problem: KernelProblem, plan: BackwardPlan) -> BackwardSplit:
    """Divide the key tiles of all key/value heads among the cores."""
    if problem.sequences:
        return _of_sequences(problem, plan)
    if problem.listed:
        return _of_lists(problem, plan).work
    tiles, distances = Registry(), Registry()
    count = -(-problem.seq_k // plan.keys)
    blocks = ITEM.zeros(count)
    for index in range(count):
        _key_tile(problem, plan, index, blocks[index], tiles, distances)
    costs = (blocks["count"] * problem.group + ITEM_STEPS).tolist()
    families = _families(problem, plan.bias_kind == "per_score")
    finals = _finals(blocks, -(-problem.seq_q // plan.rows))
    hands = _shared(problem, plan, families, costs, finals is not None)
    finals = finals if hands.slots == 1 else None
    rows = [[(slot, *item) for slot, items in share for item in items] for share in hands.shares]
    table = ITEM.zeros(len(rows), max(map(len, rows)))
    for core, items in enumerate(rows):
        table[core, : len(items)] = blocks[[tile for _, _, tile in items]]
        for row, (slot, (batch, head), tile) in zip(table[core], items):
            row["slot"], row["tile"] = slot, tile
            row["steps"] = row["count"] * problem.group
            # Planes of the first query head of the group. Planes of the others follow if the input varies by head.
            name_head(row, problem, batch, head * problem.group)
            if finals:
                row["final"], row["final_end"] = finals[tile]
    visible = visibility_tiles(plan, tiles)
    if lowers_on_cube(problem):
        visible = np.where(visible > 0, 0, LOWEST).astype(np.float16)
    return BackwardSplit(
        table,
        visible,
        distance_tiles(plan, distances),
        tuple(table["steps"].sum(axis=1).tolist()),
        hands.slots,
        finals is not None,
    )


def _balanced_slots(problem: KernelProblem, plan: BackwardPlan) -> int:
    """Return the fewest slots within 5 % of the best balance. Tables are data."""
    most = max(1, min(_most_slots(problem, plan), _key_tiles(problem, plan), problem.cores))
    spans = [-(-problem.batch * problem.kv_heads * count // problem.cores) / count for count in range(1, most + 1)]
    return next(count for count, span in enumerate(spans, 1) if span <= 1.05 * min(spans))


def _of_sequences(problem: KernelProblem, plan: BackwardPlan) -> BackwardSplit:
    """Return the work of packed sequences: room for the table, which is data; the units count key tiles."""
    slots = _balanced_slots(problem, plan)
    ranks, _, _ = _deal_items(problem, plan, slots)
    signed = problem.bias == "alibi" and not problem.rules.causal
    return BackwardSplit(
        VARLEN_ITEM.zeros(*ranks.shape),
        band.tiles(problem, plan),
        band.distances(plan) if signed else np.zeros((0, 16), np.float16),
        tuple(int(count) * problem.group for count in (ranks < _key_tiles(problem, plan)).sum(axis=1)),
        slots,
        slots == 1 and Limits.of(problem).left == FAR,
    )


def _finals(blocks: np.ndarray, count: int) -> list[tuple[int, int]] | None:
    """Return per key tile (first, end) of the query tiles whose last visitor it is.

    There are `count` query tiles. Return None if some have no visitor, or if the tiles do not lie side by side.
    """
    last = np.full(count, -1)
    for number, (first, visits) in enumerate(zip(blocks["first"], blocks["count"])):
        last[first : first + visits] = number
    numbers, starts, tiles = np.unique(last, return_index=True, return_counts=True)
    if numbers[0] < 0 or np.count_nonzero(np.diff(last)) != len(numbers) - 1:
        return None
    ranges = {
        number: (start, start + size) for number, start, size in zip(*map(np.ndarray.tolist, (numbers, starts, tiles)))
    }
    return [ranges.get(number, (0, 0)) for number in range(len(blocks))]


def _families(problem: KernelProblem, shared_bias: bool) -> list[list[tuple[int, int]]]:
    """Group the key/value heads (batch, head) whose sums meet in one place, on one core."""
    heads = [(b, h) for b in range(problem.batch) for h in range(problem.kv_heads)]
    if not shared_bias:
        return [[head] for head in heads]
    result: dict = {}
    for b, h in heads:
        key = tuple(index if count > 1 else 0 for index, count in zip((b, h), problem.bias_planes))
        result.setdefault(key, []).append((b, h))
    return list(result.values())


class Hands(NamedTuple):
    """Slots of a head, work of each core, cost of the busiest core."""

    slots: int
    shares: list[list[tuple[int, list]]]
    span: int


def _dealt(units: list[tuple], slots: int, cores: int) -> Hands:
    """Return units of so many slots to cores, the largest first."""
    hands, loads = deal([unit[0] for unit in units], cores)
    shares = [sorted((units[index] for index in hand), key=lambda unit: unit[2][0]) for hand in hands]
    return Hands(slots, [[unit[1:] for unit in share] for share in shares], max(loads))


def _runs(families: list, costs: list[int], cores: int) -> Hands:
    """Give each core key tiles of neighbouring heads, so that few cores share a head.

    The slots of a head number the cores that share it.
    """
    line = [
        (cost * len(family), index, tile) for index, family in enumerate(families) for tile, cost in enumerate(costs)
    ]
    loads = [load for load, _, _ in line]
    low, high = max(max(loads), -(-sum(loads) // cores)), sum(loads)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if len(_cuts(loads, middle)) <= cores else (middle + 1, high)
    shares, sharing = [], [0] * len(families)
    for first, end in _cuts(loads, low):
        share = []
        for index in dict.fromkeys(index for _, index, _ in line[first:end]):
            tiles = [tile for _, of, tile in line[first:end] if of == index]
            share.append((sharing[index], [(head, tile) for tile in tiles for head in families[index]]))
            sharing[index] += 1
        shares.append(share)
    return Hands(max(sharing), shares, low)


def _cuts(loads: list[int], most: int) -> list[tuple[int, int]]:
    """Return (first, end) of runs of neighbours whose loads add up to `most` at most."""
    result, first, load = [], 0, 0
    for index, one in enumerate(loads):
        if load + one > most and index > first:
            result.append((first, index))
            first, load = index, 0
        load += one
    return [*result, (first, len(loads))]


def _shared(
    problem: KernelProblem, plan: BackwardPlan, families: list, costs: list[int], writes_d_query: bool
) -> Hands:
    """Return the fewest slots that take less than 5 % beyond the best.

    Args:
        writes_d_query: with one slot there is no last pass.
    """
    most = min(len(costs), problem.cores, _most_slots(problem, plan))
    found = []
    for slots in range(1, most + 1):
        # A core does a family's key tiles of one slot in one go: (cost, slot, items in order).
        units = [
            (load * len(family), slot, [(head, tile) for tile in sorted(share) for head in family])
            for family in families
            for slot, (share, load) in enumerate(zip(*deal(costs, slots)))
        ]
        found.append(_dealt(units, slots, problem.cores))
        if len(families) * slots > 4 * problem.cores:
            break
    if len(families) <= 4 * problem.cores:
        found.append(_runs(families, costs, problem.cores))
    step = _step(plan, problem.cores)

    def cycles(hands: Hands) -> float:
        last = 0.0 if hands.slots == 1 and writes_d_query else _finish(problem, plan, hands.slots)
        return hands.span * step + last

    found = [hands for hands in found if hands.slots <= most]
    least = min(map(cycles, found))
    return min((hands for hands in found if cycles(hands) < 1.05 * least), key=lambda hands: hands.slots)


def _most_slots(problem: KernelProblem, plan: BackwardPlan) -> int:
    """Return slots whose accumulators memory may be spent on."""
    one = int(np.prod(accumulator_shape(problem, plan, 1))) * BYTES["float32"]
    return max(1, ACCUMULATOR_LIMIT // one)


def _key_tile(
    problem: KernelProblem, plan: BackwardPlan, tile: int, words: np.void, tiles: Registry, distances: Registry
) -> None:
    """Fill the fields of a key tile that are the same for all heads: the query tiles that visit it."""
    band, rows, keys = problem.band, plan.rows, plan.keys
    start = tile * keys
    stop = min(start + keys, problem.seq_k)

    def number(index: int) -> int:
        top, end = index * rows, (index + 1) * rows
        if end <= problem.seq_q:
            common = band.common(top, end - 1)
            if common[0] <= start and start + keys <= common[1]:
                return 0
        bounds = [band.keys(row) if row < problem.seq_q else (0, 0) for row in range(top, end)]
        return tiles.number(tuple(clip(pair, start, keys) for pair in bounds))

    first, end = band.rows_that_see(start, stop)
    if first >= end:  # nobody sees these keys: one tile with everything hidden makes their gradients zero
        words["count"] = 1
        words["left"][0] = words["right"][0] = tiles.number(((0, 0),) * rows)
    else:
        first, last = first // rows, (end - 1) // rows
        words["first"], words["count"] = first, last - first + 1
        for edge in range(min(EDGE, last - first + 1)):
            words["left"][edge] = number(first + edge)
            words["right"][edge] = number(last - edge)
        if last - first + 1 > 2 * EDGE:
            words["middle"] = number(first + EDGE)
            # Bounds are monotone: if they agree for the first and the last of these rows, they agree for all.
            ends = {clip(band.keys(row), start, keys) for row in ((first + EDGE) * rows, (last - EDGE + 1) * rows - 1)}
            if len(ends) > 1:
                raise PartialTilesError(
                    f"prev_blocks, next_blocks, tile: partly visible query tiles of keys {start}..{stop - 1} "
                    f"reach further than {EDGE} tiles of {rows} queries into their range"
                )
    if problem.bias == "alibi" and not problem.rules.causal:
        _signs(problem, plan, words, start, distances)


def _signs(problem: KernelProblem, plan: BackwardPlan, words: np.void, start: int, distances: Registry) -> None:
    """Set `cross` and `before`: query tiles stand before all keys up to `cross`, after all keys from `before` on."""
    rows = plan.rows

    def position(index: int) -> int:
        return index * rows + problem.offset

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
    """

    position: int
    member: Scalar
    tile: Scalar
    rows: Scalar
    kept: Scalar | None
    number: Scalar | None = None


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
        self.units = [self._unit(place, kept[1] > 0) for place in range(RING)]
        self.kept = kept
        self.fresh = core.scalar("int32", "fresh", 1) if kept[1] else None
        self._kept_head = core.scalar("int32", "kept_head", -1) if kept[1] else None

    def _unit(self, place: int, keeps: bool) -> Unit:
        scalar = self.core.scalar
        member, tile, rows = (scalar("int32", f"{name}_{place}", 0) for name in ("member", "tile", "rows"))
        number = scalar("int32", f"number_{place}", 0) if self.core.problem.listed else None
        return Unit(place, member, tile, rows, scalar("int32", f"kept_{place}", -1) if keeps else None, number)

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
        unit.member.set_as(0 if own_lists(self.core.problem) else self.core.problem.group - 1)
        self._find(unit, self["first"] + self["count"] - 1)
        self._count_rows(unit)
        return unit

    def _find(self, unit: Unit, place: Number) -> None:
        """Set a step to a query tile, or to an entry of the item's list."""
        if unit.number is None:
            unit.tile.set_as(place)
            return
        word = unit.tile
        word.set_as(self.core.on.lists[0][self["list"] + place])
        unit.number.set_as(word % CODES)
        word.set_as(word // CODES)
        if own_lists(self.core.problem):
            unit.member.set_as(word // MOST_TILES)
            word.set_as(word % MOST_TILES)

    def load_list(self, side: Number) -> None:
        """Bring the item's list on chip, to a run-time place 0 or 1. "list" is then its place there."""
        core = self.core
        length = list_length(core.problem, core.plan)
        source, target = core.gm["work"][self["list"]], core.on.lists[0][side * length]
        core.tik.data_move(target, source, 0, 1, length // tile_lists.BLOCK_WORDS, 0, 0)
        self["list"].set_as(side * length)

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
        return tile * self.core.plan.rows + (self["offset"] if problem.sequences else problem.offset)

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


# ---- lists of tiles under a block mask
MOST_TILES = 8192  # of queries, that an entry of a list tells apart


def own_lists(problem: KernelProblem) -> bool:
    """Return if the query heads of a group have block masks of their own. Entries of a list then name the head."""
    return problem.listed and problem.group > 1 and (problem.block_mask_shape or (1, 1))[1] > 1


def list_length(problem: KernelProblem, plan: BlockPlan) -> int:
    """Return words of a list of query tiles."""
    tiles = -(-problem.seq_q // plan.rows) * (problem.group if own_lists(problem) else 1)
    return padded(tiles, tile_lists.BLOCK_WORDS)


def list_words(problem: KernelProblem, plan: BackwardPlan) -> int:
    """Return words of all lists."""
    return _list_planes(problem) * _key_tiles(problem, plan) * list_length(problem, plan)


def _list_planes(problem: KernelProblem) -> int:
    """Return how many key/value heads have lists of their own."""
    return tile_lists.planes(problem) // (problem.group if own_lists(problem) else 1)


class _Lists(NamedTuple):
    """Room for the work under a block mask.

    Attributes:
        codes: see `tile_lists.codes`.
        hidden: code of a tile with nothing visible.
        blocks: record of each key tile, without the fields that are data.
    """

    work: BackwardSplit
    codes: np.ndarray
    hidden: int
    blocks: np.ndarray


def _of_lists(problem: KernelProblem, plan: BackwardPlan) -> _Lists:
    """Return the room for the work under a block mask. Its units count all tiles."""
    tiles, distances, count = Registry(), Registry(), _key_tiles(problem, plan)
    codes = tile_lists.codes(problem, plan, tiles, True)
    hidden = 1 + tiles.number(((0, 0),) * plan.rows)
    height = -(-problem.seq_q // plan.rows)
    if hidden >= CODES or height > MOST_TILES:
        raise PartialTilesError(f"block_mask: needs {hidden} visibility tiles and {height} query tiles of a head")
    blocks = LISTED_ITEM.zeros(count)
    blocks["count"] = height
    if problem.bias == "alibi" and not problem.rules.causal:
        for tile, words in enumerate(blocks):
            _signs(problem, plan, words, tile * plan.keys, distances)
    slots = _balanced_slots(problem, plan)
    ranks, _, _ = _deal_items(problem, plan, slots)
    visible = visibility_tiles(plan, tiles)
    if lowers_on_cube(problem):
        visible = np.where(visible > 0, 0, LOWEST).astype(np.float16)
    work = BackwardSplit(
        LISTED_ITEM.zeros(*ranks.shape),
        visible,
        distance_tiles(plan, distances),
        tuple(((ranks < count).sum(axis=1) * height * problem.group).tolist()),
        slots,
        False,
    )
    return _Lists(work, codes, hidden, blocks)


def listed_table(xp: Any, problem: KernelProblem, plan: BackwardPlan, slots: int) -> Callable[[Array], Array]:
    """Return make(block_mask) -> the table, int32 (words,): rows of items, LISTED_ITEM, and behind them the lists."""
    work, codes, hidden, blocks = _of_lists(problem, plan)
    height, count, planes = codes.shape[1], codes.shape[2], _list_planes(problem)
    members = problem.group if own_lists(problem) else 1
    lines, width, size = planes * count, members * height, list_length(problem, plan)
    # Codes come by key tile: (masks, key tiles, query tiles). Heads of a group with own masks share a list.
    row, column = np.meshgrid(np.arange(height), np.arange(count))
    coded = tile_lists.coded(xp, problem, plan, codes, np.stack([row, column], -1))
    plane, tile, member, query = np.ogrid[:planes, :count, :members, :height]
    joined = ((plane * members + member) * count + tile) * height + query
    joined = xp.array(joined.reshape(-1).tolist())
    # One constant, see the forward schedule.
    hides = xp.array(((np.arange(width) == 0) * hidden)[None].tolist())
    name = (np.arange(members)[:, None] * MOST_TILES + np.arange(height)).reshape(1, -1) * CODES - 1
    name = xp.array(name.tolist())
    starts = xp.array((work.words.size + np.arange(lines) * size).tolist())
    ordered = xp.array(
        np.repeat((planes - 1 - np.arange(planes)) * (problem.group * height + ITEM_STEPS + 1), count).tolist()
    )
    constants = tuple(
        [xp.array(np.tile(values, planes).tolist()) for values in (np.arange(count), blocks["cross"], blocks["before"])]
    )
    distances = tuple([xp.array(np.tile(values, planes).tolist()) for values in blocks["distance"].T])
    fields = ["list", "count", "steps", "tile", "cross", "before"]
    words = [LISTED_ITEM.word(field) for field in fields]
    words += [LISTED_ITEM.word("distance") + index for index in range(DISTANCES)]
    ranks, heads, of_slots = _deal_items(problem, plan, slots)
    own = LISTED_ITEM.zeros(*ranks.shape)
    own["slot"] = of_slots
    batches, of_heads = (problem.block_mask_shape or (1, 1))[:2]
    for item, head in zip(own.reshape(-1), heads.reshape(-1)):
        name_head(item, problem, *(head // problem.kv_heads, head % problem.kv_heads * problem.group))
    batch, kv_head = np.divmod(heads, problem.kv_heads)
    of_plane = (batch if batches > 1 else 0) * (problem.kv_heads if of_heads > 1 else 1) + (
        kv_head if of_heads > 1 else 0
    )
    places = np.where(ranks < count, of_plane * count + ranks, lines)
    ranked = varlen.ranked(xp, lines + 1, words, places, LISTED_ITEM.words(own))
    compact, none, repeats = tile_lists.compact(xp, lines, width), xp.array([0]), problem.group // members

    def make(block_mask):  # type: ignore[no-untyped-def]
        code = coded(block_mask)
        code = xp.reshape(xp.take(xp.reshape(code, (-1,)), joined, 0), (-1, width))
        # Keys that nobody sees have one tile, with everything hidden, which makes their gradients zero.
        nothing = xp.as_int(xp.count_true(code > 0) == 0)
        code = code + xp.reshape(nothing, (-1, 1)) * hides
        visited, total = xp.as_int(code > 0), xp.count_true(code > 0)
        lists = compact(visited, name + code)
        values, ended = (starts, total, total * repeats) + constants + distances, ()
        for value in values:
            ended = ended + (xp.concatenate((value, none)),)
        table = ranked(ended, xp.concatenate((ordered + total * repeats + ITEM_STEPS, none)))
        return xp.concatenate((xp.reshape(table, (-1,)), xp.reshape(lists, (-1,))))

    return make


def _key_tiles(problem: KernelProblem, plan: BackwardPlan) -> int:
    """Return the most key tiles of a key/value head, if tables are data. Every sequence with queries has one, so that
    some item writes d_query.
    """
    if problem.listed:
        return -(-problem.seq_k // plan.keys)
    return capacity(problem.seq_k + problem.sequences, problem.sequences, plan.keys)


def _deal_items(problem: KernelProblem, plan: BackwardPlan, slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (rank, key/value head, slot) of every item of the table, (cores, items) each."""
    count = _key_tiles(problem, plan)
    units = problem.batch * problem.kv_heads * slots
    cores = min(problem.cores, units)
    turns = -(-count // slots)
    place = np.arange(-(-units // cores) * turns)[None, :]
    unit, turn = place // turns * cores + np.arange(cores)[:, None], place % turns
    slot = unit % slots
    rank = turn * slots + np.where(turn % 2 == 0, slot, slots - 1 - slot)
    exists = (unit < units) & (rank < count)
    rank = np.where(exists, rank, count)
    order = np.argsort(rank, axis=1, kind="stable")  # items that do not exist come last on every core
    parts = rank, np.where(exists, unit // slots, 0), np.where(exists, slot, 0)
    rank, head, slot = (np.take_along_axis(part, order, 1) for part in parts)
    return rank, head, slot


def table(xp: Any, problem: KernelProblem, plan: BackwardPlan, slots: int) -> Callable[[tuple], Array]:
    """Return make(sequences) -> the table, int32 (cores, items, VARLEN_ITEM.size)."""
    items = _key_tiles(problem, plan) + 1  # one more than there can be: the last does not exist
    ranks, heads, of_slots = _deal_items(problem, plan, slots)
    own = VARLEN_ITEM.zeros(*ranks.shape)
    own["head"] = own["slope"] = heads * problem.group
    own["kv_head"], own["slot"] = heads, of_slots
    of_sequence = len(Sequences._fields)
    fields = ["tile", "first", "count", "steps", "cross", "before", "final", "final_end"]
    if problem.slope_stride:
        fields.append("slope")
    words = [*(VARLEN_ITEM.word(field) for field in fields), *VARLEN_ITEM.single("sequence").values()]
    ranked, tiles = varlen.ranked(xp, items, words, ranks, VARLEN_ITEM.words(own)), varlen.tiles(xp, problem, items)
    left, right, prefixed = Limits.of(problem)
    whole, rows, group = plan.keys, plan.rows, problem.group
    signed, slope_stride = problem.bias == "alibi" and not problem.rules.causal, problem.slope_stride

    def make(described):  # type: ignore[no-untyped-def]
        _, _, _, keys, offset, prefix, queries, _ = described
        owner, tile, active = tiles((xp.maximum(keys, xp.as_int(queries > 0)) + (whole - 1)) // whole)
        nothing, zero, rows_of = tile * 0, xp.take(offset, owner, 0), xp.take(queries, owner, 0)
        active, start = xp.as_int(active), tile * whole
        stop = xp.minimum(start + whole, xp.take(keys, owner, 0))
        top, following = nothing, nothing  # first query that sees a key of the tile, and of the next one
        if right != FAR:
            top, following = (xp.minimum(xp.maximum(at - right - zero, 0), rows_of) for at in (start, start + whole))
        if prefixed:
            top = top * xp.as_int(xp.take(prefix, owner, 0) <= start)
            following = following * xp.as_int(xp.take(prefix, owner, 0) <= start + whole)
        top = top * xp.as_int(tile > 0)  # every query tile has a visitor
        end = rows_of if left == FAR else xp.minimum(xp.maximum(stop + left - zero, 0), rows_of)
        seen = xp.as_int(end > top)
        first = top // rows * seen
        # Keys that nobody sees have one tile, with everything hidden, which makes their gradients zero.
        count = (((end - 1) // rows - first) * seen + 1) * active
        # Query tiles that the next key tile does not visit.
        after = xp.as_int(xp.take(keys, owner, 0) > start + whole) * xp.as_int(rows_of > following)
        final_end = (first + count - after * (first + count - following // rows)) * seen
        cross = before = nothing + FAR
        if signed:
            cross = (start - zero - (rows - 1)) // rows + 1
            before = (start + (whole - 1) - zero + (rows - 1)) // rows
            cross, before = (xp.minimum(xp.maximum(one, first), first + count) for one in (cross, before))
        values = (tile, first, count, count * group, cross, before, first, final_end)
        if slope_stride > 0:
            values = values + (owner * slope_stride,)
        for index in range(of_sequence):
            values = values + (xp.take(described[index], owner, 0),)
        return ranked(values, (count * group + ITEM_STEPS) * active)

    return make
