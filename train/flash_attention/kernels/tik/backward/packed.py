"""The work table of the backward operator for packed sequences: the formulas of `work` for lengths that are data.

The key tiles of all sequences, longest first, are dealt to the slots of a head in turns that change direction, as in
variant "split": a slot has its accumulators and one core, so that the order of sums does not vary. Without a limit to
the left, tiles further on in a sequence have no more query tiles than those before, and so come later.
"""

from __future__ import annotations

from typing import Callable

import numpy as np

from flash_attention.kernels.tik import packed
from flash_attention.kernels.tik.backward.cost import ITEM_STEPS
from flash_attention.kernels.tik.backward.plan import BackwardPlan
from flash_attention.kernels.tik.backward.record import PACKED_ITEM
from flash_attention.kernels.tik.packed import FAR, Array, Limits, Sequences
from flash_attention.kernels.tik.problem import KernelProblem


def key_tiles(problem: KernelProblem, plan: BackwardPlan) -> int:
    """Key tiles of a key/value head at most. Every sequence with queries has one, so that somebody writes d_query."""
    return packed.capacity(problem.seq_k + problem.sequences, problem.sequences, plan.keys)


def writes_d_query(problem: KernelProblem, slots: int) -> bool:
    """See BackwardSplit."""
    return slots == 1 and Limits.of(problem).left == FAR


def slots(problem: KernelProblem, plan: BackwardPlan, most: int) -> int:
    """The fewest slots, up to `most`, that come within 5 % of the best balance of the cores."""
    most = max(1, min(most, key_tiles(problem, plan), problem.cores))
    spans = [-(-problem.kv_heads * count // problem.cores) / count for count in range(1, most + 1)]
    return next(count for count, span in enumerate(spans, 1) if span <= 1.05 * min(spans))


def deal(problem: KernelProblem, plan: BackwardPlan, slots: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(rank, key/value head, slot) of the item in every place of the table, (cores, items) each; see forward.packed."""
    count = key_tiles(problem, plan)
    units = problem.kv_heads * slots
    cores = min(problem.cores, units)
    turns = -(-count // slots)
    place = np.arange(-(-units // cores) * turns)[None, :]
    unit, turn = place // turns * cores + np.arange(cores)[:, None], place % turns
    slot = unit % slots
    rank = turn * slots + np.where(turn % 2 == 0, slot, slots - 1 - slot)
    exists = (unit < units) & (rank < count)
    rank = np.where(exists, rank, count)
    order = np.argsort(rank, axis=1, kind="stable")  # what does not exist comes last on every core
    parts = rank, np.where(exists, unit // slots, 0), np.where(exists, slot, 0)
    rank, head, slot = (np.take_along_axis(part, order, 1) for part in parts)
    return rank, head, slot


def table(xp, problem: KernelProblem, plan: BackwardPlan, slots: int) -> Callable[[tuple], Array]:
    """make(sequences) -> the table, int32 (cores, items, PACKED_ITEM.size)."""
    items = key_tiles(problem, plan) + 1  # one more than there can be: the last does not exist
    ranks, heads, of_slots = deal(problem, plan, slots)
    own = PACKED_ITEM.zeros(*ranks.shape)
    own["head"] = own["slope"] = heads * problem.group
    own["kv_head"], own["slot"] = heads, of_slots
    of_sequence = len(Sequences._fields)
    fields = ["tile", "first", "count", "steps", "cross", "before", "final", "final_end"]
    if problem.slope_stride:
        fields.append("slope")
    words = [*(PACKED_ITEM.word(field) for field in fields), *PACKED_ITEM.single("sequence").values()]
    ranked, tiles = packed.ranked(xp, items, words, ranks, PACKED_ITEM.words(own)), packed.tiles(xp, problem, items)
    left, right, prefixed = Limits.of(problem)
    whole, rows, group = plan.keys, plan.rows, problem.group
    signed, slope_stride = problem.bias == "alibi" and not problem.rules.causal, problem.slope_stride

    def make(described):
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
