"""Work tables of the forward operator that are data: packed sequences, lists of tiles.

They are arithmetic on whole arrays, which NumPy or MindSpore does (`xp`, see `varlen`). Items are the row blocks of
every sequence or block mask and head. They are dealt to the cores, longest first, in turns that change direction. So
all cores have equally many items, and about as much to do.
"""

from __future__ import annotations

from typing import Any, Callable, NamedTuple

import numpy as np

from flash_attention.kernels.tik import varlen
from flash_attention.kernels.tik.common import band, kept_tiles, tile_lists
from flash_attention.kernels.tik.common.tile_lists import CODES
from flash_attention.kernels.tik.common.work_split import (
    Registry,
    distance_tiles,
    in_turns,
    visibility_strip,
)
from flash_attention.kernels.tik.forward import score_bound, softmax
from flash_attention.kernels.tik.forward.items import (
    ITEM_COST,
    LISTED_ITEM,
    MOST_STRIDE,
    NEVER,
    ROW_BLOCK,
    VARLEN_ITEM,
    WorkSplit,
    row_block_groups,
    set_signs,
)
from flash_attention.kernels.tik.forward.tiling import RING, ForwardPlan
from flash_attention.kernels.tik.layout import capacity, placement
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.varlen import FAR, Array, Limits, Sequences


def of_sequences(problem: KernelProblem, plan: ForwardPlan) -> WorkSplit:
    """Return the work of packed sequences: room for the table, which is data. The units count row blocks."""
    ranks, _ = _deal_items(problem, plan)
    signed = problem.call.bias == "alibi" and not problem.call.rules.causal
    visible = band.tiles(problem, plan)
    return WorkSplit(
        VARLEN_ITEM.zeros(*ranks.shape),
        softmax.limits(problem, visible) if plan.half_scores else visible,
        band.distances(plan) if signed else np.zeros((0, 16), np.float16),
        tuple(int(count) * plan.row_blocks for count in (ranks < _groups(problem, plan)).sum(axis=1)),
        Limits.of(problem).bounded,
        0,
    )


_OF_ROW_BLOCK = ("start", "rows", "first", "last", "strided", "sample", "stride", "cross", "after")


def _groups(problem: KernelProblem, plan: ForwardPlan) -> int:
    """Return the most work items of a head."""
    return capacity(problem.call.seq_q, problem.sequences, plan.rows * plan.row_blocks)


def _deal_items(problem: KernelProblem, plan: ForwardPlan) -> tuple[np.ndarray, np.ndarray]:
    """Return (rank, head) of the item in every place, (cores, items) each. The last rank is nothing."""
    call = problem.call
    count = _groups(problem, plan)
    number, exists = in_turns(count * call.heads, problem.cores)
    return np.where(exists, number // call.heads, count), np.where(exists, number % call.heads, 0)


def packed_table(xp: Any, problem: KernelProblem, plan: ForwardPlan) -> Callable[[tuple], Array]:
    """Return make(sequences) -> the table, int32 (cores, items, VARLEN_ITEM.size)."""
    count = _groups(problem, plan) + 1  # one more than there can be: the last does not exist
    rows, row_blocks = plan.rows, plan.row_blocks
    ranks, heads = _deal_items(problem, plan)
    own = VARLEN_ITEM.zeros(*ranks.shape)
    own["head"] = own["slope"] = heads
    own["kv_head"] = heads // problem.call.group
    of_sequence = len(Sequences._fields)
    words = [VARLEN_ITEM.word(name) for name in ("begin", "end", *(["slope"] if problem.slope_stride else []))]
    words += VARLEN_ITEM.single("row_blocks", 0, "sequence").values()
    for a in range(row_blocks):
        words += [VARLEN_ITEM.word("row_blocks", a, name) for name in _OF_ROW_BLOCK]
    dealt, tiles = varlen.dealt(xp, words, ranks, VARLEN_ITEM.words(own)), varlen.tiles(xp, problem, count)
    order = varlen.by_cost(xp, count)
    row_block, unit = _row_blocks_at_run_time(xp, problem, plan), rows * row_blocks
    # As in `split`: of two row blocks, the row block that sees more keys comes first.
    swaps, slope_stride = problem.call.rules.causal and row_blocks == 2, problem.slope_stride

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
        return dealt(values + of_blocks, order((cost + ITEM_COST) * active))

    return make


def _row_blocks_at_run_time(xp: Any, problem: KernelProblem, plan: ForwardPlan) -> Callable[..., tuple]:
    """Return row_block(start, rows, position, keys, prefix) -> a row block's words, as in _OF_ROW_BLOCK.

    The sample of the row maxima is spread over the keys that all rows see. If there are too few, the sample is the tile
    that shows something to most rows.
    """
    call = problem.call
    left, right, prefixed = Limits.of(problem)
    whole, columns, stride_at_most, gaps = plan.keys, plan.keys // 16, MOST_STRIDE, max(plan.keys // 16 - 1, 1)
    spread, by_distance = call.bias == "none" and columns > 1, call.bias == "alibi"
    signed, rows_of_tile = by_distance and not call.rules.causal, plan.rows

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


def of_lists(problem: KernelProblem, plan: ForwardPlan) -> _Lists:
    """Return the room for the work under a block mask. Its units count all tiles."""
    call = problem.call
    tiles, distances, count = Registry(), Registry(), -(-call.seq_q // plan.rows)
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
        low, high = call.band.union(start, min(start + plan.rows, call.seq_q) - 1)
        words["first"], words["last"] = low // plan.keys, max(low, high - 1) // plan.keys
        words["cross"] = words["after"] = NEVER
        if call.bias == "alibi" and not call.rules.causal:
            set_signs(problem, plan, words, start, distances)
    if int(numbers.max()) >= tile_lists.most_numbers(problem):
        allowed = tile_lists.most_numbers(problem)
        raise ValueError(f"block_mask: needs {numbers.max()} visibility tiles, allowed are fewer than {allowed}")
    groups = row_block_groups(problem, plan)
    items = tile_lists.dealt(problem, len(groups)).exists
    misses = problem.mask == "per_score" or len(codes) > 2 or not call.band.unlimited() or problem.compares
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
    """Return words of all lists. Each row block has one, or one for each head if tiles stay on chip."""
    groups = -(-problem.call.seq_q // (plan.rows * plan.row_blocks))
    items = tile_lists.planes(problem) * groups
    if problem.keeps_tiles and plan.ways > 1:
        items = tile_lists.dealt(problem, groups).exists.size
    return items * plan.row_blocks * tile_lists.length(problem, plan)


def most_ways(problem: KernelProblem, plan: ForwardPlan) -> int:
    """Return the most ways that lists can name."""
    return kept_tiles.most_ways(-(-problem.call.seq_k // plan.keys) * CODES) if problem.keeps_tiles else plan.ways


def kept_table(problem: KernelProblem, plan: ForwardPlan, table: np.ndarray) -> np.ndarray:
    """Return a table of `listed_table` in an order in which many tiles stay on chip.

    Row blocks of an item visit similar tiles, so that one load serves both.
    """
    work, length = of_lists(problem, plan).work, tile_lists.length(problem, plan)
    count, wanted = work.words.size, _wanted(problem, plan)
    rows = table[:count].view(LISTED_ITEM.dtype).reshape(work.table.shape)
    lists, known = np.zeros((*rows.shape, plan.row_blocks, length), np.int32), {}
    for core, share in enumerate(rows):
        share, done = share[share["end"] > 0], 0
        for kv_head in np.unique(share["kv_head"]):
            group = share[share["kv_head"] == kv_head]
            heads = [group[group["head"] == head] for head in np.unique(group["head"])]
            # Heads that share a mask have the same lists.
            name = tuple(one["row_blocks"]["list"][:, : plan.row_blocks, 0].tobytes() for one in heads)
            if name not in known:
                known[name] = _kept_items(problem, plan, table, heads, wanted)
            counts, kept, kept_lists = known[name]
            items = np.concatenate([one[:number] for one, number in zip(heads, counts)])
            places = np.arange(done, done + len(items))
            items["row_blocks"], items["end"] = kept["row_blocks"], kept["end"]
            starts = ((core * rows.shape[1] + places)[:, None] * plan.row_blocks + np.arange(plan.row_blocks)) * length
            blocks = items["row_blocks"][:, : plan.row_blocks]
            blocks["list"][:, :, 0] = (count + starts) * (blocks["rows"] > 0)
            lists[core, places], rows[core, places] = kept_lists, items
            done += len(items)
    return np.concatenate([rows.reshape(-1).view(np.int32), lists.reshape(-1)])


def _kept_items(
    problem: KernelProblem, plan: ForwardPlan, table: np.ndarray, heads: list[np.ndarray], wanted: np.ndarray
) -> tuple[list[int], np.ndarray, np.ndarray]:
    """Return items of heads that share keys, on one core: how many of each head, the items, and their lists."""
    counts, items, words, firsts = [], [], [], []
    for mine in heads:
        blocks = mine["row_blocks"][:, : plan.row_blocks].reshape(-1)
        blocks = np.sort(blocks[blocks["rows"] > 0], order="start")
        visited = [kept_tiles.bare(table[one["list"][0] :][: one["last"] + 1], CODES, plan.ways) for one in blocks]
        groups: list[tuple[int, ...]] = [(a,) for a in range(len(blocks))]
        if plan.row_blocks > 1:
            groups = _alike([one // CODES for one in visited])
        tiles = [[(visited[a] // CODES).tolist() for a in group] for group in groups]
        groups = [groups[at] for at in kept_tiles.in_line(tiles)]
        counts.append(len(groups))
        for item, group in zip(mine.copy(), groups):
            group = group[::-1] if problem.call.rules.causal else group
            item["row_blocks"] = np.zeros((), LISTED_ITEM.dtype)["row_blocks"]
            item["row_blocks"]["first"] = 1
            item["row_blocks"][: len(group)] = blocks[list(group)]
            item["end"] = max(len(visited[a]) for a in group)
            items.append(item)
            words.append([visited[a] for a in group])
            firsts.append(_samples(problem, plan, item["row_blocks"], words[-1], wanted))
    lists = np.zeros((len(items), plan.row_blocks, tile_lists.length(problem, plan)), np.int32)
    tiles_of = [[(one // CODES).tolist() for one in of_item] for of_item in words]
    for place, visits in enumerate(kept_tiles.plan(tiles_of, firsts, kept_tiles.ways_of(plan.held, RING))):
        for a, (block, of_block) in enumerate(zip(items[place]["row_blocks"], visits)):
            first = words[place][a][of_block[0].entry]
            block["sample"], block["sample_tile"] = first // CODES, first % CODES - 1
            lists[place, a, : len(of_block)] = kept_tiles.joined(words[place][a], CODES, of_block, plan.ways)
    return counts, np.array(items), lists


def _alike(visited: list[np.ndarray]) -> list[tuple[int, ...]]:
    """Return row blocks in pairs that visit many tiles in common, and about as many. One may be left alone."""
    seen = np.zeros((len(visited), 1 + max(int(tiles.max()) for tiles in visited)), np.float32)
    for row, tiles in zip(seen, visited):
        row[tiles] = 1
    counts, (first, second) = seen.sum(1), np.triu_indices(len(visited), 1)
    alike = (seen @ seen.T)[first, second] - np.abs(counts[first] - counts[second]) / 4
    left, pairs = set(range(len(visited))), []
    for at in np.argsort(-alike, kind="stable"):
        pair = int(first[at]), int(second[at])
        if left.issuperset(pair):
            left.difference_update(pair)
            pairs.append(pair)
    return sorted(pairs + [(one,) for one in left])


def _samples(
    problem: KernelProblem, plan: ForwardPlan, blocks: np.ndarray, words: list[np.ndarray], wanted: np.ndarray
) -> list[list[int]]:
    """Return the tiles that serve each row block as its sample.

    They show as much as the one that `listed_table` chooses.
    """
    tiles = [one // CODES for one in words]
    values = [wanted[block["start"] // plan.rows] for block in blocks[: len(words)]]
    shared = np.intersect1d(tiles[0], tiles[-1]) if len(words) > 1 and not _nearest(problem) else tiles[0][:0]
    best = [max(shared, key=sum(values).__getitem__)] * len(words) if len(shared) else []
    best = best or [max(numbers, key=value.__getitem__) for numbers, value in zip(tiles, values)]
    return [numbers[value[numbers] >= value[one]].tolist() for numbers, value, one in zip(tiles, values, best)]


def listed_table(xp: Any, problem: KernelProblem, plan: ForwardPlan) -> Callable[[Array], Array]:
    """Return make(block_mask) -> the table, int32 (words,): rows of items, LISTED_ITEM, and behind them the lists."""
    work, codes, hidden, blocks, groups = of_lists(problem, plan)
    height, width, row_blocks = len(groups), codes.shape[2], plan.row_blocks
    planes, places = tile_lists.planes(problem), tile_lists.dealt(problem, height)
    lines, size = planes * height, tile_lists.length(problem, plan)
    of = np.array(
        [(*group, *(-1,) * (row_blocks - len(group))) for group in groups]
    ).T  # (row blocks of an item, items)
    exists = [xp.array(np.tile(one >= 0, planes).astype(int)) for one in of]
    column = np.arange(width)
    coded = tuple(
        [
            tile_lists.coded(xp, problem, plan, codes, np.stack(np.broadcast_arrays(one[:, None], column), -1))
            for one in of
        ]
    )
    wanted = [xp.array(np.tile(_wanted(problem, plan)[one], (planes, 1))) for one in of]
    # One constant, because a graph may not multiply by two, see `bridge.constants.unfolded`.
    hides, tiles = (xp.array(one[None]) for one in ((column == 0) * hidden, column))
    # A tile of both row blocks is loaded for the first one, to way 0. Others of the second one go to way 1.
    ways = plan.ways * 2 if plan.ways > 1 else 1
    words_of = tuple([xp.array((column * ways * CODES + a * CODES)[None]) for a in range(row_blocks)])
    stays = (ways // 2 - 1) * CODES
    rows = xp.array(np.arange(lines) * width)
    starts = [xp.array(work.words.size + (np.arange(lines) + a * lines) * size) for a in range(row_blocks)]
    fields = ("start", "rows", "cross", "after")

    def known(of_block: np.ndarray, field: str, *index: int) -> Array:
        """Return a field of all items' row blocks that no block mask changes."""
        values = blocks[field][(of_block, *index)]
        return xp.array(np.tile(np.where(of_block >= 0, values, 0), planes))

    constants = [
        tuple(
            [starts[a]]
            + [known(one, field) for field in fields]
            + [known(one, "distance", index) for index in range(2)]
        )
        for a, one in enumerate(of)
    ]
    # A bias by distance, or segment ids, make the nearest tile of each row block its sample.
    alone = width if _nearest(problem) else 0
    placed, names = tile_lists.placed(xp, lines, width), tile_lists.Names(xp, problem, LISTED_ITEM, height)
    of_planes = names.values
    words = [LISTED_ITEM.word("end"), *names.words]
    for a in range(row_blocks):
        words += [LISTED_ITEM.word("row_blocks", a, field) for field in ("first", "last", "sample", "sample_tile")]
        words += [LISTED_ITEM.word("row_blocks", a, field) for field in ("list", *fields)]
        words += [LISTED_ITEM.word("row_blocks", a, "distance") + i for i in range(2)]
    dealt = varlen.dealt(xp, words, places.ranks, LISTED_ITEM.words(names.own(places)))
    order = tile_lists.by_visits(xp, 1, lines, row_blocks * width)
    inactive = [LISTED_ITEM.word("row_blocks", a, "first") for a in range(row_blocks)]
    endings = [xp.array([int(word in inactive)]) for word in words]

    def make(block_mask):  # type: ignore[no-untyped-def]
        found, mine = (), ()
        for a in range(row_blocks):
            code = coded[a](block_mask)
            # A row block that sees nothing visits a tile with everything hidden.
            nothing = exists[a] * xp.as_int(xp.count_true(code > 0) == 0)
            code = code + xp.reshape(nothing, (-1, 1)) * hides
            found, mine = found + (code,), mine + (xp.as_int(code > 0),)
        # The samples come first in the lists. Without a bias both row blocks take a tile that both visit.
        samples, both = (xp.first_true(mine[0] * wanted[0]),), mine[0] * 0
        if row_blocks > 1:
            both = mine[0] * mine[1]
            meet = xp.as_int(xp.count_true(both > 0) > alone)
            shared = meet * xp.first_true(both * (wanted[0] + wanted[1]))
            samples = (
                shared + (1 - meet) * samples[0],
                shared + (1 - meet) * xp.first_true(mine[1] * wanted[1]),
            )
        firsts = ()
        for a in range(row_blocks):
            firsts = firsts + (xp.as_int(tiles == xp.reshape(samples[a], (-1, 1))),)
            both = both * (1 - firsts[a])
        # Then come the tiles of both, so that they have the same place in both lists.
        begun, lists, values, cost = xp.cumsum(both, 1), (), of_planes, exists[0] * 0
        shares, end = xp.reshape(xp.count_true(both > 0), (-1, 1)), exists[0] * 0
        for a in range(row_blocks):
            rest = mine[a] * (1 - firsts[a]) * (1 - both)
            place = both * begun + rest * (xp.cumsum(rest, 1) + shares) + mine[a] - 1
            word = words_of[a] + found[a]
            if a > 0:
                word = word + (both + firsts[0] * firsts[1]) * stays
            lists = lists + (placed(mine[a], place, word),)
            total = xp.count_true(mine[a] > 0)
            sample_tile = xp.take(xp.reshape(found[a], (-1,)), rows + samples[a], 0) - 1
            # Row blocks that do not exist visit nothing.
            first, last = 1 - exists[a], (total - 1) * exists[a]
            values = values + (first, last, samples[a], sample_tile * exists[a]) + constants[a]
            cost, end = cost + total, xp.maximum(end, total)
        values, ended = (end,) + values, ()
        for value, ending in zip(values, endings):
            ended = ended + (xp.concatenate((value, ending)),)
        result = (xp.reshape(dealt(ended, order(cost)), (-1,)),)
        for a in range(row_blocks):
            result = result + (xp.reshape(lists[a], (-1,)),)
        return xp.concatenate(result)

    return make


def _nearest(problem: KernelProblem) -> bool:
    """Return if the nearest tile is the best sample."""
    return problem.call.bias != "none" or problem.compares


def _wanted(problem: KernelProblem, plan: ForwardPlan) -> np.ndarray:
    """Return int (row blocks, key tiles): the larger, the better is the tile as a sample. 1 or more.

    It shows something to most rows, and then most keys. With a bias by distance the nearest tiles come first, and with
    segment ids the nearest ones of equals.
    """
    call, band = problem.call, problem.call.band
    count, keys = -(-call.seq_q // plan.rows), plan.keys
    starts = np.arange(0, call.seq_k, keys)
    result = np.ones((count, len(starts)), np.int64)
    for index in range(count):
        ends = [band.keys(row) for row in range(index * plan.rows, min((index + 1) * plan.rows, call.seq_q))]
        low, high = np.array(ends).T[..., None]
        seen = np.clip(np.minimum(high, starts + keys) - np.maximum(low, starts), 0, None)
        near = seen.sum(0)
        away = np.abs(starts // keys - (index * plan.rows + call.offset) // keys)
        if call.bias != "none":
            near = 4096 - away
        elif problem.compares:  # of tiles that show as much
            near = near - away
        result[index] += (seen > 0).sum(0) * 2 * 128 * 128 + np.maximum(near, 0)
    return result
