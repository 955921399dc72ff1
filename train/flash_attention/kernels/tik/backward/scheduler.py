"""Who computes which key tile in the backward operator, described by integer tables.

A work item is one key tile of one key/value head against all query tiles that see it, for every query head of the
group, so that the gradients of the keys and values are summed where they are. The gradients of the queries are sums
over key tiles: every core adds its part to a float32 accumulator in global memory. Where one core does all of a head,
it rounds the gradients of a query tile itself when it adds the last part of it (BackwardSplit.owned).

Variants by name (VARIANTS):
    "deterministic": each accumulator has one core that adds to it, in the order of its table; the same bits whatever
        the number of heads and cores.
    "split", the default: where heads are few, or their number leaves cores without work, the key tiles of a head are
        divided into slots, each with an accumulator and a core of its own; the same bits for the same shapes and cores.
    "atomic": all cores add to one accumulator, in any order.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from flash_attention.kernels.tik import forms, tuning
from flash_attention.kernels.tik.backward import cost, packed
from flash_attention.kernels.tik.backward.tiling import (
    WASTE,
    BackwardPlan,
    buffers,
    finish_buffers,
    lowers_on_cube,
    plans,
)
from flash_attention.kernels.tik.backward.words import (
    BATCH,
    BEFORE,
    BIAS_PLANE,
    COUNT,
    CROSS,
    DISTANCE,
    EDGE,
    FIELDS,
    FINAL,
    FINAL_END,
    FIRST,
    HEAD,
    KV_HEAD,
    LEFT,
    MASK_PLANE,
    MIDDLE,
    RIGHT,
    SLOPE,
    SLOT,
    STEPS,
    TILE,
)
from flash_attention.kernels.tik.common import band
from flash_attention.kernels.tik.common.mask import LOWEST
from flash_attention.kernels.tik.common.work_split import Registry, clip, deal, distance_tiles, plane, visibility_tiles
from flash_attention.kernels.tik.hardware import BYTES, Buffer, excess, usage
from flash_attention.kernels.tik.layout import accumulator_shape
from flash_attention.kernels.tik.problem import KernelProblem

VARIANTS = ("deterministic", "split", "atomic")
DISTANCES = 8
ACCUMULATOR_LIMIT = 2**31  # bytes of accumulators beyond which no further slots are used
GAIN = 0.95  # of the estimated time of the usual plan, from which on another one takes its place


@dataclass(frozen=True)
class KeyTile:
    """Query tiles FIRST .. FIRST + COUNT - 1 that visit a key tile; `words` as in the table."""

    words: tuple[int, ...]

    @property
    def count(self) -> int:
        return self.words[COUNT]


@dataclass(frozen=True)
class BackwardSplit:
    """The work of the main kernel.

    Attributes:
        table: int32 (cores, items, FIELDS); rows with COUNT 0 do not exist. As in forward.scheduler.WorkSplit.
        tiles, distances: as in scheduler.WorkSplit, of (rows, keys) of the plan; where the Cube lowers hidden scores,
            tiles hold LOWEST for them and 0 elsewhere.
        slots: accumulators per query head.
        units: steps of each core.
        owned: each accumulator has one core, which visits all of it, so that the main kernel gives d_query itself.
        kept: (first, end) of the query tiles of a head that stay in L1 while a core works on it.
    """

    table: np.ndarray
    tiles: np.ndarray
    distances: np.ndarray
    slots: int
    units: tuple[int, ...]
    owned: bool
    kept: tuple[int, int] = (0, 0)

    @property
    def cores(self) -> int:
        return self.table.shape[0]

    @property
    def items(self) -> int:
        return self.table.shape[1]


class Choice(NamedTuple):
    """How a problem is computed: tile shapes, work of the cores, on-chip buffers."""

    plan: BackwardPlan
    split: BackwardSplit
    buffers: tuple[Buffer, ...]


class PartialTilesError(ValueError):
    """A range of visible tiles begins or ends with more partly visible ones than an item has numbers for.

    Or more of them have keys on both sides.
    """


def choose(problem: KernelProblem, variant: str, bias_gradient: bool) -> Choice:
    """The first plan that fits.

    Raises:
        ValueError: an argument is not allowed, or no tiling strategy fits the memories of a core.
    """
    if variant not in VARIANTS:
        raise ValueError(f"variant: got {variant!r}, allowed are {', '.join(VARIANTS)}")
    if bias_gradient and problem.bias_shape is None:
        raise ValueError(f"bias_gradient: got True, allowed with a bias per_key or per_score, got {problem.bias}")
    return _choose(problem, variant, bias_gradient, forms.current(), tuning.current())


@functools.lru_cache(maxsize=4)
def _choose(problem: KernelProblem, variant: str, bias_gradient: bool, _: forms.Forms, __: tuning.Table) -> Choice:
    reasons: list[str] = []
    usual = next(_fitting(problem, variant, bias_gradient, reasons), None)
    if usual is None:
        raise ValueError(f"tiling: no strategy fits this problem: {'; '.join(reasons)}")
    if variant != "split" or problem.tiling != "auto" or problem.sequences or not _idle(problem, variant, usual.split):
        return usual
    # Key tiles are so few that the busiest core has much more than its share: smaller ones are faster.
    choices = [usual, *_fitting(problem, variant, bias_gradient, [])]
    costs = [_cost(problem, choice) for choice in choices]
    return choices[costs.index(min(costs))] if min(costs) < GAIN * costs[0] else usual


def _fitting(problem: KernelProblem, variant: str, bias_gradient: bool, reasons: list[str]) -> Iterator[Choice]:
    """Plans that fit, the fastest first for cores that have enough to do; why others do not goes to `reasons`."""
    for plan in plans(problem, bias_gradient):
        try:
            work = split(problem, plan, variant)
        except PartialTilesError as error:
            reasons.append(f"{plan.strategy}: {error}")
            continue
        if plan.tight and problem.tiling == "auto" and _idle(problem, variant, work):
            continue
        parts, reason = _parts(problem, plan, work)
        if reason and work.owned:
            work = dataclasses.replace(work, owned=False)
            parts, reason = _parts(problem, plan, work)
        if not reason:
            kept = _kept(problem, plan, work, parts)
            if kept[0] < kept[1]:
                work = dataclasses.replace(work, kept=kept)
                parts, _ = _parts(problem, plan, work)
            yield Choice(plan, work, tuple(parts))
        else:
            reasons.append(f"{plan.strategy} needs {reason}")


def _cost(problem: KernelProblem, choice: Choice) -> float:
    """Estimated cycles of a choice."""
    plan, work, _ = choice
    busiest = int(np.argmax(work.units))
    items = int(np.count_nonzero(work.table[busiest, :, COUNT]))
    last = 0.0 if work.owned else cost.finish(problem, plan, work.slots)
    return cost.main(plan, work.cores, work.units[busiest], items) + last


def _parts(problem: KernelProblem, plan: BackwardPlan, work: BackwardSplit) -> tuple[list[Buffer], str]:
    """Buffers of the main kernel, and what does not fit in it or the last pass."""
    kept = work.kept[1] - work.kept[0]
    parts = buffers(problem, plan, work.tiles.size, work.distances.size, work.owned, kept)
    last = [] if work.owned else finish_buffers(problem, plan, work.slots)
    return parts, excess(parts, problem) or excess(last, problem)


def _idle(problem: KernelProblem, variant: str, work: BackwardSplit) -> bool:
    """Whether key tiles are so few that the busiest core has much more than its share: smaller ones are faster."""
    return variant != "deterministic" and max(work.units) * problem.cores > WASTE * sum(work.units)


def _kept(problem: KernelProblem, plan: BackwardPlan, work: BackwardSplit, parts: list[Buffer]) -> tuple[int, int]:
    """(first, end) of the last query tiles of a head, as many as L1 has room for beside the buffers.

    None where memory is not the limit, where the first item of a core for a head, which loads them once more, does not
    visit all of them, or where there are hardly any further ones. With causality the last tiles see most keys.
    """
    if not plan.tight or plan.widest <= 176 or problem.group > 1:
        return 0, 0
    size = plan.rows * (plan.head_dim + plan.value_dim) * BYTES["float16"]
    end = problem.seq_q // plan.rows
    first = max(0, end - (problem.capacity["L1"] - usage(parts)["L1"]) // size)
    total = loading = 0
    for items in work.table:
        items = items[items[:, COUNT] > 0]
        fresh = items[np.diff(items[:, HEAD], prepend=-1) != 0]
        if (fresh[:, FIRST] > first).any() or (fresh[:, FIRST] + fresh[:, COUNT] < end).any():
            return 0, 0
        total, loading = total + len(items), loading + len(fresh)
    return (first, end) if total > 2 * loading else (0, 0)


def split(problem: KernelProblem, plan: BackwardPlan, variant: str) -> BackwardSplit:
    """Divides the key tiles of all key/value heads among the cores."""
    if problem.sequences:
        return _of_sequences(problem, plan, variant)
    tiles, distances = Registry(), Registry()
    count = -(-problem.seq_k // plan.keys)
    blocks = [_key_tile(problem, plan, index, tiles, distances) for index in range(count)]
    costs = [block.count * problem.group + cost.ITEM_STEPS for block in blocks]
    families = _families(problem, plan.bias_kind == "per_score" and variant != "atomic")
    finals = _finals(blocks, -(-problem.seq_q // plan.rows)) if variant != "atomic" else None
    if variant == "atomic":
        units = [(costs[tile], 0, [(head, tile)]) for family in families for head in family for tile in range(count)]
        hands = _dealt(units, 1, problem.cores)
    elif variant == "split":
        hands = _shared(problem, plan, families, costs, finals is not None)
    else:
        hands = _dealt(_units(families, costs, 1), 1, problem.cores)
    finals = finals if hands.slots == 1 else None
    rows = [[(slot, *item) for slot, items in share for item in items] for share in hands.shares]
    table = np.zeros((len(rows), max(map(len, rows)), FIELDS), np.int32)
    for core, items in enumerate(rows):
        for row, (slot, (batch, head), tile) in zip(table[core], items):
            row[:] = blocks[tile].words
            row[SLOT], row[TILE] = slot, tile
            row[STEPS] = row[COUNT] * problem.group
            _planes(row, problem, batch, head)
            if finals:
                row[FINAL], row[FINAL_END] = finals[tile]
    visible = visibility_tiles(plan, tiles)
    if lowers_on_cube(problem):
        visible = np.where(visible > 0, 0, LOWEST).astype(np.float16)
    return BackwardSplit(
        table,
        visible,
        distance_tiles(plan, distances),
        hands.slots,
        tuple(int(share[:, STEPS].sum()) for share in table),
        finals is not None,
    )


def _of_sequences(problem: KernelProblem, plan: BackwardPlan, variant: str) -> BackwardSplit:
    """The work of packed sequences: room for the table, which is data; the units count key tiles."""
    slots = packed.slots(problem, plan, _most_slots(problem, plan)) if variant == "split" else 1
    ranks, _, _ = packed.deal(problem, plan, slots)
    signed = problem.bias == "alibi" and not problem.rules.causal
    return BackwardSplit(
        np.zeros((*ranks.shape, FIELDS), np.int32),
        band.tiles(problem, plan),
        band.distances(plan) if signed else np.zeros((0, 16), np.float16),
        slots,
        tuple(int(count) * problem.group for count in (ranks < packed.key_tiles(problem, plan)).sum(axis=1)),
        variant != "atomic" and packed.owned(problem, slots),
    )


def _finals(blocks: list[KeyTile], count: int) -> list[tuple[int, int]] | None:
    """(first, end) of the query tiles, of `count`, that each key tile is the last one to visit.

    None if some are visited by none, or such tiles do not lie side by side.
    """
    last = np.full(count, -1)
    for number, block in enumerate(blocks):
        last[block.words[FIRST] : block.words[FIRST] + block.count] = number
    numbers, first, tiles = np.unique(last, return_index=True, return_counts=True)
    if numbers[0] < 0 or np.count_nonzero(np.diff(last)) != len(numbers) - 1:
        return None
    ranges = {
        number: (start, start + size) for number, start, size in zip(*map(np.ndarray.tolist, (numbers, first, tiles)))
    }
    return [ranges.get(number, (0, 0)) for number in range(len(blocks))]


def _families(problem: KernelProblem, shared_bias: bool) -> list[list[tuple[int, int]]]:
    """Key/value heads (batch, head) whose sums meet in one place, and which therefore belong to one core."""
    heads = [(b, h) for b in range(problem.batch) for h in range(problem.kv_heads)]
    if not shared_bias:
        return [[head] for head in heads]
    result: dict = {}
    for b, h in heads:
        key = tuple(index if count > 1 else 0 for index, count in zip((b, h), problem.bias_planes))
        result.setdefault(key, []).append((b, h))
    return list(result.values())


def _units(families: list, costs: list[int], slots: int) -> list[tuple]:
    """(cost, slot, items) of what one core does in one go: a family's key tiles of one slot, in order."""
    shares, loads = deal(costs, slots)
    result = []
    for family in families:
        for slot, (share, load) in enumerate(zip(shares, loads)):
            result.append((load * len(family), slot, [(head, tile) for tile in sorted(share) for head in family]))
    return result


class Hands(NamedTuple):
    """How many slots a head has, what each core does, (slot, items) in order, and the cost of the busiest core."""

    slots: int
    shares: list[list[tuple[int, list]]]
    span: int


def _dealt(units: list[tuple], slots: int, cores: int) -> Hands:
    """Units of so many slots to cores, the largest first."""
    hands, loads = deal([unit[0] for unit in units], cores)
    shares = [sorted((units[index] for index in hand), key=lambda unit: unit[2][0]) for hand in hands]
    return Hands(slots, [[unit[1:] for unit in share] for share in shares], max(loads))


def _runs(families: list, costs: list[int], cores: int) -> Hands:
    """Each core takes key tiles of neighbouring heads in a row, so that few heads are shared, by few cores.

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
    """(first, end) of runs of neighbours whose loads add up to `most` at most."""
    result, first, load = [], 0, 0
    for index, one in enumerate(loads):
        if load + one > most and index > first:
            result.append((first, index))
            first, load = index, 0
        load += one
    return [*result, (first, len(loads))]


def _shared(problem: KernelProblem, plan: BackwardPlan, families: list, costs: list[int], owned: bool) -> Hands:
    """The fewest slots that take less than 5 % beyond the best.

    Args:
        owned: with one slot there is no last pass.
    """
    most = min(len(costs), problem.cores, _most_slots(problem, plan))
    found = []
    for slots in range(1, most + 1):
        found.append(_dealt(_units(families, costs, slots), slots, problem.cores))
        if len(families) * slots > 4 * problem.cores:
            break
    if len(families) <= 4 * problem.cores:
        found.append(_runs(families, costs, problem.cores))
    step = cost.step(plan, problem.cores)

    def cycles(hands: Hands) -> float:
        last = 0.0 if hands.slots == 1 and owned else cost.finish(problem, plan, hands.slots)
        return hands.span * step + last

    found = [hands for hands in found if hands.slots <= most]
    least = min(map(cycles, found))
    return min((hands for hands in found if cycles(hands) < 1.05 * least), key=lambda hands: hands.slots)


def _most_slots(problem: KernelProblem, plan: BackwardPlan) -> int:
    """Slots whose accumulators memory may be spent on."""
    one = int(np.prod(accumulator_shape(problem, plan, 1))) * BYTES["float32"]
    return max(1, ACCUMULATOR_LIMIT // one)


def _planes(row: np.ndarray, problem: KernelProblem, batch: int, head: int) -> None:
    """Planes of the first query head of the group; those of the others follow where the input varies by head."""
    first = head * problem.group
    row[HEAD] = batch * problem.heads + first
    row[KV_HEAD] = batch * problem.kv_heads + head
    for word, planes in ((MASK_PLANE, problem.mask_planes), (BIAS_PLANE, problem.bias_planes)):
        row[word] = plane(*planes, batch, first)
    row[SLOPE], row[BATCH] = first, batch


def _key_tile(problem: KernelProblem, plan: BackwardPlan, tile: int, tiles: Registry, distances: Registry) -> KeyTile:
    band, rows, keys = problem.band, plan.rows, plan.keys
    start = tile * keys
    stop = min(start + keys, problem.seq_k)
    words = [0] * FIELDS

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
        words[COUNT] = 1
        words[LEFT] = words[RIGHT] = tiles.number(((0, 0),) * rows)
    else:
        first, last = first // rows, (end - 1) // rows
        words[FIRST], words[COUNT] = first, last - first + 1
        for edge in range(min(EDGE, words[COUNT])):
            words[LEFT + edge] = number(first + edge)
            words[RIGHT + edge] = number(last - edge)
        if words[COUNT] > 2 * EDGE:
            words[MIDDLE] = number(first + EDGE)
            # Bounds are monotone: the same for the first and the last of these rows means the same for all.
            ends = {clip(band.keys(row), start, keys) for row in ((first + EDGE) * rows, (last - EDGE + 1) * rows - 1)}
            if len(ends) > 1:
                raise PartialTilesError(
                    f"prev_blocks, next_blocks, tile: partly visible query tiles of keys {start}..{stop - 1} "
                    f"reach further than {EDGE} tiles of {rows} queries into their range"
                )
    if problem.bias == "alibi" and not problem.rules.causal:
        _signs(problem, plan, words, start, distances)
    return KeyTile(tuple(words))


def _signs(problem: KernelProblem, plan: BackwardPlan, words: list, start: int, distances: Registry) -> None:
    """Query tiles before CROSS stand before all keys of the tile, those from BEFORE on after all of them."""
    rows = plan.rows

    def position(index: int) -> int:
        return index * rows + problem.offset

    tiles = range(words[FIRST], words[FIRST] + words[COUNT])
    words[CROSS] = next((i for i in tiles if position(i) + rows - 1 > start), tiles.stop)
    words[BEFORE] = next((i for i in tiles if position(i) >= start + plan.keys - 1), tiles.stop)
    if words[BEFORE] - words[CROSS] > DISTANCES:
        raise PartialTilesError(
            f"alibi: keys {start}..{start + plan.keys - 1} stand on both sides of more than {DISTANCES} tiles "
            f"of {rows} queries"
        )
    for index, tile in enumerate(range(words[CROSS], words[BEFORE])):
        words[DISTANCE + index] = distances.number(start - position(tile))
