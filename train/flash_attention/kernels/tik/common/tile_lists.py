"""Lists of visited tiles under a block mask, which is data: every call makes its lists, in room for all tiles.

A list holds a word per visited tile: its number, and codes that say whether the tile is partly visible. Which tiles
are, and how, follows from the rules and from the place of the tile. So the kernels hold all visibility tiles that may
be needed, and the same kernel serves every block mask of a shape.

Functions that take `xp` are as in `varlen`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Callable, NamedTuple

import numpy as np

from flash_attention.call.visibility import Band
from flash_attention.kernels.tik.common.work_split import Registry, in_turns, name_head
from flash_attention.kernels.tik.problem import KernelProblem, padded
from flash_attention.kernels.tik.row_layout import RowLayout
from flash_attention.kernels.tik.tik_types import BlockPlan
from flash_attention.kernels.tik.varlen import Array

CODES = 1024  # codes of a tile: 0 = not visited, else 1 + number of the visibility tile
PARTIAL = CODES // 2  # added to it if segment ids decide inside the tile
SCATTERED = 0.6  # share of key tiles of 128 up to which they take longer, with random tiles in the backward
BLOCK_WORDS = 8  # int32 words of a block of global memory


def fits(problem: KernelProblem, plan: BlockPlan) -> bool:
    """Return if a list can name the tiles of a plan.

    A tile lies in one tile of the block mask, or two of these share it.
    """
    call = problem.call
    tile, rows, keys = call.block_mask_tile, plan.rows, plan.keys
    inside = tile % rows == 0 or rows == padded(call.seq_q) <= tile
    return inside and -(-keys // tile) <= 2 and (tile % keys == 0 or keys % tile == 0 or keys == padded(call.seq_k))


def scattered(block_mask: np.ndarray, tile: int) -> bool:
    """Return if key tiles of 128 would hold little that is visible. Then key tiles of 64 take less time."""
    if tile != 64:
        return False
    seen = block_mask != 0
    pairs = np.pad(seen, [(0, 0)] * (seen.ndim - 1) + [(0, seen.shape[-1] % 2)]).reshape(*seen.shape[:-1], -1, 2)
    return bool(seen.sum() < SCATTERED * 2 * pairs.any(-1).sum())


def holds(tiles: int) -> bool:
    """Return if 32 bits hold a tile's number and a code."""
    return tiles * CODES <= 2**31


def most_numbers(problem: KernelProblem) -> int:
    """Return how many visibility tiles codes can tell apart, and one more."""
    return (PARTIAL if problem.compares else CODES) - 1


def length(problem: KernelProblem, plan: BlockPlan) -> int:
    """Return words of a list of key tiles."""
    return padded(-(-problem.call.seq_k // plan.keys), BLOCK_WORDS)


def parts(problem: KernelProblem, plan: BlockPlan) -> int:
    """Return tiles of the block mask side by side in a tile of keys."""
    return -(-plan.keys // problem.call.block_mask_tile)


def codes(problem: KernelProblem, plan: BlockPlan, tiles: Registry, hides_rows: bool) -> np.ndarray:
    """Return int32 (patterns, row blocks, key tiles): the code of each tile.

    Pattern i shows the parts of a tile by the bits of i. Pattern 0 shows none, so that its codes are 0. The visibility
    tiles go to `tiles`. With prefixes all patterns follow once more, under causality.

    Args:
        hides_rows: whether rows behind the last query see nothing, or it does not matter.
    """
    call, known = problem.call, {}  # type: ignore[var-annotated]
    bands = [call.band] + ([replace(call, rules=replace(call.rules, causal=True)).band] if problem.prefixed else [])
    return np.concatenate([_codes(problem, plan, tiles, hides_rows, band, known) for band in bands])


def _codes(
    problem: KernelProblem, plan: BlockPlan, tiles: Registry, hides_rows: bool, band: Band, known: dict[bytes, int]
) -> np.ndarray:
    """Return the codes under a band. `known` holds codes of visibility tiles."""
    call, rows, keys, size = problem.call, plan.rows, plan.keys, problem.call.block_mask_tile
    counts = -(-call.seq_q // rows), -(-call.seq_k // keys)
    result = np.zeros((1 << parts(problem, plan), *counts), np.int32)
    for index in range(counts[0]):
        start, end = index * rows, min((index + 1) * rows, call.seq_q)
        (low, high), common = band.union(start, end - 1), band.common(start, end - 1)
        bounds = np.array([band.keys(row) if row < call.seq_q else (0, 0) for row in range(start, start + rows)])
        for tile in range(counts[1] if low < high else 0):
            first, last = tile * keys, (tile + 1) * keys
            for pattern in range(1, len(result)):
                shown = [part for part in range(len(result).bit_length() - 1) if pattern >> part & 1]
                begin, stop = first + shown[0] * size, min(first + (shown[-1] + 1) * size, last)
                if max(begin, low) >= min(stop, high):
                    continue
                whole = (begin, stop) == (first, last) and common[0] <= first and last <= common[1]
                if whole and (start + rows <= call.seq_q or not hides_rows):
                    result[pattern, index, tile] = 1
                    continue
                seen = np.clip(bounds, begin, stop) - first
                seen[seen[:, 0] >= seen[:, 1]] = 0
                if seen.any():
                    name = seen.tobytes()
                    if name not in known:
                        known[name] = 1 + tiles.number(tuple(map(tuple, seen.tolist())))
                    result[pattern, index, tile] = known[name]
    return result


def coded(
    xp: Any, problem: KernelProblem, plan: BlockPlan, numbers: np.ndarray, places: np.ndarray
) -> Callable[[Array], Array]:
    """Return make(block_mask) -> int32 (planes * lines, tiles of a line): the codes of the tiles at some places.

    With segment ids the block mask holds states, see `segments`.

    Args:
        numbers: see `codes`.
        places: (lines, tiles of a line, 2): row block and key tile; a row block of -1 does not exist.
    """
    _, _, height, width = problem.call.block_mask_shape or (0, 0, 0, 0)
    rows, columns = places[..., 0].reshape(-1), places[..., 1].reshape(-1)
    line, size = places.shape[1], problem.call.block_mask_tile
    exists = rows >= 0
    row = np.minimum(np.maximum(rows, 0) * plan.rows // size, height - 1)
    tile = columns * plan.keys // size
    # A part behind the last tile shows what the part before shows: no key of it exists.
    where = [xp.array(row * width + np.minimum(tile + part, width - 1)) for part in range(2)]
    of = (numbers[:, np.maximum(rows, 0), columns] * exists).astype(np.int32)
    of, under_causality = (of[: len(of) // 2], of[len(of) // 2 :]) if problem.prefixed else (of, of[:0])
    values = [xp.array(of[pattern][None]) for pattern in range(1, len(of))]
    partly = [xp.array((PARTIAL * (of[pattern] > 0))[None]) for pattern in range(1, len(of))]
    causal = [xp.array(one[None]) for one in under_causality[1:]]
    begin = columns * plan.keys
    begins, ends = (xp.array(one[None]) for one in (begin, np.minimum(begin + plan.keys, problem.call.seq_k)))

    def whole(block_mask: Array) -> Array:
        shown = xp.as_int(xp.reshape(block_mask, (-1, height * width)) != 0)
        return xp.reshape(xp.take(shown, where[0], 1) * values[0], (-1, line))

    def halves(block_mask: Array) -> Array:
        shown = xp.as_int(xp.reshape(block_mask, (-1, height * width)) != 0)
        first, second = xp.take(shown, where[0], 1), xp.take(shown, where[1], 1)
        one, other, both = first * (1 - second), (1 - first) * second, first * second
        return xp.reshape(one * values[0] + other * values[1] + both * values[2], (-1, line))

    def segments(block_mask: Array) -> Array:
        states = xp.reshape(block_mask, (-1, height * width))
        state = xp.take(states, where[0], 1)
        return xp.reshape(xp.as_int(state > 0) * values[0] + xp.as_int(state > 1) * partly[0], (-1, line))

    def halves_of_segments(block_mask: Array) -> Array:
        states = xp.reshape(block_mask, (-1, height * width))
        state, next_state = xp.take(states, where[0], 1), xp.take(states, where[1], 1)
        first, second = xp.as_int(state > 0), xp.as_int(next_state > 0)
        one, other, both = first * (1 - second), (1 - first) * second, first * second
        number = one * values[0] + other * values[1] + both * values[2]
        partial = xp.as_int(xp.maximum(state, next_state) > 1) * xp.as_int(number > 0)
        return xp.reshape(number + partial * PARTIAL, (-1, line))

    def prefixes(block_mask: Array) -> Array:
        """Return codes from states of `segments.numbers` that hold the prefix."""
        states = xp.reshape(block_mask, (-1, height * width))
        state = xp.take(states, where[0], 1)
        shown, by_ids, end = [xp.as_int(state != 0)], state, xp.maximum(state, state * -1) - 1
        if len(values) > 1:
            following = xp.take(states, where[1], 1)
            first, second = shown[0], xp.as_int(following != 0)
            shown, by_ids = [first * (1 - second), (1 - first) * second, first * second], xp.minimum(state, following)
            end = xp.maximum(end, xp.maximum(following, following * -1) - 1)
        all_keys, band = end * 0, end * 0
        for of_pattern, seen, early in zip(shown, values, causal):
            all_keys, band = all_keys + of_pattern * seen, band + of_pattern * early
        cut = xp.logical_and(end > begins, xp.logical_and(end < ends, band != 1))
        number = xp.where(xp.logical_or(end >= ends, cut), all_keys, band)
        partial = xp.as_int(xp.logical_or(cut, by_ids < 0)) * xp.as_int(number > 0)
        return xp.reshape(number + partial * PARTIAL, (-1, line))

    if problem.prefixed:
        return prefixes
    if problem.call.segments:
        return halves_of_segments if len(values) > 1 else segments
    return halves if len(values) > 1 else whole


def placed(xp: Any, lines: int, size: int) -> Callable[[Array, Array, Array], Array]:
    """Return make(visited, places, words) -> int32 (lines, size padded to blocks): words of visited tiles in places.

    All are (lines, size). Visited is 0 or 1. The places of the visited tiles of a line are 0, 1, ... in any order.
    Words behind them are 0.
    """
    length = padded(size, BLOCK_WORDS)
    starts, index = xp.array(np.arange(lines)[:, None] * length), xp.array(np.arange(size)[None])

    def make(visited: Array, places: Array, words: Array) -> Array:
        # Hidden tiles have places too, behind the others: a device need not skip or add up anything.
        total = xp.reshape(xp.count_true(visited > 0), (-1, 1))
        behind = total + index - xp.cumsum(visited, 1)
        at = starts + visited * places + (1 - visited) * behind
        found = xp.scatter(xp.reshape(at, (-1,)), xp.reshape(words * visited, (-1,)), lines * length)
        return xp.reshape(found, (lines, length))

    return make


def by_visits(xp: Any, groups: int, items: int, most: int) -> Callable[[Array], Array]:
    """Return make(visits) -> int32 (groups * items + 1,): items by falling visits, groups one behind the other.

    `visits` is int32 (groups * items,), from 0 to `most`. Equal items keep their order. The last number belongs to no
    item. Room is taken for a number per item and count of visits, as many as there are tiles.
    """
    levels, number = most + 1, np.arange(groups * items)
    level, numbers = xp.array(np.arange(levels)[None, :, None]), xp.array(np.arange(groups * items + 1))
    rows, column = xp.array(number // items * levels), xp.array(number % items)
    none = xp.array([groups * items])

    def make(visits: Array) -> Array:
        equal = xp.as_int(xp.reshape(most - visits, (groups, 1, items)) == level)
        equal = xp.reshape(equal, (groups * levels, items))
        counts = xp.count_true(equal > 0)
        ranks = xp.cumsum(equal, 1) + xp.reshape(xp.cumsum(counts, 0) - counts - 1, (-1, 1))
        mine = xp.take(xp.reshape(ranks, (-1,)), (rows + most - visits) * items + column, 0)
        return xp.scatter(xp.concatenate((mine, none)), numbers, groups * items + 1)

    return make


def planes(problem: KernelProblem) -> int:
    """Return block masks of a call."""
    batches, heads, *_ = problem.call.block_mask_shape or (1, 1)
    return batches * heads


class Dealt(NamedTuple):
    """Items in the places of a table, (cores, items) each.

    Attributes:
        ranks: among the items of all planes. The last rank belongs to no item.
        members: which of the heads that share the plane.
        exists: whether there is an item.
    """

    ranks: np.ndarray
    members: np.ndarray
    exists: np.ndarray


def dealt(problem: KernelProblem, items: int) -> Dealt:
    """Deal the items of all heads, `items` each, to cores in turns that change direction."""
    count = items * planes(problem)
    sharing = problem.call.batch * problem.call.heads // planes(problem)
    number, exists = in_turns(count * sharing, problem.cores)
    return Dealt(np.where(exists, number // sharing, count), np.where(exists, number % sharing, 0), exists)


_NAMES = ("head", "kv_head", "mask_plane", "bias_plane", "slope", "batch")


class Names:
    """Fields of items that name their heads. A field is a number of the item's plane plus a number of its member.

    Attributes:
        words: places in a row.
        values: numbers of the planes, int32 (planes * items,) each.
    """

    def __init__(self, xp: Any, problem: KernelProblem, layout: RowLayout, items: int):
        self._layout, count = layout, planes(problem)
        of_planes, self._members = layout.zeros(count), layout.zeros(problem.call.batch * problem.call.heads // count)
        for plane, row in enumerate(of_planes):
            name_head(row, problem, *_head(problem, plane, 0))
        for member, row in enumerate(self._members):
            name_head(row, problem, *_head(problem, 0, member))
        names = [name for name in _NAMES if of_planes[name].any()]
        self.words = [layout.word(name) for name in names]
        self.values = tuple(xp.array(np.repeat(of_planes[name], items)) for name in names)

    def own(self, places: Dealt) -> np.ndarray:
        """Return rows with the members' numbers."""
        return self._members[places.members]


def _head(problem: KernelProblem, plane: int, member: int) -> tuple[int, int]:
    """Return (batch item, head) of one of the heads that share a plane."""
    batches, heads, *_ = problem.call.block_mask_shape or (1, 1)
    if heads > 1:
        return (plane // heads, plane % heads) if batches > 1 else (member, plane)
    return (plane, member) if batches > 1 else divmod(member, problem.call.heads)
