"""Visibility of a tile, on its way to Vector: by position, and under segment ids where the ids are alike."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from flash_attention.kernels.tik.common import mask, segments
from flash_attention.kernels.tik.common.double_buffer import each_epoch
from flash_attention.kernels.tik.forward import softmax
from flash_attention.kernels.tik.forward.items import Item
from flash_attention.kernels.tik.forward.tiling import RING, ForwardPlan
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, Scalar, Tensor


def load_queries(core: Core[ForwardPlan], item: Item, a: int, epoch: Number) -> None:
    """Load segment ids, if there are some, of row block `a` for a run-time epoch."""
    if core.problem.compares:
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
    if core.problem.compares:
        target, keys = core.on.segment_keys[slot], core.plan.keys
        segments.load(core, target, "segment_keys", item["batch"], tile * keys, keys)


def to_l0(core: Core[ForwardPlan], a: int, epoch: Number, slot: int) -> None:
    """Load ids of row block `a` and of the keys in a slot to L0."""
    for queries in each_epoch(core, _of_queries(core, a), epoch):
        core.tik.load2dv1(core.on.l0_segment_queries[0], queries, 0, core.plan.rows // 16, 1, 0, True)
    core.tik.load2dv1(core.on.l0_segment_keys[0], core.on.segment_keys[slot], 0, core.plan.columns, 1, 0, True)


def fetch(core: Core[ForwardPlan], number: Scalar, load: Callable[[], None]) -> None:
    """Run `mask.fetch_visible`, or with segment ids `segments.fetch_visible`.

    Args:
        load: records `to_l0`.
    """
    if not core.problem.compares:
        mask.fetch_visible(core, number)
        return
    limit = float(softmax.limits(core.problem, np.ones(1))[0]) if core.plan.half_scores else None
    segments.fetch_visible(core, number, load, core.on.scratch[0], limit)
