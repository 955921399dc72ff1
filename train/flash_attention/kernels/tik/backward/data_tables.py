"""Work tables of the backward operator that are data: packed sequences, lists of tiles.

They are arithmetic on whole arrays, which NumPy or MindSpore does (`xp`, see `varlen`). The key tiles of all sequences
or block masks, longest first, are dealt to the slots of a head in turns that change direction. Without a limit to the
left, later tiles of a sequence have no more query tiles than earlier ones, and so come later.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import numpy as np

from flash_attention.kernels.tik import varlen
from flash_attention.kernels.tik.backward import kept_sums
from flash_attention.kernels.tik.backward.items import (
    DISTANCES,
    ITEM_STEPS,
    LISTED_ITEM,
    MOST_TILES,
    VARLEN_ITEM,
    BackwardSplit,
    PartialTilesError,
    list_length,
    own_lists,
    query_tiles,
    set_signs,
)
from flash_attention.kernels.tik.backward.tiling import (
    RING,
    BackwardPlan,
    lowers_on_cube,
)
from flash_attention.kernels.tik.common import band, kept_tiles, tile_lists
from flash_attention.kernels.tik.common.mask import LOWEST
from flash_attention.kernels.tik.common.tile_lists import CODES
from flash_attention.kernels.tik.common.work_split import (
    Registry,
    distance_tiles,
    name_head,
    visibility_tiles,
)
from flash_attention.kernels.tik.hardware import BYTES
from flash_attention.kernels.tik.layout import accumulator_shape, capacity
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.varlen import FAR, Array, Limits, Sequences

ACCUMULATOR_LIMIT = 2**31  # bytes of accumulators beyond which no further slots are used


def most_slots(problem: KernelProblem, plan: BackwardPlan) -> int:
    """Return slots whose accumulators memory may be spent on."""
    one = int(np.prod(accumulator_shape(problem, plan, 1))) * BYTES["float32"]
    return max(1, ACCUMULATOR_LIMIT // one)


def _balanced_slots(problem: KernelProblem, plan: BackwardPlan) -> int:
    """Return the fewest slots within 5 % of the best balance. Tables are data."""
    most = max(1, min(most_slots(problem, plan), _key_tiles(problem, plan), problem.cores))
    spans = [
        -(-problem.call.batch * problem.call.kv_heads * count // problem.cores) / count for count in range(1, most + 1)
    ]
    return next(count for count, span in enumerate(spans, 1) if span <= 1.05 * min(spans))


def _key_tiles(problem: KernelProblem, plan: BackwardPlan) -> int:
    """Return the most key tiles of a key/value head, if tables are data. Every sequence with queries has one, so that
    some item writes d_query.
    """
    if problem.listed:
        return -(-problem.call.seq_k // plan.keys)
    return capacity(problem.call.seq_k + problem.sequences, problem.sequences, plan.keys)


def _deal_items(problem: KernelProblem, plan: BackwardPlan, slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return (rank, key/value head, slot) of every item of the table, (cores, items) each."""
    count = _key_tiles(problem, plan)
    units = problem.call.batch * problem.call.kv_heads * slots
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


def of_sequences(problem: KernelProblem, plan: BackwardPlan) -> BackwardSplit:
    """Return the work of packed sequences: room for the table, which is data; the units count key tiles."""
    slots = _balanced_slots(problem, plan)
    ranks, _, _ = _deal_items(problem, plan, slots)
    signed = problem.call.bias == "alibi" and not problem.call.rules.causal
    return BackwardSplit(
        VARLEN_ITEM.zeros(*ranks.shape),
        band.tiles(problem, plan),
        band.distances(plan) if signed else np.zeros((0, 16), np.float16),
        tuple(int(count) * problem.call.group for count in (ranks < _key_tiles(problem, plan)).sum(axis=1)),
        slots,
        slots == 1 and Limits.of(problem).left == FAR,
    )


def packed_table(xp: Any, problem: KernelProblem, plan: BackwardPlan, slots: int) -> Callable[[tuple], Array]:
    """Return make(sequences) -> the table, int32 (cores, items, VARLEN_ITEM.size)."""
    call = problem.call
    items = _key_tiles(problem, plan) + 1  # one more than there can be: the last does not exist
    ranks, heads, of_slots = _deal_items(problem, plan, slots)
    own = VARLEN_ITEM.zeros(*ranks.shape)
    own["head"] = own["slope"] = heads * call.group
    own["kv_head"], own["slot"] = heads, of_slots
    of_sequence = len(Sequences._fields)
    fields = ["tile", "first", "count", "steps", "cross", "before", "final", "final_end"]
    if problem.slope_stride:
        fields.append("slope")
    words = [*(VARLEN_ITEM.word(field) for field in fields), *VARLEN_ITEM.single("sequence").values()]
    dealt, tiles = varlen.dealt(xp, words, ranks, VARLEN_ITEM.words(own)), varlen.tiles(xp, problem, items)
    order = varlen.by_cost(xp, items)
    left, right, prefixed = Limits.of(problem)
    whole, rows, group = plan.keys, plan.rows, call.group
    signed, slope_stride = call.bias == "alibi" and not call.rules.causal, problem.slope_stride

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
        return dealt(values, order((count * group + ITEM_STEPS) * active))

    return make


def list_words(problem: KernelProblem, plan: BackwardPlan) -> int:
    """Return words of all lists. If tiles stay on chip each item has one."""
    lists = _list_planes(problem) * _key_tiles(problem, plan)
    if plan.ways > 1:
        lists = _deal_items(problem, plan, _balanced_slots(problem, plan))[0].size
    return lists * list_length(problem, plan)


def most_ways(problem: KernelProblem) -> int:
    """Return the most ways that lists can name.

    The heads of a group that share a list have other tiles, so that none would stay.
    """
    if not problem.keeps_tiles or (problem.call.group > 1 and not own_lists(problem)):
        return 1
    return kept_tiles.most_ways((problem.call.group if own_lists(problem) else 1) * MOST_TILES * CODES)


def holds_sums(problem: KernelProblem, plan: BackwardPlan) -> bool:
    """Return if lists of tiles that stay on chip can name places of sums."""
    tiles = query_tiles(problem, plan) * (problem.call.group if own_lists(problem) else 1)
    return plan.ways > 1 and tile_lists.holds(tiles * 2 * plan.ways * kept_sums.codes(plan.sums))


def kept_table(problem: KernelProblem, plan: BackwardPlan, table: np.ndarray) -> np.ndarray:
    """Return a table of `listed_table` in an order in which many tiles stay on chip."""
    work, length = of_lists(problem, plan).work, list_length(problem, plan)
    count, rows = work.words.size, table[: work.words.size].view(LISTED_ITEM.dtype).reshape(work.table.shape)
    lists, known = np.zeros((*rows.shape, length), np.int32), {}
    for core, share in enumerate(rows):
        share, done = np.sort(share[share["count"] > 0], order="tile"), 0
        for head in np.unique(share["head"]):
            mine = share[share["head"] == head]
            name = mine["list"][:, 0].tobytes()  # heads that share a mask have the same lists
            if name not in known:
                known[name] = _kept_lists(plan, table, mine, length)
            order, kept = known[name]
            mine, places = mine[order], np.arange(done, done + len(mine))
            mine["list"][:, 0] = count + (core * rows.shape[1] + places) * length
            lists[core, places], rows[core, places] = kept, mine
            done += len(mine)
    return np.concatenate([rows.reshape(-1).view(np.int32), lists.reshape(-1)])


def _kept_lists(plan: BackwardPlan, table: np.ndarray, items: np.ndarray, length: int) -> tuple[list[int], np.ndarray]:
    """Return an order of a head's items on a core, and their lists."""
    words = [
        kept_tiles.bare(table[start:][:number], CODES, plan.ways)
        for start, number in zip(items["list"][:, 0], items["count"])
    ]
    visited = [[(one // CODES).tolist()] for one in words]
    order, result = kept_tiles.in_line(visited), np.zeros((len(items), length), np.int32)
    in_order = [visited[at] for at in order]
    plans = kept_tiles.plan(in_order, in_order, kept_tiles.ways_of(plan.held, RING))
    steps = [visited[at][0][visit.entry] for at, (visits,) in zip(order, plans) for visit in visits]
    sums = kept_sums.plan(steps, plan.sums)
    for line, at, (visits,) in zip(result, order, plans):
        mine, sums = sums[: len(visits)], sums[len(visits) :]
        words[at][[visit.entry for visit in visits]] += mine.astype(np.int32) * CODES
        line[: len(visits)] = kept_tiles.joined(words[at], CODES, visits, plan.ways)
    return order, result


def _list_planes(problem: KernelProblem) -> int:
    """Return how many key/value heads have lists of their own."""
    return tile_lists.planes(problem) // (problem.call.group if own_lists(problem) else 1)


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


def of_lists(problem: KernelProblem, plan: BackwardPlan) -> _Lists:
    """Return the room for the work under a block mask. Its units count all tiles."""
    call = problem.call
    tiles, distances, count = Registry(), Registry(), _key_tiles(problem, plan)
    codes = tile_lists.codes(problem, plan, tiles, True)
    hidden = 1 + tiles.number(((0, 0),) * plan.rows)
    height = -(-call.seq_q // plan.rows)
    members = call.group if own_lists(problem) else 1
    if hidden > tile_lists.most_numbers(problem) or height > MOST_TILES or not tile_lists.holds(members * MOST_TILES):
        raise PartialTilesError(
            f"block_mask: needs {hidden} visibility tiles, {height} query tiles of a head, {members} heads in a list"
        )
    blocks = LISTED_ITEM.zeros(count)
    blocks["count"] = height
    if call.bias == "alibi" and not call.rules.causal:
        for tile, words in enumerate(blocks):
            set_signs(problem, plan, words, tile * plan.keys, distances)
    slots = _balanced_slots(problem, plan)
    ranks, _, _ = _deal_items(problem, plan, slots)
    visible = visibility_tiles(plan, tiles)
    if lowers_on_cube(problem):
        visible = np.where(visible > 0, 0, LOWEST).astype(np.float16)
    work = BackwardSplit(
        LISTED_ITEM.zeros(*ranks.shape),
        visible,
        distance_tiles(plan, distances),
        tuple(((ranks < count).sum(axis=1) * height * call.group).tolist()),
        slots,
        False,
    )
    return _Lists(work, codes, hidden, blocks)


def listed_table(xp: Any, problem: KernelProblem, plan: BackwardPlan, slots: int) -> Callable[[Array], Array]:
    """Return make(block_mask) -> the table, int32 (words,): rows of items, LISTED_ITEM, and behind them the lists."""
    call = problem.call
    work, codes, hidden, blocks = of_lists(problem, plan)
    height, count, planes = codes.shape[1], codes.shape[2], _list_planes(problem)
    members = call.group if own_lists(problem) else 1
    lines, width, size = planes * count, members * height, list_length(problem, plan)
    # Codes come by key tile: (masks, key tiles, query tiles). Heads of a group with own masks share a list.
    row, column = np.meshgrid(np.arange(height), np.arange(count))
    coded = tile_lists.coded(xp, problem, plan, codes, np.stack([row, column], -1))
    plane, tile, member, query = np.ogrid[:planes, :count, :members, :height]
    joined = ((plane * members + member) * count + tile) * height + query
    joined = xp.array(joined.reshape(-1))
    # One constant, see the forward schedule.
    hides = xp.array(((np.arange(width) == 0) * hidden)[None])
    name = np.arange(width)[None]
    name = name * ((2 * plan.ways if plan.ways > 1 else 1) * kept_sums.codes(plan.sums) * CODES) - 1
    name = xp.array(name)
    starts = xp.array(work.words.size + np.arange(lines) * size)
    constants = tuple(
        [xp.array(np.tile(values, planes)) for values in (np.arange(count), blocks["cross"], blocks["before"])]
    )
    distances = tuple([xp.array(np.tile(values, planes)) for values in blocks["distance"].T])
    fields = ["list", "count", "steps", "tile", "cross", "before"]
    words = [LISTED_ITEM.word(field) for field in fields]
    words += [LISTED_ITEM.word("distance") + index for index in range(DISTANCES)]
    ranks, heads, of_slots = _deal_items(problem, plan, slots)
    own = LISTED_ITEM.zeros(*ranks.shape)
    own["slot"] = of_slots
    batches, of_heads = (call.block_mask_shape or (1, 1))[:2]
    for item, head in zip(own.reshape(-1), heads.reshape(-1)):
        name_head(item, problem, *(head // call.kv_heads, head % call.kv_heads * call.group))
    batch, kv_head = np.divmod(heads, call.kv_heads)
    of_plane = (batch if batches > 1 else 0) * (call.kv_heads if of_heads > 1 else 1) + (kv_head if of_heads > 1 else 0)
    places = np.where(ranks < count, of_plane * count + ranks, lines)
    dealt, order = (
        varlen.dealt(xp, words, places, LISTED_ITEM.words(own)),
        tile_lists.by_visits(xp, planes, count, width),
    )
    placed, none, repeats = tile_lists.placed(xp, lines, width), xp.array([0]), call.group // members

    def make(block_mask):  # type: ignore[no-untyped-def]
        code = coded(block_mask)
        code = xp.reshape(xp.take(xp.reshape(code, (-1,)), joined, 0), (-1, width))
        # Keys that nobody sees have one tile, with everything hidden, which makes their gradients zero.
        nothing = xp.as_int(xp.count_true(code > 0) == 0)
        code = code + xp.reshape(nothing, (-1, 1)) * hides
        visited, total = xp.as_int(code > 0), xp.count_true(code > 0)
        lists = placed(visited, xp.cumsum(visited, 1) - 1, name + code)
        values, ended = (starts, total, total * repeats) + constants + distances, ()
        for value in values:
            ended = ended + (xp.concatenate((value, none)),)
        table = dealt(ended, order(total))
        return xp.concatenate((xp.reshape(table, (-1,)), xp.reshape(lists, (-1,))))

    return make
