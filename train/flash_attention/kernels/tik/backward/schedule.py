"""Schedule of the key tiles of the backward operator, described by integer tables.

A work item is one key tile of one key/value head against all query tiles that see it, for every query head of the
group. So the gradients of the keys and values add up on chip. The gradients of the queries are sums over key tiles:
every core adds its part to a float32 accumulator in global memory. If one core does all of a head, it also rounds the
gradients of a query tile when it adds their last part (BackwardSplit.writes_d_query). If heads are few, or their number
leaves cores without work, the key tiles of a head are divided into slots. Each slot has an accumulator and a core of
its own, so the same shapes and cores give the same bits.

For packed sequences and under a block mask the table is data, see `data_tables`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from flash_attention.kernels.tik import instruction_forms
from flash_attention.kernels.tik.backward import kept_sums
from flash_attention.kernels.tik.backward.data_tables import holds_sums, most_slots, most_ways, of_lists, of_sequences
from flash_attention.kernels.tik.backward.items import (
    EDGE,
    ITEM,
    ITEM_STEPS,
    BackwardSplit,
    PartialTilesError,
    list_length,
    set_signs,
)
from flash_attention.kernels.tik.backward.tiling import (
    RING,
    WASTE,
    BackwardPlan,
    buffers,
    finish_buffers,
    lowers_on_cube,
    plans,
)
from flash_attention.kernels.tik.common.mask import LOWEST
from flash_attention.kernels.tik.common.work_split import (
    Choice,
    Registry,
    clip,
    deal,
    distance_tiles,
    name_head,
    visibility_tiles,
)
from flash_attention.kernels.tik.hardware import BYTES, Buffer, excess, usage
from flash_attention.kernels.tik.layout import accumulator_shape
from flash_attention.kernels.tik.problem import KernelProblem

# A coarse cost of plans. The limit of a step is the Cube, Vector, loads of operands, the memory, or the way from pipe
# to pipe. The estimate decides only if cores lack work.
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


GAIN = 0.95  # of the estimated time of the usual plan, from which on another one takes its place
BackwardChoice = Choice[BackwardPlan, BackwardSplit]


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
            if problem.listed:
                plan, parts = _with_room(problem, plan, work, parts)
            yield Choice(plan, work, tuple(parts))
        else:
            reasons.append(f"{plan.strategy} needs {reason}")


def _with_room(
    problem: KernelProblem, plan: BackwardPlan, work: BackwardSplit, parts: list[Buffer]
) -> tuple[BackwardPlan, list[Buffer]]:
    """Return the widest plan that fits, and its buffers: tiles first, then sums of query gradients."""
    # With dropout the code would exceed the instruction cache.
    possible = problem.scattered and not plan.pipeline.tight and not problem.call.dropout_threshold
    most = kept_sums.MOST_PLACES if possible else 0
    widths: list[tuple[Callable[[BackwardPlan, int], BackwardPlan], int, int]] = [
        (lambda plan, count: dataclasses.replace(plan, held=count), RING * most_ways(problem), plan.held),
        (lambda plan, count: dataclasses.replace(plan, product_sums=count), most, 0),
        (lambda plan, count: dataclasses.replace(plan, vector_sums=count), most, 0),
    ]
    for widened, largest, least in widths:
        for count in range(largest, least, -1):
            wider = widened(plan, count)
            more, reason = _parts(problem, wider, work)
            if not reason and (not wider.sums or holds_sums(problem, wider)):
                plan, parts = wider, more
                break
    return plan, parts


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
    if not plan.pipeline.tight or plan.widest <= 176 or problem.call.group > 1 or problem.listed:
        return 0, 0
    size = plan.rows * (plan.head_dim + plan.value_dim) * BYTES["float16"]
    end = problem.call.seq_q // plan.rows
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
        return of_sequences(problem, plan)
    if problem.listed:
        return of_lists(problem, plan).work
    tiles, distances = Registry(), Registry()
    count = -(-problem.call.seq_k // plan.keys)
    blocks = ITEM.zeros(count)
    for index in range(count):
        _key_tile(problem, plan, index, blocks[index], tiles, distances)
    costs = (blocks["count"] * problem.call.group + ITEM_STEPS).tolist()
    families = _families(problem, plan.bias_kind == "per_score")
    finals = _finals(blocks, -(-problem.call.seq_q // plan.rows))
    hands = _shared(problem, plan, families, costs, finals is not None)
    finals = finals if hands.slots == 1 else None
    rows = [[(slot, *item) for slot, items in share for item in items] for share in hands.shares]
    table = ITEM.zeros(len(rows), max(map(len, rows)))
    for core, items in enumerate(rows):
        table[core, : len(items)] = blocks[[tile for _, _, tile in items]]
        for row, (slot, (batch, head), tile) in zip(table[core], items):
            row["slot"], row["tile"] = slot, tile
            row["steps"] = row["count"] * problem.call.group
            # Planes of the first query head of the group. Planes of the others follow if the input varies by head.
            name_head(row, problem, batch, head * problem.call.group)
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
    heads = [(b, h) for b in range(problem.call.batch) for h in range(problem.call.kv_heads)]
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
    most = min(len(costs), problem.cores, most_slots(problem, plan))
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


def _key_tile(
    problem: KernelProblem, plan: BackwardPlan, tile: int, words: np.void, tiles: Registry, distances: Registry
) -> None:
    """Fill the fields of a key tile that are the same for all heads: the query tiles that visit it."""
    call = problem.call
    band, rows, keys = call.band, plan.rows, plan.keys
    start = tile * keys
    stop = min(start + keys, call.seq_k)

    def number(index: int) -> int:
        top, end = index * rows, (index + 1) * rows
        if end <= call.seq_q:
            common = band.common(top, end - 1)
            if common[0] <= start and start + keys <= common[1]:
                return 0
        bounds = [band.keys(row) if row < call.seq_q else (0, 0) for row in range(top, end)]
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
    if call.bias == "alibi" and not call.rules.causal:
        set_signs(problem, plan, words, start, distances)
