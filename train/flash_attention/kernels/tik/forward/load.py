"""Tiles of query, key and value to L1 and to the operands of the Cube.

In L1 every operand stands fractal by fractal in the order that the Cube needs. So one load2d call brings it to L0. The
bursts of the move from global memory make the order.
"""

from __future__ import annotations

from flash_attention.kernels.tik.common.double_buffer import each_epoch
from flash_attention.kernels.tik.common.tails import by_keys, by_rows, segment_keys
from flash_attention.kernels.tik.forward.tiling import ForwardPlan
from flash_attention.kernels.tik.hardware import FRACTAL, HALF_ROUND
from flash_attention.kernels.tik.recorder import Address, Core
from flash_attention.kernels.tik.tik_types import Number, Tensor


def load_key(core: Core[ForwardPlan], slot: list[Address], base: Number, tile: Number, length: Number | None) -> None:
    """Load key tile number `tile` of the head that starts at element `base`: per segment (head_dim / 16, keys, 16).

    Each tensor has one move, so that synchronisation by whole tensors has nothing to wait for in between. `length` is
    as in `by_keys`.
    """

    def emit(keys: Number) -> None:
        # The segment that is used first comes last: waiting for it covers the others, with one event for the tile.
        for segment, width in reversed(list(enumerate(core.plan.segments))):
            start = core.plan.segment_start(segment)
            have = segment_keys(core, keys, start, width)
            core.load_operand(slot[segment], "key", base + tile * (core.plan.keys * 16) + start * 16, have, width)

    by_keys(core, tile, emit, length)


def key_slot(core: Core[ForwardPlan], ring: int, way: Number = 0) -> list[Address]:
    """Return places of the segments of a key tile in L1. A slot of the ring has room for several tiles."""
    count, plan = len(core.plan.segments), core.plan
    tensors = core.on.key[ring * count : (ring + 1) * count]
    return [(tensor, way * (max(plan.segments) * plan.head_dim)) for tensor in tensors]


def load_sample(
    core: Core[ForwardPlan], slot: list[Address], base: Number, first_group: Number, stride: Number, segments: range
) -> None:
    """Load segments from groups of 16 keys. They stand `stride` groups apart, one move each."""
    place, widths = core.place("key"), core.plan.segments
    start = core.plan.segment_start(segments[0])
    # The tensors take turns, so that synchronisation by whole tensors waits for every other move only. The last move is
    # of the tensor that is used first, so waiting for it covers the others.
    for group in reversed(range(max(widths) // 16)):
        for segment in reversed([segment for segment in segments if group < widths[segment] // 16]):
            done = (core.plan.segment_start(segment) - start) // 16
            source = core.gm["key"], base + (first_group + stride * (done + group)) * FRACTAL
            tensor, at = slot[segment]
            core.move(
                (tensor, at + group * FRACTAL), source, place.columns, 16, place.column - 16, widths[segment] - 16
            )


def fetch_query(core: Core[ForwardPlan], stage: Tensor, base: Number, start: Number, rows: Number) -> None:
    """Load a row block from row `start` to the Unified Buffer: (head_dim / 16, rows, 16)."""
    height = core.plan.rows

    def emit(have: Number) -> None:
        if not isinstance(have, int) or have < height:
            core.fill(stage[2 * HALF_ROUND :], 0.0, height * core.plan.head_dim)
        core.load((stage, 2 * HALF_ROUND), "query", base + start * 16, have, height)

    by_rows(core, rows, emit)


def place_query(core: Core[ForwardPlan], slots: list[Tensor], stage: Tensor, epoch: Number) -> None:
    """Place a fetched row block times query_factor in slots[epoch]. It becomes (rows / 16, head_dim / 16, 16, 16)."""
    columns, height = core.depth_columns, core.plan.rows
    core.with_scalar("vec_muls", stage, stage[2 * HALF_ROUND :], core.problem.query_factor, height * core.plan.head_dim)
    for slot in each_epoch(core, slots, epoch):
        with core.tik.for_range(0, columns, name="query_column") as column:
            source = stage[column * (height * 16)]
            core.tik.data_move(slot[column * FRACTAL], source, 0, height // 16, 16, 0, (columns - 1) * 16)


# ---- L1 to L0
def query_to_l0(core: Core[ForwardPlan], slot: Tensor, terms: Tensor) -> None:
    """Load the left operand of the scores, and its terms."""
    core.tik.load2dv1(core.on.l0_query[0], slot, 0, core.plan.rows * core.plan.head_dim // FRACTAL, 1, 0, False)
    core.tik.load2dv1(core.on.l0_query_terms[0], terms, 0, core.plan.rows // 16, 1, 0, True)


def key_operand(core: Core[ForwardPlan], segment: int) -> Tensor:
    """Return the right operand of the scores of a segment."""
    return core.on.l0_key[segment % 2]


def key_to_l0(core: Core[ForwardPlan], slot: list[Address], segment: int) -> None:
    """Load the right operand of the scores: one segment of a key tile."""
    size = core.plan.segments[segment] * core.plan.head_dim // FRACTAL
    tensor, at = slot[segment]
    core.tik.load2dv1(key_operand(core, segment), tensor[at], 0, size, 1, 0, False)


def probability_to_l0(core: Core[ForwardPlan], slot: Tensor, segment: int) -> Tensor:
    """Return the left operand of the output: the probabilities of one segment."""
    operand, width = core.on.l0_probability[0], core.plan.segments[segment]
    start = core.plan.segment_start(segment) * core.plan.rows // FRACTAL
    core.tik.load2dv1(operand, slot, start, width * core.plan.rows // FRACTAL, 1, 0, False)
    return operand


def probability_to_l1(core: Core[ForwardPlan], slot: Tensor, column: int, columns: int, half: Tensor) -> None:
    """Move fractal columns (columns, rows, 16) to their places in L1: per segment (rows / 16, keys / 16)."""
    plan, rows, done = core.plan, core.plan.rows, 0
    for segment, first, count in plan.by_segment(column, columns):
        start, gap = plan.segment_start(segment) * rows, plan.segments[segment] // 16 - 1
        for index in range(first, first + count):
            core.tik.data_move(slot[start + index * FRACTAL], half[done * rows * 16], 0, rows // 16, 16, 0, gap * 16)
            done += 1
