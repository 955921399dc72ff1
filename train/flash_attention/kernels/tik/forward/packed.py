"""The work table of the forward operator for packed sequences: the formulas of `work` for lengths that are data.

Items are the row blocks of every sequence and head, longest first, dealt to the cores in turns that change direction:
each core has as many items as any other, and about as much to do.
"""

from __future__ import annotations

from typing import Callable

import numpy as np

from flash_attention.kernels.tik import packed
from flash_attention.kernels.tik.forward.plan import ForwardPlan
from flash_attention.kernels.tik.forward.record import ITEM_COST, MOST_STRIDE, PACKED_ITEM
from flash_attention.kernels.tik.packed import FAR, Array, Limits, Sequences
from flash_attention.kernels.tik.problem import KernelProblem

_OF_ROW_BLOCK = ("start", "rows", "first", "last", "strided", "sample", "stride", "cross", "after")


def groups(problem: KernelProblem, plan: ForwardPlan) -> int:
    """Work items of a head at most."""
    return packed.capacity(problem.seq_q, problem.sequences, plan.rows * plan.row_blocks)


def deal(problem: KernelProblem, plan: ForwardPlan) -> tuple[np.ndarray, np.ndarray]:
    """(rank, head) of the item in every place of the table, (cores, items) each; the rank of nothing is the last."""
    count = groups(problem, plan)
    total = count * problem.heads
    cores = min(problem.cores, total)
    turn, core = np.arange(-(-total // cores))[None, :], np.arange(cores)[:, None]
    number = turn * cores + np.where(turn % 2 == 0, core, cores - 1 - core)
    exists = number < total
    return np.where(exists, number // problem.heads, count), np.where(exists, number % problem.heads, 0)


def table(xp, problem: KernelProblem, plan: ForwardPlan) -> Callable[[tuple], Array]:
    """make(sequences) -> the table, int32 (cores, items, PACKED_ITEM.size)."""
    count = groups(problem, plan) + 1  # one more than there can be: the last does not exist
    rows, row_blocks = plan.rows, plan.row_blocks
    ranks, heads = deal(problem, plan)
    own = PACKED_ITEM.zeros(*ranks.shape)
    own["head"] = own["slope"] = heads
    own["kv_head"] = heads // problem.group
    of_sequence = len(Sequences._fields)
    words = [PACKED_ITEM.word(name) for name in ("begin", "end", *(["slope"] if problem.slope_stride else []))]
    words += PACKED_ITEM.single("row_blocks", 0, "sequence").values()
    for a in range(row_blocks):
        words += [PACKED_ITEM.word("row_blocks", a, name) for name in _OF_ROW_BLOCK]
    ranked, tiles = packed.ranked(xp, count, words, ranks, PACKED_ITEM.words(own)), packed.tiles(xp, problem, count)
    row_block, unit = _row_block(xp, problem, plan), rows * row_blocks
    # As in `work`: of two row blocks the one that sees more keys first.
    swaps, slope_stride = problem.rules.causal and row_blocks == 2, problem.slope_stride

    def make(described):
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


def _row_block(xp, problem: KernelProblem, plan: ForwardPlan):
    """row_block(start, rows, position, keys, prefix) -> the words of a row block, as in _OF_ROW_BLOCK.

    Keys that all of its rows see give the sample of the row maxima, spread over them; where there are too few, the tile
    that shows something to most rows does.
    """
    left, right, prefixed = Limits.of(problem)
    whole, columns, stride_at_most, gaps = plan.keys, plan.keys // 16, MOST_STRIDE, max(plan.keys // 16 - 1, 1)
    spread, by_distance = problem.bias == "none" and columns > 1, problem.bias == "alibi"
    signed, rows_of_tile = by_distance and not problem.rules.causal, plan.rows

    def bounds(position, keys, prefix):
        """Keys [low, high) that the query at a position sees."""
        low = keys * 0 if left == FAR else xp.minimum(xp.maximum(position - left, 0), keys)
        high = keys if right == FAR else xp.minimum(xp.maximum(position + (right + 1), 0), keys)
        return low, xp.maximum(high, xp.minimum(prefix, keys)) if prefixed else high

    def seen(tile, rows, position, keys, prefix):
        """Rows that see a key of a tile."""
        stop = rows if left == FAR else xp.minimum((tile + 1) * whole + left - position, rows)
        start = rows * 0 if right == FAR else xp.maximum(tile * whole - right - position, 0)
        if prefixed:
            start = start * xp.as_int(prefix <= tile * whole)
        return xp.maximum(stop - start, 0) * xp.as_int(tile * whole < keys)

    def make(start, rows, position, keys, prefix):
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
