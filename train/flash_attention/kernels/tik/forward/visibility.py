"""Visibility of a tile, on its way to Vector: by position, and under segment ids where the ids are alike."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

from flash_attention.kernels.tik.common import mask, segments
from flash_attention.kernels.tik.common.double_buffer import each_epoch
from flash_attention.kernels.tik.common.tile_lists import PARTIAL
from flash_attention.kernels.tik.forward import softmax
from flash_attention.kernels.tik.forward.items import Item
from flash_attention.kernels.tik.forward.tiling import RING, ForwardPlan
from flash_attention.kernels.tik.hardware import FRACTAL
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, Scalar, Tensor


def initialise(core: Core[ForwardPlan]) -> None:
    """Write what tiles hold for hidden scores."""
    if core.problem.call.segments:
        core.fill(core.on.nothing[0], 0.0, 128)


def load_queries(core: Core[ForwardPlan], item: Item, a: int, epoch: Number) -> None:
    """Load segment ids, if there are some, of row block `a` for a run-time epoch."""
    if core.problem.call.segments:
        for slot in each_epoch(core, _of_queries(core, a), epoch):
            segments.load(core, slot, "segment_queries", item["batch"], item["start", a], core.plan.rows)


def _of_queries(core: Core[ForwardPlan], a: int) -> list[Tensor]:
    """Return the places of the ids of row block `a`, by epoch."""
    return [core.on.segment_queries[epoch * core.plan.row_blocks + a] for epoch in range(2)]


def sample_slot(core: Core[ForwardPlan]) -> int:
    """Return the slot of keys' ids that no unit of the loop has."""
    return RING * core.plan.streams


def load_keys(core: Core[ForwardPlan], item: Item, slot: int, tile: Number) -> None:
    """Load the segment ids of a tile of keys, if there are some."""
    if core.problem.call.segments:
        target, keys = core.on.segment_keys[slot], core.plan.keys
        segments.load(core, target, "segment_keys", item["batch"], tile * keys, keys)


def to_l0(core: Core[ForwardPlan], a: int, epoch: Number, slot: int) -> None:
    """Load ids of row block `a` and of the keys in a slot to L0."""
    for queries in each_epoch(core, _of_queries(core, a), epoch):
        core.tik.load2dv1(core.on.l0_segment_queries[0], queries, 0, core.plan.rows // 16, 1, 0, True)
    core.tik.load2dv1(core.on.l0_segment_keys[0], core.on.segment_keys[slot], 0, core.plan.columns, 1, 0, True)


def fetch(core: Core[ForwardPlan], number: Scalar, load: Callable[[], None]) -> None:
    """Run `mask.fetch_visible`. If segment ids decide inside the tile, they hide more of it, and PARTIAL leaves
    `number`.

    Args:
        load: records `to_l0`.
    """
    if not core.problem.call.segments:
        mask.fetch_visible(core, number)
        return
    tik, plan, visible = core.tik, core.plan, core.on.visible[0]
    partial = core.scalar("int32", "partial", number // PARTIAL)
    number.set_as(number % PARTIAL)
    with tik.if_scope(partial == 0):
        mask.fetch_visible(core, number)
    with tik.else_scope():
        load()
        _show_alike(core)
        with tik.if_scope(number > 0):
            part, column = core.on.scratch[0].reinterpret_cast_to("float16"), plan.rows * 16
            with tik.for_range(0, plan.columns, name="column") as index:
                source = core.on.tiles[0][(number - 1) * math.prod(core.gm["tiles"].shape[1:]) + index * column]
                tik.data_move(part, source, 0, 1, plan.rows, 0, 0)
                target = visible[index * column]
                core.binary("vec_min", target, target, part, column)
        with tik.else_scope():
            number.set_as(1)


def _show_alike(core: Core[ForwardPlan]) -> None:
    """Write the visibility by segment ids alone."""
    tik, on, rows, (sums, *_) = core.tik, core.on, core.plan.rows, core.on.apart
    columns, elements, half = sums.shape[0] // (rows * 16), sums.shape[0], core.plan.half_scores
    largest = float(softmax.limits(core.problem, np.ones(1))[0]) if half else 1.0
    shift = 2 * core.operand_shift
    with tik.for_range(0, core.plan.columns // columns, name="piece") as index:
        keys, (target, *sources) = (
            on.l0_segment_keys[0][index * (columns * FRACTAL)],
            [on.visible[0][index * elements + place * shift] for place in range(3)],
        )
        tik.mmad(sums, on.l0_segment_queries[0], keys, rows, 16, columns * 16, 0)
        core.from_l0c(sources[0 if half else 1], sums, elements // FRACTAL)
        if half:  # what is hidden is low enough, see segments.factors
            core.with_scalar("vec_adds", target, sources[0], largest, elements)
        else:
            core.with_scalar("vec_adds", sources[0], sources[1], largest, elements)
            core.with_row("vec_max", target, sources[0], on.nothing[0], elements)
