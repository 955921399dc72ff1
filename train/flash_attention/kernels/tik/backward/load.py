"""Loads of the main backward kernel: keys and values of an item, rows of its steps."""

from __future__ import annotations

import contextlib
import functools

import numpy as np

from flash_attention.kernels.tik.backward import preprocess
from flash_attention.kernels.tik.backward.items import KeyItem, Unit
from flash_attention.kernels.tik.backward.tiling import BackwardPlan, lowers_on_cube
from flash_attention.kernels.tik.common import alibi, dropout, mask, score_terms, segments, softcap
from flash_attention.kernels.tik.common.double_buffer import each_epoch
from flash_attention.kernels.tik.common.score_terms import TERMS, Planes
from flash_attention.kernels.tik.common.tails import by_keys, by_rows, if_any, segment_keys, stored_rows
from flash_attention.kernels.tik.common.tile_lists import PARTIAL
from flash_attention.kernels.tik.hardware import FRACTAL, HALF_ROUND
from flash_attention.kernels.tik.layout import row_term_kinds, row_terms, row_terms_shape
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, Scalar, Tensor


class Loads:
    """Record the loads of one core.

    Attributes:
        number, distance: run-time numbers of the visibility and distance tiles of the next scores; None if the
            kernel has no such tiles.
        apart: run-time flag: the Cube lowers scores of other segments in that tile; None if it never does.
    """

    def __init__(self, core: Core[BackwardPlan], item: KeyItem, numbered: bool, signed: bool):
        self.core, self.item = core, item
        self.number = core.scalar("int32", "number", 0) if numbered else None
        self.distance = core.scalar("int32", "distance", 0) if signed else None
        lowers = core.problem.compares and lowers_on_cube(core.problem)
        self.apart = core.scalar("int32", "apart", 0) if lowers else None

    def constants(self, tiles: np.ndarray, distances: np.ndarray) -> None:
        """Record the loads that happen once: constants, and numbers for places that short tiles leave unwritten."""
        core, tik, plan, on = self.core, self.core.tik, self.core.plan, self.core.on
        for name in ("zeros", "term", "slope_value"):
            for vector in on.copies(name):
                core.fill(vector, 0.0, 128)
        softcap.initialise(core, 1.0)
        segments.initialise(core)
        zeros = on.probability_half[0]
        many = zeros.shape[0] // 16 * 16
        core.fill(zeros, 0.0, many)
        cleared = ["key_terms"] if on.copies("key_terms") else []
        cleared += ["query", "scaled_d_output"] if core.tail_rows else []
        cleared += ["logsumexp_terms", "delta_terms"] if core.tail_rows or row_terms(core.problem) < TERMS else []
        cleared += ["value"] if core.tail_keys else []
        # Backwards, because waiting for the slot that is loaded first covers the others.
        for name in reversed(cleared):
            for slot in reversed(on.copies(name)):
                size = slot.shape[0]
                for first in range(0, size, many):
                    tik.data_move(slot[first], zeros, 0, 1, min(many, size - first) // 16, 0, 0)
        if core.tail_keys or core.tail_rows or core.problem.sequences:
            for name in ("hidden", "bias"):
                for buffer in on.copies(name):
                    core.fill(buffer, 0.0, plan.area)
            for buffer in on.copies("keep"):
                core.fill(buffer.reinterpret_cast_to("uint16"), 0, plan.area // 16)
        if on.copies("lowering"):
            self._fill_lowering(zeros)
        stage = on.d_score_half[0]
        score_terms.fill_key_terms(core, stage)
        tik.data_move(on.one_terms[0], stage, 0, 1, 16, 0, 0)
        for slot in on.copies("key_terms"):
            for fractal in range(plan.columns):
                tik.data_move(slot[fractal * FRACTAL], stage, 0, 1, 16, 0, 0)
        core.repeat_fractal(on.l0_ones[0], on.one_terms[0], plan.columns, True)
        for name, tiles_of in (("tiles", tiles), ("distances", distances)):
            if len(tiles_of):
                core.load_constant(name, tiles_of)
        if plan.bias_chunks:
            tik.data_move(on.one_hot[0], core.gm["one_hot"], 0, 1, 16 * 16, 0, 0)

    def _fill_lowering(self, zeros: Tensor) -> None:
        """Put -LOWEST on the diagonal of (rows / 16, rows / 16) fractals."""
        core, tik, groups = self.core, self.core.tik, self.core.plan.rows // 16
        target, diagonal = core.on.lowering[0], core.on.d_score_half[0]
        core.fill(diagonal, 0.0, FRACTAL)
        for half in range(2):  # eight rows of the fractal are a repeat
            lanes = sum(1 << (17 * row + 8 * half) for row in range(8))
            tik.vec_dup([lanes >> 64, lanes & (2**64 - 1)], diagonal[half * 128], -mask.LOWEST, 1, 8)
        for fractal in range(groups * groups):
            source = zeros if fractal % (groups + 1) else diagonal
            tik.data_move(target[fractal * FRACTAL], source, 0, 1, FRACTAL // 16, 0, 0)

    def fetch_keys(self, item: KeyItem, epoch: Number) -> None:
        """Fetch the values of an item to their slots, and its keys for `place_keys`. The epoch is a run-time 0 or 1."""
        core, plan = self.core, self.core.plan
        on = core.on
        stage, tile = on.key_stage[0], item["tile"]
        starts = self._starts(("key", "value"), item["kv_head"], item, tile * (plan.keys * 16))

        def fetch(have: Number) -> None:
            if not isinstance(have, int) or have < plan.keys:
                core.fill(stage[2 * HALF_ROUND :], 0.0, plan.keys * plan.head_dim)
            with if_any(core, have):
                core.load((stage, 2 * HALF_ROUND), "key", starts["key"], have, plan.keys)
            for slot in each_epoch(core, on.value, epoch):
                for index, width in reversed(list(enumerate(plan.segments))):
                    first = plan.segment_start(index)
                    some = segment_keys(core, have, first, width)
                    core.load_operand(
                        (slot, first * plan.value_dim), "value", starts["value"] + first * 16, some, width
                    )

        if core.problem.compares:
            for slot in each_epoch(core, on.segment_keys, epoch):
                segments.load(core, slot, "segment_keys", item["batch"], tile * plan.keys, plan.keys)
        by_keys(core, tile, fetch, item.keys)

    def _starts(self, names: tuple[str, ...], head: Number, item: KeyItem, offset: Number) -> dict[str, Scalar]:
        """Return the first elements of a tile in matrices of `names`. It is one scalar if they lie alike."""
        core, starts = self.core, {}
        for name in names:
            place = core.place(name)
            alike = place.batch, place.head
            if alike not in starts:
                first = core.start(name, head, item.origin(name)) + offset
                starts[alike] = core.scalar("int64", f"{name}_start", first)
        return {name: starts[core.place(name).batch, core.place(name).head] for name in names}

    def place_keys(self, epoch: Number) -> None:
        """Take the keys that were fetched to the slots of a run-time epoch.

        They are multiplied by the power of two in the scale. L1 holds them twice: for the scores, and for the gradients
        of the queries.
        """
        core, tik, plan = self.core, self.core.tik, self.core.plan
        on, columns, stage = core.on, self.core.depth_columns, core.on.key_stage[0]
        fetched = stage[2 * HALF_ROUND :]  # half a round of the banks away, so that this takes half the time
        core.with_scalar("vec_muls", stage, fetched, core.problem.query_factor, plan.keys * plan.head_dim)
        for key, key_rows in each_epoch(core, list(zip(on.key, on.key_rows)), epoch):
            # Backwards, because all operands of the item before have been read once its last one has.
            for first, count in reversed([columns for part in plan.query_parts for columns in plan.key_parts(part)]):
                for column in reversed(range(first, first + count)):
                    target = key_rows[first * plan.keys * 16 + (column - first) * FRACTAL]
                    tik.data_move(target, stage[column * plan.keys * 16], 0, plan.columns, 16, 0, (count - 1) * 16)
            for index, width in reversed(list(enumerate(plan.segments))):
                first = plan.segment_start(index)
                gap = plan.keys - width
                tik.data_move(key[first * plan.head_dim], stage[first * 16], 0, columns, width, gap, 0)

    def rows(self, unit: Unit) -> None:
        """Load query, output gradient and row terms of a step. The first two are (head_dim / 16, rows, 16).

        Each is one move, so that synchronisation by whole tensors has nothing to wait for in between.
        """
        core, tik, plan, item = self.core, self.core.tik, self.core.plan, self.item
        on, place = core.on, unit.position
        head = item["head"] + unit.member

        def emit(have: Number) -> None:
            _, heads, groups, terms, _ = row_terms_shape(core.problem)
            at = unit.tile * (plan.rows * 16)

            starts = self._starts(("query", "scaled_d_output"), head, item, at)

            def tensor(name: str) -> None:
                slot = on.copies(name)[place]
                way = 0 if unit.place is None else unit.place.way * plan.row_elements(name)
                core.load_operand((slot, way), name, starts[name], have, plan.rows)

            def keep(name: str) -> None:
                kept = on.copies(f"kept_{name}")[0]
                size = kept.shape[0] // (item.kept[1] - item.kept[0])
                core.load((kept, (unit.tile - item.kept[0]) * size), name, starts[name], plan.rows, plan.rows)

            def load(slot: Tensor, kind: int) -> None:
                first = core.wide(head + kind * heads, groups * terms * 16) + unit.tile * (plan.rows * terms)
                source, gap = core.gm["row_lanes"][item.stored(first, terms)], TERMS - terms
                if isinstance(have, int):
                    tik.data_move(slot, source, 0, stored_rows(core, have) // 16, terms, 0, gap)
                    return
                with tik.if_scope(have > 0):
                    tik.data_move(slot, source, 0, plan.rows // 16, terms, 0, gap)
                with tik.else_scope():  # a sequence without queries; the ramp begins with zeros
                    tik.data_move(slot, core.gm["tiles"], 0, plan.rows // 16, terms, 0, gap)

            # The query in the slots was read last, so waiting until it may be overwritten covers the other operands.
            # The Cube reads the terms of the scores first. They are loaded last, so waiting for them covers the rest.
            loaded = [unit.kept < 0] if unit.kept is not None else []
            loaded += [unit.place.stays == 0] if unit.place is not None else []
            with core.when(*loaded) if loaded else contextlib.nullcontext():
                tensor("query")
                tensor("scaled_d_output")
            if unit.kept is not None and item.fresh is not None:
                with core.when(item.fresh > 0, *item.keeps(unit)):
                    keep("query")
                    keep("scaled_d_output")
            load(on.delta_terms[place], preprocess.DELTA)
            if score_terms.is_dynamic(core.problem):
                planes = Planes(item.plane("bias", unit), item.plane("mask", unit))
                score_terms.load_key_terms(core, on.key_terms[place], planes, item["tile"])
            if row_term_kinds(core.problem) == 2:
                load(on.logsumexp_terms[place], preprocess.SCORE)
            else:
                with tik.if_scope(unit.tile < item["cross"]):
                    load(on.logsumexp_terms[place], preprocess.AFTER)
                with tik.else_scope():
                    load(on.logsumexp_terms[place], preprocess.SCORE)

        if unit.number is not None and core.problem.compares:
            with tik.if_scope(unit.number >= PARTIAL):
                slot = on.segment_queries[place]
                segments.load(core, slot, "segment_queries", item["batch"], unit.tile * plan.rows, plan.rows)
        by_rows(core, unit.rows, emit)

    def scores_extra(self, unit: Unit, epoch: Number) -> None:
        """Load masks, bias, distances and keep bits of the next scores. The epoch is of the item."""
        core, item, problem = self.core, self.item, self.core.problem
        if self.number is not None:
            item.tile_number(self.number, unit)
            if self.apart is not None:
                self.apart.set_as(self.number // PARTIAL)
                self.number.set_as(self.number % PARTIAL)
            elif problem.compares:
                load = functools.partial(self._ids_to_l0, unit, epoch)
                segments.fetch_visible(core, self.number, load, core.on.visible_column[0], None)
            elif not lowers_on_cube(problem):
                mask.fetch_visible(core, self.number)
        if self.distance is not None:
            item.distance_number(self.distance, unit.tile)
            alibi.fetch_distance(core, self.distance)
        start = unit.tile * core.plan.rows
        if problem.mask == "per_score":
            mask.fetch_plane(core, "mask", "hidden", item.plane("mask", unit), item["tile"], start, unit.rows)
        if problem.call.bias == "per_score":
            mask.fetch_plane(core, "bias", "bias", item.plane("bias", unit), item["tile"], start, unit.rows)
        if problem.call.dropout_threshold:
            dropout.fetch_keep(core, item, item["head"] + unit.member, item["tile"], start, unit.rows)

    def _ids_to_l0(self, unit: Unit, epoch: Number) -> None:
        """Load segment ids of a step to L0."""
        core, on, plan = self.core, self.core.on, self.core.plan
        queries = on.segment_queries[unit.position]
        core.tik.load2dv1(on.l0_segment_queries[0], queries, 0, plan.rows // 16, 1, 0, True)
        for keys in each_epoch(core, on.segment_keys, epoch):
            core.tik.load2dv1(on.l0_segment_keys[0], keys, 0, plan.columns, 1, 0, True)
