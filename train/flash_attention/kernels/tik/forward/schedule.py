"""Schedule of the forward operator: row blocks paired into work items, balanced over the cores, as integer tables.

A kernel reads its share of the work from a table in global memory, so that every visibility rule stays in
`flash_attention.call.visibility`. Tiles that are partly visible refer to a tile of zeros and ones by number.

For packed sequences and under a block mask the table is data, see `data_tables`.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Callable

import numpy as np

from flash_attention.kernels.tik import instruction_forms
from flash_attention.kernels.tik.common.work_split import (
    Choice,
    Registry,
    clip,
    deal,
    distance_tiles,
    name_head,
    neighbours,
    visibility_strip,
)
from flash_attention.kernels.tik.forward import score_bound, softmax
from flash_attention.kernels.tik.forward.data_tables import most_ways, of_lists, of_sequences
from flash_attention.kernels.tik.forward.items import (
    EDGE,
    ITEM,
    ITEM_COST,
    MOST_STRIDE,
    NEVER,
    ROW_BLOCK,
    WorkSplit,
    row_block_groups,
    set_signs,
)
from flash_attention.kernels.tik.forward.tiling import RING, ForwardPlan, buffers, candidates
from flash_attention.kernels.tik.hardware import excess
from flash_attention.kernels.tik.layout import placement
from flash_attention.kernels.tik.problem import KernelProblem

# Time of a unit whose key and value tiles serve one row block instead of two, at head_dim 128: the memory is its limit.
UNSHARED = 1.4
APART = 0.97  # share of the busiest core's load: if taking the last items apart gets below it, they are taken apart
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
    for held in range(RING * most_ways(problem, chosen.plan) if problem.listed else 0, chosen.plan.held, -1):
        plan = replace(chosen.plan, held=held)
        parts = buffers(problem, plan, chosen.split)
        if not excess(parts, problem):
            return Choice(plan, chosen.split, tuple(parts))
    return chosen


def split(problem: KernelProblem, plan: ForwardPlan) -> WorkSplit:
    """Divide the row blocks of all heads among the cores, the longest items first."""
    call = problem.call
    if problem.sequences:
        return of_sequences(problem, plan)
    if problem.listed:
        return of_lists(problem, plan).work
    tiles, distances = Registry(), Registry()
    count = -(-call.seq_q // plan.rows)
    blocks = ROW_BLOCK.zeros(count)
    misses = [_row_block(problem, plan, index, blocks[index], tiles, distances) for index in range(count)]
    counts = len(tiles.numbers) > 0 and score_bound.is_needed(problem, plan.half_scores)
    whole = tiles.number(((0, plan.keys),) * plan.rows) if counts else 0
    visible, starts = visibility_strip(plan, tiles)
    numbers = np.array([0, *(start + 1 for start in starts)], np.int32)
    for field in ("left", "right", "sample_tile"):
        blocks[field] = numbers[blocks[field]]
    groups = row_block_groups(problem, plan)
    heads = [(b, h) for b in range(call.batch) for h in range(call.heads)]
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


def _row_block(
    problem: KernelProblem, plan: ForwardPlan, index: int, words: np.void, tiles: Registry, distances: Registry
) -> bool:
    """Fill the record of a row block. Returns whether its sample may show a row nothing although it sees keys."""
    call = problem.call
    band, keys = call.band, plan.keys
    start = index * plan.rows
    last_row = min(start + plan.rows, call.seq_q) - 1
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
    if call.bias == "alibi" and not call.rules.causal:
        set_signs(problem, plan, words, start, distances)
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
    _, high = problem.call.band.common(start, min(start + plan.rows, problem.call.seq_q) - 1)
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
    call = problem.call
    masked = problem.mask == "per_score"
    if call.bias == "none" and not masked and _spread(words, plan.columns, -(-common[0] // 16), common[1] // 16):
        return False

    def widths_in(tile: int) -> list[int]:
        return [max(0, min(b, (tile + 1) * plan.keys) - max(a, tile * plan.keys)) for a, b in bounds]

    def seen(tile: int) -> tuple[int, int]:
        widths = widths_in(tile)
        return sum(width > 0 for width in widths), sum(widths)

    first, last = int(words["first"]), int(words["last"])
    middle = (bounds[len(bounds) // 2][0] + bounds[len(bounds) // 2][1]) // 2 // plan.keys
    diagonal = (int(words["start"]) + call.offset) // plan.keys
    choices = [min(max(tile, first), last) for tile in (diagonal, diagonal + 1, last, first, middle)]
    if call.bias != "none":  # a bias by distance: the nearest key has the largest
        choices = choices[:2]
    tile = max(choices, key=seen)
    words["sample"], words["sample_tile"] = tile, number(tile)
    return masked or any(low < high and width == 0 for (low, high), width in zip(bounds, widths_in(tile)))
