"""The forward operator: output and logsumexp of attention, tile by tile.

Dao, "FlashAttention-2" (2023), algorithm 1, with the changes that this chip asks for:

    for item in work of this core:                              work.py deals and reads
        Q = up to two row blocks of queries                     load.py
        m = row maxima over a sample of keys                    row_reference.py; score_bound.py: do all exponents fit?
        for K, V in key tiles that Q sees:                      pipeline.py, load.py
            S = Q K^T - m, bias and masks by key                row_reference.scores, common/score_terms.py
            P = exp(S), masks and dropout by score              softmax.py, common/mask.py, common/dropout.py
            O += P V, l += P 1                                  pipeline.py
        O /= l, logsumexp = m + ln l, is m too low for l?       store.py
    once more, where it is: m = row maxima over all keys        here

So O never leaves the accumulator memory of the Cube. docs/kernels.md draws the pipeline, plan.py chooses the tiles.
"""

from __future__ import annotations

import functools
from typing import Callable

from flash_attention.kernels.tik import packed
from flash_attention.kernels.tik.common import alibi, score_terms
from flash_attention.kernels.tik.common.band import BandAtRunTime
from flash_attention.kernels.tik.common.table_row import chunks, load_chunk
from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.forward import load, row_reference, score_bound, softmax, store
from flash_attention.kernels.tik.forward.pipeline import TileLoop
from flash_attention.kernels.tik.forward.plan import ITEMS_PER_CHUNK, ForwardPlan
from flash_attention.kernels.tik.forward.work import Item, WorkSplit, choose
from flash_attention.kernels.tik.hardware import FRACTAL
from flash_attention.kernels.tik.kernel import Kernel, Recording
from flash_attention.kernels.tik.language import Number, Scalar, Step


def build(recording: Recording) -> Kernel:
    """Records and builds the forward kernel."""
    choice = choose(recording.request.problem)
    split = choice.split
    flags = split.cores * split.items * 2 * 8
    return recording.of_table(choice, lambda core, index: _Forward(core, split, index).record(), flags)


class _Forward:
    """Records the statements of one core: passes over its work items."""

    def __init__(self, core: Core[ForwardPlan], split: WorkSplit, index: Number):
        self.core, self.split, self.index = core, split, index
        self.tik, self.plan, self.problem = core.tik, core.plan, core.problem

    def record(self) -> None:
        core, tik = self.core, self.tik
        self._constants()
        if self.problem.sequences:
            core.band = BandAtRunTime(core)
        self.current, self.next = Item(core, "current", False), Item(core, "next", True)
        self.epoch = core.scalar("int32", "epoch", 0)  # parity of the item in `next`
        names = ("sweeps", "sweep_tiles", "tile", "number", "distance")
        sweeps, sweep_tiles, tile, number, distance = (core.scalar("int32", name) for name in names)
        base = core.scalar("int64", "sample_base")
        same = core.value_columns == core.depth_columns
        value_base = base if same else core.scalar("int64", "next_value_base")
        self.slopes = row_reference.QuerySlopes(core) if self.problem.bias == "alibi" else None
        self.current_slopes = row_reference.QuerySlopes(core) if len(self.split.distances) else None
        self.score_bound = (
            score_bound.ScoreBound(core) if score_bound.is_needed(self.problem, self.plan.half_scores) else None
        )
        current = (core.scalar("int32", f"current_{field}", 0) for field in score_bound.Verdict._fields)
        self.verdict = score_bound.Verdict(*current) if self.score_bound else None
        self.loop = TileLoop(
            core,
            self.current,
            self.epoch,
            self.current_slopes,
            numbered=len(self.split.tiles) > 0,
            whole=self.split.whole,
            verdict=self.verdict,
        )
        failed = core.scalar("int32", "failed", 1)
        self._clear_flags()
        with tik.for_range(0, 2, name="attempt") as attempt:
            self.search = row_reference.Search(
                *(attempt, sweeps, sweep_tiles, tile, number, distance, base, value_base),
                numbered=len(self.split.tiles) > 0,
                sample_misses=self.split.sample_misses,
                slopes=self.slopes if self.current_slopes else None,
                score_bound=self.score_bound,
            )
            with tik.if_scope(failed > 0):
                self._pass()
            with tik.if_scope(attempt == 0):
                self._scan(failed)

    # ---- start
    def _constants(self) -> None:
        core, plan = self.core, self.plan
        core.clear_vectors()
        if self.problem.sequences:
            self._clear_stored_rows()
        for flag in core.on.flag:
            core.fill(flag, 0, 8)
        store.initialise(core)
        softmax.initialise(core)
        row_reference.initialise(core)
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
        if self.problem.bias == "alibi":
            alibi.initialise(core)

    def _clear_stored_rows(self) -> None:
        """Zeros in the logsumexp of stored rows that no row block has; each core does its share."""
        core, tik, (words, *_), zeros = self.core, self.tik, self.core.on.flag, self.core.on.row_lse[0]
        blocks, fields = core.gm["blocks"].shape
        block, have = core.scalar("int32", "cleared_block"), core.scalar("int32", "cleared_from")
        with tik.for_range(0, -(-blocks // self.split.cores), name="cleared") as turn:
            block.set_as(turn * self.split.cores + self.index)
            with tik.if_scope(block < blocks):
                tik.data_move(words, core.gm["blocks"][block * fields], 0, 1, fields // 8, 0, 0)
                have.set_as(words[packed.BLOCK_RECORD.word("rows")])
                have.set_as((have + (self.plan.rows - 1)) // self.plan.rows * self.plan.rows)
                with tik.if_scope(have < packed.BLOCK), tik.for_range(0, self.problem.heads, name="of_head") as head:
                    target = core.wide(head, core.seq_q) + (block * packed.BLOCK + have)
                    tik.data_move(core.gm["logsumexp"][target], zeros, 0, 1, (packed.BLOCK - have) // 8, 0, 0)

    # ---- items
    def _pass(self) -> None:
        """All items of the core. At attempt 1, the second one, only row blocks whose reference failed are active."""
        tik, items, attempt = self.tik, self.split.items, self.search.attempt
        with tik.for_range(0, -(-items // ITEMS_PER_CHUNK), name="chunk") as chunk:
            size = min(items, ITEMS_PER_CHUNK)
            first = chunk * ITEMS_PER_CHUNK
            for start, count in chunks(items):
                with tik.if_scope(chunk == start // ITEMS_PER_CHUNK):
                    load_chunk(self.core, self.next.record, self.index * items + start, count)
                    with tik.if_scope(attempt > 0):
                        self._load_flags(start, count)
            self.current.skip_all()
            with tik.for_range(0, size + 1, name="item") as position:
                self._item(first, position, items, size)

    def _item(self, first: Number, position: Number, items: int, size: int) -> None:
        """One step of the pipeline over items: tiles of `current`, reference of `next`, end of `current`."""
        core, tik, current, nxt, search = self.core, self.tik, self.current, self.next, self.search
        blocks = self.plan.row_blocks
        _set_bases(self.core, current, self.loop.base, self.loop.value_base)
        core.with_scalar("vec_adds", core.on.current_reference[0], core.on.next_reference[0], 0.0, blocks * 128)

        def next_query(a: int) -> None:
            if a == 0:
                self._load_next(first, position, items, size)
            self._prepare(a)

        def next_sample(a: int) -> None:
            with core.when(search.attempt == 0, nxt["rows", a] > 0):
                row_reference.load_sample(core, nxt, a, search)

        # Row block 0 of an item always exists.
        samples = range(self.plan.samples)[::-1]
        loads = [(next_query, a) for a in range(blocks)] + [(next_sample, a) for a in samples]
        if self.problem.sinks:
            store.load_sink(core, current)
        meanwhile: list[Step] = [functools.partial(record, a) for record, a in loads]
        if self.score_bound:
            meanwhile.insert(blocks, self._with_next(self.score_bound.place))
            measure = functools.partial(self.score_bound.measure, nxt, search.base)
            meanwhile += [self._with_next(self.score_bound.multiply), self._with_next(measure)]
        self.loop.record(meanwhile)
        self.loop.first_tiles(nxt, search.base, search.value_base)
        for a in range(blocks):
            with tik.if_scope(nxt["rows", a] > 0):
                if self.score_bound:
                    with tik.if_scope(self.score_bound.far > 0):
                        load.scale_query(core, core.on.stage[a], 1 / score_bound.FAR_UNIT)
                load.place_query(core, row_reference.query_slots(core, a), core.on.stage[a], self.epoch)
        # The end of the row block whose last unit came first fills the time until the Cube has the scores of the
        # sample; its stores wait, lest they delay the reference on their pipe. The end of the other one covers the
        # first scores of the next item.
        first, *others = range(blocks)[::-1] if self.problem.rules.causal else range(blocks)
        self._finish(first)
        with tik.if_scope(nxt["end"] > 0):
            row_reference.references(core, nxt, self.epoch, search)
        self._store(first)
        for a in others:
            self._finish(a)
            self._store(a)
        current.copy(nxt)
        current.index.set_as(nxt.index)
        if self.score_bound and self.verdict:
            with tik.if_scope(nxt["end"] > 0):
                self.score_bound.judge(search.attempt)
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
        """Query of row block `a` of the next item, and what its reference needs besides the sample."""
        core, nxt = self.core, self.next
        if a == 0:
            _set_bases(core, nxt, self.search.base, self.search.value_base)
            if self.slopes:
                with self.tik.if_scope(nxt["end"] > 0):
                    self.slopes.load(nxt["slope"])
        with self.tik.if_scope(nxt["rows", a] > 0):
            base = core.start("query", nxt["head"], nxt.origin("query"))
            load.fetch_query(core, core.on.stage[a], base, nxt["start", a], nxt["rows", a])
            row_reference.clear(core, a, self.epoch)
            if self.slopes:
                self.slopes.row_block(nxt.position(a), a, self.epoch)

    def _with_next(self, record: Callable[[], None]) -> Callable[[], None]:
        """`record` where there is a next item."""

        def recorded() -> None:
            with self.tik.if_scope(self.next["end"] > 0):
                record()

        return recorded

    def _finish(self, a: int) -> None:
        with self.tik.if_scope(self.current["rows", a] > 0):
            store.finish(self.core, self.current, a)

    def _store(self, a: int) -> None:
        with self.tik.if_scope(self.current["rows", a] > 0):
            store.store(self.core, self.current, a, self.index, self.split.items)

    def _clear_flags(self) -> None:
        """Row blocks that do not exist have not failed."""
        core, items = self.core, self.split.items
        core.fill(core.on.flags[0], 0, ITEMS_PER_CHUNK * 16)
        for start, count in chunks(items):
            target = core.gm["flags"][(self.index * items + start) * 16]
            self.tik.data_move(target, core.on.flags[0], 0, 1, count * 2, 0, 0)

    def _load_flags(self, start: int, count: int) -> None:
        """Flags of `count` items of this core from number `start` on."""
        source = self.core.gm["flags"][(self.index * self.split.items + start) * 16]
        self.tik.data_move(self.core.on.flags[0], source, 0, 1, count * 2, 0, 0)

    def _scan(self, failed: Scalar) -> None:
        """Sets `failed` to the number of row blocks whose reference must be taken over all keys."""
        core, tik, items = self.core, self.tik, self.split.items
        failed.set_as(0)
        flag = core.scalar("int32", "scanned")
        for start, count in chunks(items):
            self._load_flags(start, count)
            with tik.for_range(0, count * 2, name=f"scan_{start}") as row:
                flag.set_as(core.on.flags[0][row * 8])
                with tik.if_scope(flag >= store.SATURATED):
                    failed.set_as(failed + 1)


def _set_bases(core: Core[ForwardPlan], item: Item, base: Scalar, value_base: Scalar) -> None:
    """Sets the first elements of the item's keys and values in global memory: one number where that is the same."""
    base.set_as(core.start("key", item["kv_head"], item.origin("key")))
    if value_base is not base:
        value_base.set_as(core.start("value", item["kv_head"], item.origin("value")))
