"""Who computes what: row blocks paired into work items, balanced over the cores, described by integer tables.

A kernel reads its share of the work from a table in global memory, so that every visibility rule stays in
`flash_attention.problem.visibility`. Tiles that are partly visible refer to a tile of zeros and ones by number.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Callable, NamedTuple

import numpy as np

from flash_attention.kernels.tik import forms, tuning
from flash_attention.kernels.tik.common import band
from flash_attention.kernels.tik.common.work_split import (
    Registry,
    clip,
    deal,
    distance_tiles,
    neighbours,
    plane,
    visibility_strip,
)
from flash_attention.kernels.tik.forward import packed, reach, softmax
from flash_attention.kernels.tik.forward.tiling import ForwardPlan, buffers, candidates
from flash_attention.kernels.tik.forward.words import (
    AFTER,
    BATCH,
    BEGIN,
    BIAS_PLANE,
    CROSS,
    DISTANCE,
    EDGE,
    END,
    FIELDS,
    FIRST,
    HEAD,
    KV_HEAD,
    LAST,
    LEFT,
    MASK_PLANE,
    RIGHT,
    ROW_BLOCK,
    ROW_BLOCK_FIELDS,
    ROWS,
    SAMPLE_START,
    SAMPLE_STRIDE,
    SAMPLE_STRIDED,
    SAMPLE_TILE,
    SLOPE,
    START,
)
from flash_attention.kernels.tik.hardware import Buffer, excess
from flash_attention.kernels.tik.layout import placement
from flash_attention.kernels.tik.packed import Limits
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.problem.visibility import Band

# Time of a unit whose key and value tiles serve one row block instead of two, at head_dim 128: the memory is its limit.
UNSHARED = 1.4
APART = 0.97  # of the load of the busiest core, from which on the last items are taken apart


@dataclass(frozen=True)
class RowBlock:
    """`rows` queries from `start` on, and the key tiles first..last that they visit; words as in the table.

    Attributes:
        blind: the sample may show a row nothing although it sees keys.
    """

    words: tuple[int, ...]
    blind: bool

    @property
    def units(self) -> int:
        return self.words[LAST] - self.words[FIRST] + 1

    def renumbered(self, numbers: list[int]) -> RowBlock:
        """With other numbers of visibility tiles, by those that it has."""
        words = list(self.words)
        for word in (*range(LEFT, LEFT + EDGE), *range(RIGHT, RIGHT + EDGE), SAMPLE_TILE):
            words[word] = numbers[words[word]]
        return replace(self, words=tuple(words))


@dataclass(frozen=True)
class WorkSplit:
    """The work of a kernel.

    Attributes:
        table: int32 (cores, items, FIELDS), rows of items that do not exist are inactive. With packed sequences it is
            an input of the kernel, see forward.packed, and this one is empty.
        items: work items of the busiest core.
        tiles: float16 (n, rows, 16), columns of 16 keys, 1 = visible and 0 = hidden, or softmax.limits of them where
            scores are float16; n may be 0. Tile number i is keys / 16 columns from column i - 1 on.
        distances: float16 (n, keys / 16, rows, 16), tokens by which a key lies after its query; n may be 0.
        cores: cores that have work.
        units: tile steps of each core, the measure of balance.
        blind: there are row blocks whose sample may show a row nothing although it sees keys.
        whole: number of the tile in which everything is visible, where it may be needed as a tile of limits; else 0.
    """

    table: np.ndarray
    tiles: np.ndarray
    distances: np.ndarray
    units: tuple[int, ...]
    blind: bool
    whole: int

    @property
    def cores(self) -> int:
        return self.table.shape[0]

    @property
    def items(self) -> int:
        return self.table.shape[1]


class Choice(NamedTuple):
    """How a problem is computed: tile shapes, work of the cores, on-chip buffers."""

    plan: ForwardPlan
    split: WorkSplit
    buffers: tuple[Buffer, ...]


def choose(problem: KernelProblem) -> Choice:
    """The first plan that fits; where it gives the cores too few work items, one with the same tiles and more items.

    The tiles stay, so that a part of the heads gets the same bits as all of them.

    Raises:
        ValueError: no tiling strategy fits the memories of a core.
    """
    return _choose(problem, forms.current(), tuning.current())


@functools.lru_cache(maxsize=4)
def _choose(problem: KernelProblem, _: forms.Forms, __: tuning.Table) -> Choice:
    reasons, chosen = [], None
    for plan in candidates(problem):
        if chosen is not None and (plan.rows, plan.keys) != (chosen.plan.rows, chosen.plan.keys):
            continue
        work = split(problem, plan)
        parts = buffers(problem, plan, work.tiles.size, work.distances.size)
        reason = excess(parts, problem)
        if reason:
            reasons.append(f"{plan.strategy} needs {reason}")
        elif chosen is None or UNSHARED * max(work.units) < max(chosen.split.units):
            chosen = Choice(plan, work, tuple(parts))
        if chosen is not None and (problem.sequences or chosen.split.cores == problem.cores):
            break
    if chosen is None:
        raise ValueError(f"tiling: no strategy fits this problem: {'; '.join(reasons)}")
    return chosen


def split(problem: KernelProblem, plan: ForwardPlan) -> WorkSplit:
    """Divides the row blocks of all heads among the cores, longest items first to the core with the least work."""
    if problem.sequences:
        return _of_sequences(problem, plan)
    tiles, distances = Registry(), Registry()
    count = -(-problem.seq_q // plan.rows)
    blocks = [_row_block(problem, plan, index, tiles, distances) for index in range(count)]
    counts = len(tiles.numbers) > 0 and reach.is_needed(problem, plan.half_scores)
    whole = tiles.number(((0, plan.keys),) * plan.rows) if counts else 0
    visible, starts = visibility_strip(plan, tiles)
    numbers = [0, *(start + 1 for start in starts)]
    blocks = [block.renumbered(numbers) for block in blocks]
    # Neighbouring row blocks share the key tiles they both visit.
    groups = [tuple(range(count))[i : i + plan.row_blocks] for i in range(0, count, plan.row_blocks)]
    if problem.rules.causal:
        # The one that sees more keys first: then no unit is missing between the last ones of an item.
        groups = [group[::-1] for group in groups]
    heads = [(b, h) for b in range(problem.batch) for h in range(problem.heads)]
    units = [block.units for block in blocks]
    shares = _shares(groups, units, len(heads), problem.cores, reach.is_needed(problem, plan.half_scores))

    table = np.zeros((len(shares), max(map(len, shares)), FIELDS), np.int32)
    table[:, :, ROW_BLOCK + FIRST] = 1  # FIRST > LAST: inactive
    table[:, :, ROW_BLOCK + ROW_BLOCK_FIELDS + FIRST] = 1
    for core, share in enumerate(shares):
        # Heads in order, so that neighbouring cores meet in the same keys.
        for row, (head, group) in enumerate(sorted(share)):
            _fill(table[core, row], problem, *heads[head], [blocks[index] for index in group])
    return WorkSplit(
        table,
        softmax.limits(problem, visible) if plan.half_scores else visible,
        distance_tiles(plan, distances),
        tuple(sum(blocks[index].units for _, group in share for index in group) for share in shares),
        any(block.blind for block in blocks),
        numbers[whole],
    )


#: A head and the numbers of the row blocks of a work item.
_Item = tuple[int, tuple[int, ...]]


def _shares(
    groups: list[tuple[int, ...]], units: list[int], heads: int, cores: int, gathered: bool
) -> list[list[_Item]]:
    """Items of every core, those of `groups` for all heads.

    Where items do not go round, those that are left over are taken apart into their row blocks, if that helps.

    Args:
        units: of each row block.
        gathered: a core should have few heads: it measures their keys.
    """
    whole = [(head, group) for head in range(heads) for group in groups]
    spare = len(whole) % cores if len(whole) > cores else 0

    def cost(item: _Item) -> int:
        blocks = item[1]
        shared = 1.0 if len(blocks) > 1 or len(groups[0]) == 1 else UNSHARED
        return round(10 * (sum(units[block] for block in blocks) * shared + 2))

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
    """The work of packed sequences: room for the table, which is data; the units count row blocks."""
    ranks, _ = packed.deal(problem, plan)
    signed = problem.bias == "alibi" and not problem.rules.causal
    visible = band.tiles(problem, plan)
    return WorkSplit(
        np.zeros((*ranks.shape, FIELDS), np.int32),
        softmax.limits(problem, visible) if plan.half_scores else visible,
        band.distances(plan) if signed else np.zeros((0, 16), np.float16),
        tuple(int(count) * plan.row_blocks for count in (ranks < packed.groups(problem, plan)).sum(axis=1)),
        Limits.of(problem).bounded,
        0,
    )


def _fill(row: np.ndarray, problem: KernelProblem, batch: int, head: int, group: list[RowBlock]) -> None:
    row[HEAD] = batch * problem.heads + head
    row[KV_HEAD] = batch * problem.kv_heads + head // problem.group
    row[MASK_PLANE] = plane(*problem.mask_planes, batch, head)
    row[BIAS_PLANE] = plane(*problem.bias_planes, batch, head)
    row[SLOPE], row[BATCH] = head, batch
    row[BEGIN] = min(block.words[FIRST] for block in group)
    row[END] = max(block.words[LAST] for block in group) + 1
    for a, block in enumerate(group):
        start = ROW_BLOCK + a * ROW_BLOCK_FIELDS
        row[start : start + ROW_BLOCK_FIELDS] = block.words


def _row_block(problem: KernelProblem, plan: ForwardPlan, index: int, tiles: Registry, distances: Registry) -> RowBlock:
    band, keys = problem.band, plan.keys
    start = index * plan.rows
    last_row = min(start + plan.rows, problem.seq_q) - 1
    words = [0] * ROW_BLOCK_FIELDS
    words[START] = start
    words[ROWS] = min(placement(problem, "query").rows - start, plan.rows)
    lo, hi = band.union(start, last_row)
    common = band.common(start, last_row)
    bounds = _bounds(band, start, plan.rows)
    blind = False

    def number(tile: int) -> int:
        if common[0] <= tile * keys and (tile + 1) * keys <= common[1]:
            return 0
        return tiles.number(tuple(clip(pair, tile * keys, keys) for pair in bounds))

    if lo >= hi:  # nothing visible: one tile with everything hidden gives output 0
        words[FIRST] = words[LAST] = 0
        words[LEFT] = words[RIGHT] = words[SAMPLE_TILE] = tiles.number(((0, 0),) * plan.rows)
    else:
        first, last = lo // keys, (hi - 1) // keys
        words[FIRST], words[LAST] = first, last
        for edge in range(min(EDGE, last - first + 1)):
            words[LEFT + edge] = number(first + edge)
            words[RIGHT + edge] = number(last - edge)
        if last - first + 1 > 2 * EDGE and (number(first + EDGE) or number(last - EDGE)):
            raise ValueError(
                f"prev_blocks, next_blocks, tile: partly visible key tiles of rows {start}..{last_row} "
                f"reach further than {EDGE} tiles of {keys} keys into their range"
            )
        if plan.shared_sample:
            _shared_sample(problem, plan, words, index - index % 2, number)
        else:
            blind = _sample(problem, plan, words, bounds[: last_row + 1 - start], common, number)
    if problem.bias == "alibi" and not problem.rules.causal:
        _signs(problem, plan, words, start, last_row, distances)
    else:
        words[CROSS] = words[AFTER] = 1 << 30
    return RowBlock(tuple(words), blind)


def _bounds(band: Band, start: int, rows: int) -> list[tuple[int, int]]:
    return [band.keys(row) for row in range(start, start + rows)]


def _shared_sample(
    problem: KernelProblem, plan: ForwardPlan, words: list, index: int, number: Callable[[int], int]
) -> None:
    """As `_sample`, for two row blocks from number `index` on: what all rows of the first one see, else the first tile.

    The second one sees these keys, too, whether or not it is computed beside the first. The first tile is part of the
    sample in any case.
    """
    start = index * plan.rows
    _, high = problem.band.common(start, min(start + plan.rows, problem.seq_q) - 1)
    low = plan.segment_start(plan.near_segments) // 16
    if high < plan.keys or not _spread(words, plan.columns - low, low, high // 16):
        words[SAMPLE_TILE] = number(0)


def _spread(words: list, groups: int, low: int, high: int) -> bool:
    """A sample of groups of 16 keys, spread over those from `low` to `high`. Returns whether there are enough."""
    if not high - low >= groups > 1:
        return False
    stride = min((high - low - 1) // (groups - 1), 4000)
    words[SAMPLE_STRIDED], words[SAMPLE_START], words[SAMPLE_STRIDE] = 1, low, stride
    return True


def _sample(
    problem: KernelProblem, plan: ForwardPlan, words: list, bounds: list, common: tuple, number: Callable[[int], int]
) -> bool:
    """Keys whose scores give the first reference of the row maxima: spread over what all rows see, else one tile.

    A mask per score may leave a query little more than its neighbours: then it is one tile, too.

    Returns:
        Whether it may show a row nothing that sees other keys.
    """
    masked = problem.mask == "per_score"
    if problem.bias == "none" and not masked and _spread(words, plan.columns, -(-common[0] // 16), common[1] // 16):
        return False

    def widths_in(tile: int) -> list[int]:
        return [max(0, min(b, (tile + 1) * plan.keys) - max(a, tile * plan.keys)) for a, b in bounds]

    def seen(tile: int) -> tuple[int, int]:
        widths = widths_in(tile)
        return sum(width > 0 for width in widths), sum(widths)

    first, last = words[FIRST], words[LAST]
    middle = (bounds[len(bounds) // 2][0] + bounds[len(bounds) // 2][1]) // 2 // plan.keys
    diagonal = (words[START] + problem.offset) // plan.keys
    choices = [min(max(tile, first), last) for tile in (diagonal, diagonal + 1, last, first, middle)]
    if problem.bias != "none":  # a bias by distance: what lies nearest is largest
        choices = choices[:2]
    tile = max(choices, key=seen)
    words[SAMPLE_START], words[SAMPLE_TILE] = tile, number(tile)
    return masked or any(low < high and width == 0 for (low, high), width in zip(bounds, widths_in(tile)))


def _signs(
    problem: KernelProblem, plan: ForwardPlan, words: list, start: int, last_row: int, distances: Registry
) -> None:
    """Where keys change from before to after the queries: computed ALiBi takes the absolute distance."""
    keys = plan.keys
    position, last = start + problem.offset, start + plan.rows - 1 + problem.offset
    cross, after = (position + 1) // keys, -(-last // keys)
    cross, after = (min(max(tile, words[FIRST]), words[LAST] + 1) for tile in (cross, max(after, cross)))
    words[CROSS], words[AFTER] = cross, after
    for index, tile in enumerate(range(cross, after)):
        words[DISTANCE + index] = distances.number(tile * keys - position)
