"""The forward operator: output and logsumexp of attention, tile by tile.

Dao, "FlashAttention-2" (2023), algorithm 1, with the changes that this chip asks for:

    for item in work of this core:                              schedule.py
        Q = up to two row blocks of queries                     load.py
        m = row maxima over a sample of keys                    row_reference.py; score_bound.py: do all exponents fit?
        for K, V in key tiles that Q sees:                      here, load.py
            S = Q K^T - m, bias and masks by key                row_reference.scores, common/score_terms.py
            P = exp(S), masks and dropout by score              softmax.py, common/mask.py, common/dropout.py
            O += P V, l += P 1                                  here
        O /= l, logsumexp = m + ln l, is m too low for l?       store.py
    once more, if it is: m = row maxima over all keys           here

So O never leaves the accumulator memory of the Cube. docs/kernels.md draws the pipeline, tiling.py chooses the tiles.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Callable

from flash_attention.kernels.tik.common import (
    alibi,
    dropout,
    kept_tiles,
    mask,
    score_terms,
    segments,
    tails,
    tile_lists,
)
from flash_attention.kernels.tik.common.band import BandAtRunTime
from flash_attention.kernels.tik.common.double_buffer import each_epoch
from flash_attention.kernels.tik.common.table_row import chunks, load_chunk
from flash_attention.kernels.tik.forward import load, row_reference, score_bound, softmax, store, visibility
from flash_attention.kernels.tik.forward.items import Item
from flash_attention.kernels.tik.forward.schedule import choose
from flash_attention.kernels.tik.forward.tiling import ITEMS_PER_CHUNK, RING, ForwardPlan
from flash_attention.kernels.tik.hardware import FRACTAL, HALF_ROUND, SIMD_LANES
from flash_attention.kernels.tik.layout import BLOCK, SINK_LANES
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, Scalar, Scope, Step, Tensor
from flash_attention.kernels.tik.varlen import BLOCK_ROW

LAG = 2  # units between the scores of a tile and its part of the output


class Forward:
    """The forward kernel: passes over the work items of a core, a loop over the key tiles of each.

    Scores run two units ahead of the output and probabilities one unit, so that no pipe waits for another in the steady
    state. docs/kernels.md draws the pipeline.
    """

    def __init__(self, problem: KernelProblem):
        self.problem = problem
        choice = choose(problem)
        self.plan, self.split, self.buffers = choice.plan, choice.split, choice.buffers
        self.cores, self.units = self.split.cores, (max(self.split.units), sum(self.split.units))
        self.flags = self.split.cores * self.split.items * 2 * 8
        self.numbered, self.whole = len(self.split.tiles) > 0, self.split.whole
        # If the memory is the limit, values are loaded as soon as the old content of their slot is used up. The first
        # values of an item are loaded before its loop. Otherwise this would only take more events, and loads for a
        # single tile of scores would have to wait behind the values.
        per_tile = "per_score" in (self.problem.mask, self.problem.call.bias) or self.problem.call.dropout_threshold > 0
        self.eager = self.plan.memory_bound and not per_tile
        self.value_ahead = RING - -(-LAG // self.plan.row_blocks) if self.eager else 0

    def emit(self, core: Core[ForwardPlan], index: Number) -> None:
        """Emit the statements of one core."""
        self.core, self.tik, self.index = core, core.tik, index
        tik = core.tik
        self._constants()
        if self.problem.sequences:
            core.band = BandAtRunTime(core)
        self.current, self.next = Item(core, "current", False), Item(core, "next", True)
        self.epoch = core.scalar("int32", "epoch", 0)  # parity of the item in `next`
        names = ("sweeps", "sweep_tiles", "tile", "number", "distance")
        sweeps, sweep_tiles, tile, number, distance = (core.scalar("int32", name) for name in names)
        code = core.scalar("int32", "sweep_code") if self.problem.listed else None
        base = core.scalar("int64", "sample_base")
        same = core.value_columns == core.depth_columns
        value_base = base if same else core.scalar("int64", "next_value_base")
        self.slopes = row_reference.QuerySlopes(core) if self.problem.call.bias == "alibi" else None
        self.current_slopes = row_reference.QuerySlopes(core) if len(self.split.distances) else None
        self.score_bound = (
            score_bound.ScoreBound(core) if score_bound.is_needed(self.problem, self.plan.half_scores) else None
        )
        current = (core.scalar("int32", f"current_{field}", 0) for field in score_bound.Verdict._fields)
        self.verdict = score_bound.Verdict(*current) if self.score_bound else None
        # First elements of the item's keys and values in global memory.
        self.base = core.scalar("int64", "base")
        self.value_base = self.base if same else core.scalar("int64", "value_base")
        self.numbers = [core.scalar("int32", f"unit_number_{a}") for a in range(self.plan.row_blocks)]
        # For each unit of the loop body: 1 if its row block visits its key tile, else 0. It is also 0 behind the last
        # tile of an item, and so before the first tile of the next item.
        self.visits = [core.scalar("int32", f"visits_{unit}", 0) for unit in range(RING * self.plan.row_blocks)]
        # Under a block mask, of each unit of the loop body: its tile, the code, the place of the tile in its slot of
        # the ring, and the place of the values that the Cube reads.
        units = RING * self.plan.streams
        listed = range(units if self.problem.listed else 0)
        self.tiles = [core.scalar("int32", f"unit_tile_{unit}", 0) for unit in listed]
        self.codes = [core.scalar("int32", f"unit_code_{unit}", 0) for unit in listed]
        self.kept = [kept_tiles.Place.of(core, unit) for unit in listed if self.plan.ways > 1]
        self.ways: list[Number] = [place.way for place in self.kept] or [0] * units
        self.moved = [core.scalar("int32", f"value_way_{unit}", 0) for unit in range(len(self.kept))]
        self.value_ways: list[Number] = [*self.moved] or [0] * units
        self.crossings = [core.scalar("int32", f"unit_distance_{a}") for a in range(self.plan.row_blocks)]
        failed = core.scalar("int32", "failed", 1)
        # Row blocks that do not exist have not failed.
        core.fill(core.on.flags[0], 0, ITEMS_PER_CHUNK * 16)
        for start, count in chunks(self.split.items):
            target = core.gm["flags"][(index * self.split.items + start) * 16]
            tik.data_move(target, core.on.flags[0], 0, 1, count * 2, 0, 0)
        with tik.for_range(0, 2, name="attempt") as attempt:
            self.search = row_reference.Search(
                *(attempt, sweeps, sweep_tiles, tile, number, distance, code, self.ways, base, value_base),
                numbered=self.numbered,
                sample_misses=self.split.sample_misses,
                slopes=self.slopes if self.current_slopes else None,
                score_bound=self.score_bound,
            )
            with tik.if_scope(failed > 0):
                self._pass()
            with tik.if_scope(attempt == 0):
                # How many row blocks need references over all keys.
                failed.set_as(0)
                flag = core.scalar("int32", "scanned")
                for start, count in chunks(self.split.items):
                    self._load_flags(start, count)
                    with tik.for_range(0, count * 2, name=f"scan_{start}") as row:
                        flag.set_as(core.on.flags[0][row * 8])
                        with tik.if_scope(flag >= store.SATURATED):
                            failed.set_as(failed + 1)

    # ---- start
    def _constants(self) -> None:
        core, plan = self.core, self.plan
        for part in core.buffers:
            if part.memory == "UB" and part.size == 128 and part.dtype in SIMD_LANES:  # keep bits are no vector
                for vector in core.on.copies(part.name):
                    core.fill(vector, 0.0, 128)
        if self.problem.sequences:
            self._clear_stored_rows()
        for flag in core.on.flag:
            core.fill(flag, 0, 8)
        store.initialise(core)
        softmax.initialise(core)
        row_reference.initialise(core)
        segments.initialise(core)
        stage = core.on.stage
        # Short tiles leave part of a slot as it was; it must hold numbers from the start.
        if score_bound.is_needed(self.problem, plan.half_scores):
            for buffer in stage:
                core.fill(buffer, 0.0, buffer.shape[0])
        if core.tail_keys:
            block = min(plan.rows, plan.keys) * plan.head_dim // 16
            core.fill(stage[0], 0.0, block * 16)
            for name in ("key", "value", "sample_key", "norm_rows"):
                for slot in core.on.copies(name):
                    blocks = slot.shape[0] // 16
                    for first in range(0, blocks, block):
                        self.tik.data_move(slot[first * 16], stage[0], 0, 1, min(block, blocks - first), 0, 0)
        if core.tail_keys or core.tail_rows or self.problem.sequences:
            for name in ("hidden", "bias"):
                for buffer in core.on.copies(name):
                    core.fill(buffer, 0.0, plan.rows * plan.keys)
            for buffer in core.on.copies("keep"):
                words = buffer.reinterpret_cast_to("uint16")
                core.fill(words, 0, plan.rows * plan.keys // 16)
        score_terms.initialise(core)
        core.clear_padding("output", stage[0], self.index, self.split.cores)
        core.fill(stage[-1], 1.0, FRACTAL)
        fractal = core.on.fractals[0]
        self.tik.data_move(fractal, stage[-1], 0, 1, 16, 0, 0)
        core.repeat_fractal(core.on.l0_ones[0], fractal, max(plan.segments) // 16, False)
        for name, tiles_of in (("tiles", self.split.tiles), ("distances", self.split.distances)):
            if len(tiles_of):
                core.load_constant(name, tiles_of)
        if self.problem.call.bias == "alibi":
            alibi.initialise(core)

    def _clear_stored_rows(self) -> None:
        """Clear the logsumexp of stored rows that no row block has. Each core does its share."""
        core, tik, (words, *_), zeros = self.core, self.tik, self.core.on.flag, self.core.on.row_lse[0]
        blocks, fields = core.gm["blocks"].shape
        block, have = core.scalar("int32", "cleared_block"), core.scalar("int32", "cleared_from")
        with tik.for_range(0, -(-blocks // self.split.cores), name="cleared") as turn:
            block.set_as(turn * self.split.cores + self.index)
            with tik.if_scope(block < blocks):
                tik.data_move(words, core.gm["blocks"][block * fields], 0, 1, fields // 8, 0, 0)
                have.set_as(words[BLOCK_ROW.word("rows")])
                have.set_as((have + (self.plan.rows - 1)) // self.plan.rows * self.plan.rows)
                with tik.if_scope(have < BLOCK), tik.for_range(0, self.problem.call.heads, name="of_head") as head:
                    target = core.wide(head, core.seq_q) + (block * BLOCK + have)
                    tik.data_move(core.gm["logsumexp"][target], zeros, 0, 1, (BLOCK - have) // 8, 0, 0)

    # ---- items
    def _pass(self) -> None:
        """Record all items of the core. At attempt 1 only row blocks whose reference failed are active."""
        tik, items, attempt = self.tik, self.split.items, self.search.attempt
        with tik.for_range(0, -(-items // ITEMS_PER_CHUNK), name="chunk") as chunk:
            size = min(items, ITEMS_PER_CHUNK)
            first = chunk * ITEMS_PER_CHUNK
            for start, count in chunks(items):
                with tik.if_scope(chunk == start // ITEMS_PER_CHUNK):
                    load_chunk(self.core, self.next.layout, self.index * items + start, count)
                    with tik.if_scope(attempt > 0):
                        self._load_flags(start, count)
            self.current.skip_all()
            with tik.for_range(0, size + 1, name="item") as position:
                self._item(first, position, items, size)

    def _item(self, first: Number, position: Number, items: int, size: int) -> None:
        """Record one step of the pipeline over items: tiles of `current`, reference of `next`, end of `current`."""
        core, tik, current, nxt, search = self.core, self.tik, self.current, self.next, self.search
        blocks = self.plan.row_blocks
        _set_bases(self.core, current, self.base, self.value_base)
        core.with_scalar("vec_adds", core.on.current_reference[0], core.on.next_reference[0], 0.0, blocks * 128)

        def next_query(a: int) -> None:
            if a == 0:
                self._load_next(first, position, items, size)
            self._prepare(a)

        def next_sample(a: int) -> None:
            with core.when(search.attempt == 0, nxt["rows", a] > 0):
                row_reference.load_sample(core, nxt, a, search)

        # Row block 0 of an item always exists.
        samples = range(0 if self.problem.listed else self.plan.samples)[::-1]
        loads = [(next_query, a) for a in range(blocks)] + [(next_sample, a) for a in samples]
        if self.problem.call.sinks:
            with tik.if_scope(current["end"] > 0):
                source = core.gm["sinks"][current["head"] * SINK_LANES]
                tik.data_move(core.on.sink[0], source, 0, 1, SINK_LANES // 8, 0, 0)
        meanwhile: list[Step] = [functools.partial(emit, a) for emit, a in loads]
        if self.score_bound:
            meanwhile.insert(blocks, self._with_next(self.score_bound.place))
            measure = functools.partial(self.score_bound.measure, nxt, search.base)
            meanwhile += [self._with_next(self.score_bound.multiply), self._with_next(measure)]
        self._tiles(meanwhile)
        # The first tiles of an item are under way before its loop starts.
        for ahead in range(RING - 1):
            for stream in range(self.plan.streams):
                self._load_key(nxt, search.base, nxt["begin"] + ahead, ahead, stream)
                if ahead < self.value_ahead:
                    self._load_value(nxt, search.value_base, nxt["begin"] + ahead, ahead, stream)
        for a in range(blocks):
            with tik.if_scope(nxt["rows", a] > 0):
                if self.score_bound:
                    with tik.if_scope(self.score_bound.far > 0):
                        queries, size = core.on.stage[a][2 * HALF_ROUND :], core.plan.rows * core.plan.head_dim
                        core.with_scalar("vec_muls", queries, queries, 1 / score_bound.FAR_UNIT, size)
                load.place_query(core, row_reference.query_slots(core, a), core.on.stage[a], self.epoch)
        # One row block has its last unit first. Its end fills the time until the Cube has the scores of the sample.
        # Its stores wait, because they would delay the reference on their pipe. The end of the other row block covers
        # the first scores of the next item.
        first, *others = range(blocks)[::-1] if self.problem.call.rules.causal else range(blocks)
        self._finish(first)
        with tik.if_scope(nxt["end"] > 0):
            row_reference.references(core, nxt, self.epoch, search)
            # Here the scalar unit waits for Vector no longer than it must, because the next scores come meanwhile.
            if self.score_bound:
                self.score_bound.judge(search.attempt)
        self._store(first)
        for a in others:
            self._finish(a)
            self._store(a)
        current.copy(nxt)
        current.index.set_as(nxt.index)
        if self.problem.listed:
            current.epoch.set_as(nxt.epoch)
        if self.score_bound and self.verdict:
            self.verdict.cut.set_as(self.score_bound.cut)
            self.verdict.far.set_as(self.score_bound.far)
        if self.slopes and self.current_slopes:
            for mine, other in zip(self.current_slopes.terms, self.slopes.terms):
                mine.set_as(other)
        self.epoch.set_as(1 - self.epoch)

    def _load_next(self, first: Number, position: Number, items: int, size: int) -> None:
        core, tik, nxt = self.core, self.tik, self.next
        with core.when(position < size, first + position < items):
            nxt.index.set_as(first + position)
            nxt.load(position)
            if self.problem.listed:
                nxt.load_lists(self.epoch)
            with tik.if_scope(self.search.attempt > 0):
                flags = core.on.flags[0]
                for a in range(self.plan.row_blocks):
                    flag = core.scalar("int32", f"flag_{a}")
                    flag.set_as(flags[(position * 2 + a) * 8])
                    with tik.if_scope(flag < store.SATURATED):
                        nxt.skip(a)
                with tik.if_scope(sum(nxt["rows", a] for a in range(self.plan.row_blocks)) == 0):
                    nxt.skip_all()
        with tik.else_scope():
            nxt.skip_all()

    def _prepare(self, a: int) -> None:
        """Load the query of row block `a` of the next item, and prepare its reference."""
        core, nxt = self.core, self.next
        if a == 0:
            _set_bases(core, nxt, self.search.base, self.search.value_base)
            if self.slopes:
                with self.tik.if_scope(nxt["end"] > 0):
                    self.slopes.load(nxt["slope"])
        with self.tik.if_scope(nxt["rows", a] > 0):
            base = core.start("query", nxt["head"], nxt.origin("query"))
            load.fetch_query(core, core.on.stage[a], base, nxt["start", a], nxt["rows", a])
            visibility.load_queries(core, nxt, a, self.epoch)
            row_reference.clear(core, a, self.epoch)
            if self.slopes:
                self.slopes.row_block(nxt.position(a), a, self.epoch)

    def _with_next(self, emit: Callable[[], None]) -> Callable[[], None]:
        """Return `emit` if there is a next item."""

        def recorded() -> None:
            with self.tik.if_scope(self.next["end"] > 0):
                emit()

        return recorded

    def _finish(self, a: int) -> None:
        with self.tik.if_scope(self.current["rows", a] > 0):
            store.finish(self.core, self.current, a)

    def _store(self, a: int) -> None:
        with self.tik.if_scope(self.current["rows", a] > 0):
            store.store(self.core, self.current, a, self.index, self.split.items)

    def _load_flags(self, start: int, count: int) -> None:
        """Load flags of `count` items of this core from number `start` on."""
        source = self.core.gm["flags"][(self.index * self.split.items + start) * 16]
        self.tik.data_move(self.core.on.flags[0], source, 0, 1, count * 2, 0, 0)

    # ---- the loop over the key tiles of an item: a unit is one row block against one key tile
    def _unit_of(self, slot: int, a: int) -> int:
        """Return which unit of the loop body row block `a` has in a slot."""
        return slot * self.plan.streams + a % self.plan.streams

    def _key_tile(self, place: Number, unit: int) -> Number:
        """Return the number of the key tile of a unit. `place` is its place in the list of the row block."""
        return self.tiles[unit] if self.problem.listed else place

    def _has(self, item: Item, place: Number, stream: int) -> Scope:
        """Return if_scope: is there such a place in the list of a row block, or among the tiles of the item?"""
        if self.problem.listed:
            return self.core.when(*item.visits(stream, place))
        return self.tik.if_scope(place < item["end"])

    def _load_value(self, item: Item, base: Number, place: Number, slot: int, stream: int) -> None:
        core, tensor, whole, unit = self.core, self.core.on.value[slot], self.plan.keys, self._unit_of(slot, stream)
        tile = self._key_tile(place, unit)
        target = tensor, self.ways[unit] * (whole * self.plan.value_dim)

        def emit(keys: Number) -> None:
            core.load_operand(target, "value", base + tile * (whole * 16), keys, whole)

        with self._has(item, place, stream):
            if self.kept:
                self.moved[unit].set_as(self.ways[unit])
            with self._unless_kept(unit):
                tails.by_keys(core, tile, emit, item.keys)

    def _unless_kept(self, unit: int) -> Scope:
        """Return a scope for what a unit loads unless its tile stays."""
        return self.tik.if_scope(self.kept[unit].stays == 0) if self.kept else contextlib.nullcontext()

    def _load_key(self, item: Item, base: Number, place: Number, slot: int, stream: int) -> None:
        core, unit = self.core, self._unit_of(slot, stream)
        tile = self._key_tile(place, unit)
        with self._has(item, place, stream):
            if self.problem.listed:
                item.entry(stream, place, self.tiles[unit], self.codes[unit], self.kept[unit] if self.kept else None)
            if self.kept:  # the second attempt leaves items out, and with them what they would have loaded
                with self.tik.if_scope(self.search.attempt > 0):
                    self.kept[unit].stays.set_as(0)
            if self.problem.compares:
                with self.tik.if_scope(self.codes[unit] > tile_lists.PARTIAL):
                    visibility.load_keys(core, item, unit, tile)
            if score_terms.is_dynamic(self.problem):
                score_terms.load_key_terms(core, core.on.key_terms[unit], item.planes(), tile)
            # The Cube uses this first, so waiting for it covers the terms.
            with self._unless_kept(unit):
                load.load_key(core, load.key_slot(core, slot, self.ways[unit]), base, tile, item.keys)

    def _tiles(self, meanwhile: Sequence[Step]) -> None:
        """Record the loop over the item's key tiles. Scores run two units ahead of the output, probabilities one.

        Args:
            meanwhile: functions that record loads that happen once per item, in this order. They are spread over its
                bodies, because they share the memory with the tiles. Each comes after a certain unit of a body, so that
                neither the scalar unit nor the queue of the loads keeps the tiles waiting.
        """
        core, tik, blocks = self.core, self.tik, self.plan.row_blocks
        item = self.current
        steps = core.scalar("int32", "steps")
        # Units of the item plus the lag, in bodies of RING tiles; an inactive item takes one body.
        ahead = -(-LAG // blocks)
        steps.set_as((item["end"] - item["begin"] + (ahead + RING - 1)) // RING)
        bodies = [core.scalar("int32", f"load_body_{index}", 0) for index in range(len(meanwhile))]
        for index, turn in enumerate(bodies[1:], 1):
            turn.set_as((steps - 1) * index // len(meanwhile))
        softmax.begin_item(core)
        with tik.for_range(0, steps, name="body") as body:
            first = core.scalar("int32", "body_tile")
            first.set_as(item["begin"] + body * RING)
            last = RING * blocks - 1
            for position in range(RING * blocks):
                self._step(first, position)
                now = slice(position - 1, position if position < last else None) if position else slice(0)
                for step, turn in zip(meanwhile[now], bodies[now]):
                    with tik.if_scope(body == turn):
                        step()

    def _step(self, first: Number, position: int) -> None:
        core, blocks, item = self.core, self.plan.row_blocks, self.current
        a = position % blocks
        ring = position // blocks
        tile = first + ring
        if a < self.plan.streams:
            if not self.eager:
                self._load_value(item, self.value_base, tile, ring, a)
            self._load_key(item, self.base, tile + 2, (ring + 2) % RING, a)
        ahead = (*self._unit(first, position), position)
        behind = (*self._unit(first, position - LAG), position - LAG)
        middle = self._unit(first, position - 1)
        count = len(self.plan.segments)
        self.visits[position].set_as(0)
        with core.when(*item.visits(a, tile)):
            self.visits[position].set_as(1)
        shares = self._probability_steps(*middle, position - 1, count)
        for segment, share in enumerate(shares):
            with self._visited(position - 1):
                for emit in share:
                    emit()
            if segment < count:
                self._interleaved(ahead, segment, count)
                # Backwards, so that when a later unit may overwrite the first probabilities here, all have been read.
                self._output(*behind, count - 1 - segment)
        self._fetch(a, tile, position)
        if self.eager and a == blocks - 1:
            for stream in range(self.plan.streams):
                slot = (ring + self.value_ahead) % RING
                self._load_value(item, self.value_base, tile + self.value_ahead, slot, stream)

    def _interleaved(self, unit: tuple[int, Number, int], segment: int, count: int) -> None:
        """Emit the scores of a segment. If the unit before is missing, the first segment brings the second one along.

        No output of an earlier unit then stands before it on the Cube, for which Vector would have to wait.
        """
        if not self.problem.listed or count != 2:
            self._scores(*unit, segment)
            return
        before = self.visits[(unit[2] - 1) % len(self.visits)]
        if segment == 0:
            self._scores(*unit, 0)
        with self.tik.if_scope(before == 0 if segment == 0 else before > 0):
            self._scores(*unit, 1)

    def _visited(self, position: int) -> Scope:
        """Return if_scope: is the unit at a position of the body one of the item's?"""
        return self.tik.if_scope(self.visits[position % len(self.visits)] > 0)

    def _unit(self, first: Number, position: int) -> tuple[int, Number]:
        """Return (row block, key tile) at a position of the body. Negative positions are the body before."""
        blocks = self.plan.row_blocks
        return position % blocks, first + position // blocks

    def _score_slot(self, position: int, segment: int) -> int:
        return (position * len(self.plan.segments) + segment) % self.plan.score_slots

    def _ring(self, name: str, position: int) -> Tensor:
        """Return the L1 slot of a tile (value) or of a unit (probability, dropped, low)."""
        if name in ("probability", "dropped", "low"):
            return self.core.on.copies(name)[position % RING]
        return self.core.on.copies(name)[position // self.plan.row_blocks % RING]

    def _scores(self, a: int, tile: Number, position: int, segment: int) -> None:
        core, item, ring = self.core, self.current, position // self.plan.row_blocks % RING
        unit = self._unit_of(ring, a)
        with self._visited(position):
            if segment == 0:
                # `epoch` is the parity of the next item, so the current item has the other slots.
                pairs = list(zip(row_reference.query_slots(core, a), row_reference.query_terms(core, a)))[::-1]
                for query, variants in each_epoch(core, pairs, self.epoch):
                    row_reference.query_operand(core, item, a, self._key_tile(tile, unit), query, variants)
            by_key = core.on.key_terms
            slot = unit if score_terms.is_dynamic(self.problem) else 0
            load.key_to_l0(core, load.key_slot(core, ring, self.ways[unit]), segment)
            score_terms.key_terms_to_l0(core, by_key[slot], segment)
            row_reference.scores(core, self._score_slot(position, segment), segment)

    def _fetch(self, a: int, tile: Number, position: int) -> None:
        """Load tiles that the probabilities of a unit will need on Vector, one unit ahead."""
        call = self.problem.call
        core, item = self.core, self.current
        if not (
            self.numbered
            or self.current_slopes
            or self.problem.mask == "per_score"
            or call.bias == "per_score"
            or call.dropout_threshold
        ):
            return
        unit = self._unit_of(position // self.plan.row_blocks % RING, a)
        place, tile = tile, self._key_tile(tile, unit)
        with self._visited(position):
            if self.numbered:
                if self.problem.listed:
                    self.numbers[a].set_as(self.codes[unit] - 1)
                else:
                    item.tile_number(self.numbers[a], a, place)
                if self.whole and self.verdict is not None:
                    with core.when(self.verdict.cut > 0, self.numbers[a] == 0):
                        self.numbers[a].set_as(self.whole)
                # `epoch` is the parity of the next item.
                other = 1 - self.epoch if self.problem.compares else 0
                visibility.fetch(core, self.numbers[a], functools.partial(visibility.to_l0, core, a, other, unit))
            if self.current_slopes:
                item.distance_number(self.crossings[a], a, tile)
                alibi.fetch_distance(core, self.crossings[a])
            if self.problem.mask == "per_score":
                mask.fetch_plane(core, "mask", "hidden", item["mask_plane"], tile, item["start", a], item["rows", a])
            if call.bias == "per_score":
                mask.fetch_plane(core, "bias", "bias", item["bias_plane"], tile, item["start", a], item["rows", a])
            if call.dropout_threshold:
                dropout.fetch_keep(core, item, item["head"], tile, item["start", a], item["rows", a])

    def _probability_steps(self, a: int, tile: Number, position: int, count: int) -> list[list[Step]]:
        """Return the Vector work of a unit in shares around work for the Cube."""
        dropped = self._ring("dropped", position) if self.problem.call.dropout_threshold else None
        on, slots = self.core.on, [self._score_slot(position, segment) for segment in range(count)]
        unit = softmax.Unit(
            a=a,
            tile=tile,
            scores=[on.scores[slot] for slot in slots],
            linear=[on.linear[slot % len(on.linear)] for slot in slots] if self.problem.call.rules.softcap else [],
            probability=self._ring("probability", position),
            dropped=dropped,
            low=self._ring("low", position) if self.plan.precise_total else None,
            number=self.numbers[a] if self.numbered else None,
            distance=self.crossings[a] if self.current_slopes else None,
            slopes=self.current_slopes.correction if self.current_slopes else (),
            verdict=self.verdict,
        )
        take, *others = softmax.steps(self.core, unit)
        size = -(-len(others) // count)
        return [[take]] + [others[start : start + size] for start in range(0, len(others), size)]

    def _output(self, a: int, tile: Number, position: int, segment: int) -> None:
        """Compute output += probabilities . values and total += probabilities . ones, one segment of keys."""
        core, item, tik, plan = self.core, self.current, self.tik, self.plan
        rows, width = plan.rows, plan.segments[segment]

        def accumulate(*products: tuple[Tensor, Tensor, int]) -> None:
            """Emit products (result, right operand, columns). The left operand is in L0A."""
            if segment < len(plan.segments) - 1:
                for target, right, columns in products:
                    tik.mmad(target, core.on.l0_probability[0], right, rows, width, columns, 1)
                return
            with tik.if_scope(tile == item["first", a]):
                for target, right, columns in products:
                    tik.mmad(target, core.on.l0_probability[0], right, rows, width, columns, 0)
            with tik.else_scope():
                for target, right, columns in products:
                    tik.mmad(target, core.on.l0_probability[0], right, rows, width, columns, 1)

        with self._visited(position):
            load.probability_to_l0(core, self._ring("probability", position), segment)
            ones = core.on.l0_ones[0]
            values, slot, wide = core.on.l0_value[0], self._ring("value", position), core.value_columns
            way = self.value_ways[self._unit_of(position // plan.row_blocks % RING, a)]
            slot = slot[way * (plan.keys * plan.value_dim)]
            first_group = plan.segment_start(segment) // 16
            for group in range(width // 16):
                part = values[group * wide * FRACTAL]
                tik.load2dv1(part, slot, first_group + group, wide, plan.columns, 0, True)
            total, output = (core.on.total[a], ones, 16), (core.on.output[a], values, plan.value_dim)
            if not plan.precise_total and not self.problem.call.dropout_threshold:
                accumulate(total, output)
                return
            accumulate(total)
            if plan.precise_total:
                load.probability_to_l0(core, self._ring("low", position), segment)
                accumulate((core.on.low_total[a], ones, 16))
            kept = "dropped" if self.problem.call.dropout_threshold else "probability"
            if plan.precise_total or kept == "dropped":
                load.probability_to_l0(core, self._ring(kept, position), segment)
            accumulate(output)


def _set_bases(core: Core[ForwardPlan], item: Item, base: Scalar, value_base: Scalar) -> None:
    """Set the first elements of the item's keys and values. Equal elements share a number."""
    base.set_as(core.start("key", item["kv_head"], item.origin("key")))
    if value_base is not base:
        value_base.set_as(core.start("value", item["kv_head"], item.origin("value")))
