"""The forward operator: output and logsumexp of attention, tile by tile (FlashAttention-2).

Dao, "FlashAttention-2" (2023), algorithm 1, with the changes that this chip asks for: the running output never leaves
the accumulator memory of the Cube, the row reference is fixed before the loop and checked after it (rowmax.py), and
the row total is a product with ones. docs/kernels.md draws the pipeline.
"""

from __future__ import annotations

import functools

import numpy as np

from flash_attention.kernels.tik.common import alibi, dropout, mask, tiles
from flash_attention.kernels.tik.common import score_terms as lanes
from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.forward import epilogue as normalise
from flash_attention.kernels.tik.forward import row_reference as rowmax
from flash_attention.kernels.tik.forward import scheduler as worksplit
from flash_attention.kernels.tik.forward import softmax
from flash_attention.kernels.tik.forward.tiling import ITEMS_PER_CHUNK, RING, TilePlan, buffers, candidates, overflow
from flash_attention.kernels.tik.forward.work_item import Item
from flash_attention.kernels.tik.kernel import GlobalTensor, Kernel
from flash_attention.kernels.tik.layout import keep_shape, nz_shape
from flash_attention.kernels.tik.problem import KernelProblem, padded

# Time of a unit whose key and value tiles serve one row block instead of two, at head_dim 128: the memory is its limit.
UNSHARED = 1.4
LAG = 2  # units between the scores of a tile and its part of the output


def build(problem: KernelProblem, tik, *, name: str = "flash_attention_forward", debug: bool = True) -> Kernel:
    """Records and builds the forward kernel.

    Args:
        problem: what to compute.
        tik: the tik module: `from tbe import tik`.
        name: kernel name.
        debug: keep the kernel runnable by tikdb.

    Raises:
        ValueError: no tiling strategy fits the memories of a core.
    """
    plan, split, parts = _plan(problem)
    inputs, outputs = _arguments(problem, plan, split)
    instance = tik.Tik(disable_debug=not debug)
    gm = {t.name: instance.Tensor(t.dtype, t.shape, tik.scope_gm, t.name) for t in inputs + outputs}
    flags = split.cores * split.items * 2 * 8
    gm["flags"] = instance.Tensor("int32", (flags,), tik.scope_gm, "flags", is_workspace=True)
    core = Core(tik, instance, problem, plan, gm)
    with instance.for_range(0, split.cores, name="core", block_num=split.cores) as index:
        core.allocate(parts)
        _Forward(core, split, index).record()
    instance.BuildCCE(kernel_name=name, inputs=[gm[t.name] for t in inputs], outputs=[gm[t.name] for t in outputs])
    total = sum(split.units)
    return Kernel(name, instance, problem, plan, inputs, outputs, tuple(parts), split.cores, (max(split.units), total))


def _plan(problem: KernelProblem):
    """The first plan that fits; where it gives the cores too few work items, one with the same tiles and more items.

    The tiles stay, so that a part of the heads gets the same bits as all of them.
    """
    reasons, chosen = [], None
    for plan in candidates(problem):
        if chosen is not None and (plan.rows, plan.keys) != (chosen[0].rows, chosen[0].keys):
            continue
        split = worksplit.split(problem, plan)
        parts = buffers(problem, plan, len(split.tiles), len(split.distances))
        reason = overflow(parts)
        if reason:
            reasons.append(f"{plan.strategy} needs {reason}")
        elif chosen is None or UNSHARED * max(split.units) < max(chosen[1].units):
            chosen = plan, split, parts
        if chosen is not None and chosen[1].cores == problem.cores:
            break
    if chosen is None:
        raise ValueError(f"tiling: no strategy fits this problem: {'; '.join(reasons)}")
    return chosen


def _arguments(problem: KernelProblem, plan: TilePlan, split: worksplit.WorkSplit):
    p = problem
    query = nz_shape(p.batch, p.heads, p.seq_q, p.head_dim)
    key = nz_shape(p.batch, p.kv_heads, p.seq_k, p.head_dim)
    inputs = [
        GlobalTensor("query", query, "float16", "FRACTAL_NZ"),
        GlobalTensor("key", key, "float16", "FRACTAL_NZ"),
        GlobalTensor("value", key, "float16", "FRACTAL_NZ"),
    ]
    if p.mask == "full":
        inputs.append(
            GlobalTensor("mask", nz_shape(p.mask_batch * p.mask_heads, p.seq_q, p.seq_k), "float16", "FRACTAL_NZ")
        )
    if p.mask == "key":
        inputs.append(GlobalTensor("mask", (p.mask_batch * p.mask_heads, padded(p.seq_k)), "float16"))
    if p.alibi == "bias":
        inputs.append(
            GlobalTensor("bias", nz_shape(p.bias_batch * p.bias_heads, p.seq_q, p.seq_k), "float16", "FRACTAL_NZ")
        )
    if p.alibi == "given":
        inputs.append(GlobalTensor("bias", (2 * p.bias_batch * p.bias_heads, padded(p.seq_k)), "float16"))
    if p.dropout_threshold:
        inputs.append(GlobalTensor("keep", keep_shape(p), "uint8"))

    def constant(name: str, array: np.ndarray) -> None:
        inputs.append(GlobalTensor(name, array.shape, str(array.dtype), constant=array))

    constant("table", split.table)
    if len(split.tiles):
        constant("tiles", split.tiles)
    if p.alibi == "computed":
        constant("slopes", lanes.slope_table(p))
        constant("positions", lanes.key_positions(p))
        constant("row_numbers", np.arange(128, dtype=np.float32))
        if len(split.distances):
            constant("distances", split.distances)
    outputs = (
        GlobalTensor("output", query, "float16", "FRACTAL_NZ"),
        GlobalTensor("logsumexp", (p.batch, p.heads, padded(p.seq_q)), "float32"),
    )
    return tuple(inputs), outputs


class _Forward:
    """Records the statements of one core."""

    def __init__(self, core: Core, split: worksplit.WorkSplit, index):
        self.core, self.split, self.index = core, split, index
        self.tik, self.plan, self.problem = core.tik, core.plan, core.problem
        self.numbered = len(split.tiles) > 0
        self.signed = len(split.distances) > 0

    def record(self) -> None:
        core, tik = self.core, self.tik
        self._constants()
        self.current, self.next = Item(core, "current", False), Item(core, "next", True)
        self.epoch = core.scalar("int32", "epoch", 0)  # parity of the item in `next`
        scalars = {name: core.scalar("int32", name) for name in ("sweeps", "sweep_tiles", "tile", "number", "distance")}
        scalars["base"] = core.scalar("int64", "sample_base")
        scalars["number"] = scalars["number"] if self.numbered else None
        scalars["distance"] = scalars["distance"] if self.signed else None
        self.slopes = alibi.Slopes(core) if self.problem.alibi == "computed" else None
        self.current_slopes = alibi.Slopes(core) if self.signed else None
        scalars["coarse_slope"] = self.slopes.coarse if self.signed else None
        self.scalars = scalars
        self.base = core.scalar("int64", "base")  # first element of the keys and values in the pipeline
        self.numbers = [core.scalar("int32", f"unit_number_{a}") for a in range(self.plan.row_blocks)]
        self.crossings = [core.scalar("int32", f"unit_distance_{a}") for a in range(self.plan.row_blocks)]
        failed = core.scalar("int32", "failed", 1)
        self._clear_flags()
        with tik.for_range(0, 2, name="attempt") as attempt:
            scalars["attempt"] = attempt
            with tik.if_scope(failed > 0):
                self._pass(attempt)
            with tik.if_scope(attempt == 0):
                self._scan(failed)

    # ---- start
    def _constants(self) -> None:
        core, plan = self.core, self.plan
        for halves in core.on["halves"]:
            core.fill(halves, 0.0, 128)
        for vector in core.on["vectors"]:
            core.fill(vector, 0.0, 128, 64)
        for flag in core.on["flag"]:
            core.fill(flag, 0, 8, 64)
        normalise.initialise(core)
        stage = core.on["stage"]
        # Short tiles leave part of a slot as it was; it must hold numbers from the start.
        if core.tail_keys:
            block = min(plan.rows, plan.keys) * plan.head_dim // 16
            core.fill(stage[0], 0.0, block * 16)
            for name in ("key", "value", "sample_key"):
                for slot in core.on[name]:
                    blocks = slot.shape[0] // 16
                    for first in range(0, blocks, block):
                        self.tik.data_move(slot[first * 16], stage[0], 0, 1, min(block, blocks - first), 0, 0)
        if core.tail_keys or core.tail_rows:
            for name in ("hidden", "bias"):
                for buffer in core.on.get(name, ()):
                    core.fill(buffer, 0.0, plan.rows * plan.keys)
            for buffer in core.on.get("keep", ()):
                words = buffer.reinterpret_cast_to("uint16")
                core.fill(words, 0, plan.rows * plan.keys // 16)
        lanes.initialise(core)
        core.fill(stage[-1], 1.0, 256)
        fractal = core.on["fractals"][0]
        self.tik.data_move(fractal, stage[-1], 0, 1, 16, 0, 0)
        self.tik.load2dv1(core.on["l0_ones"][0], fractal, 0, max(plan.segments) // 16, 0, 0, False)
        area = plan.rows * plan.keys // 16
        for name, tiles_of in (("tiles", self.split.tiles), ("distances", self.split.distances)):
            if len(tiles_of):
                self.tik.data_move(core.on[name][0], core.gm[name], 0, len(tiles_of), area, 0, 0)
        if self.problem.alibi == "computed":
            alibi.initialise(core)

    # ---- items
    def _pass(self, attempt) -> None:
        """All items of the core. At attempt 1 only row blocks whose reference failed are active."""
        tik, items = self.tik, self.split.items
        chunks = -(-items // ITEMS_PER_CHUNK)
        with tik.for_range(0, chunks, name="chunk") as chunk:
            size = min(items, ITEMS_PER_CHUNK)
            words = worksplit.FIELDS
            table, first = self.core.on["table"][0], chunk * ITEMS_PER_CHUNK
            for start, count in _chunk_parts(items):
                with tik.if_scope(chunk == start // ITEMS_PER_CHUNK):
                    tik.data_move(
                        table,
                        self.core.gm["table"][(self.index * items + start) * words],
                        0,
                        1,
                        count * words // 8,
                        0,
                        0,
                    )
                    with tik.if_scope(attempt > 0):
                        tik.data_move(
                            self.core.on["flags"][0],
                            self.core.gm["flags"][(self.index * items + start) * 16],
                            0,
                            1,
                            count * 2,
                            0,
                            0,
                        )
            self.current.skip_all()
            with tik.for_range(0, size + 1, name="item") as position:
                self._item(attempt, first, position, items, size)

    def _item(self, attempt, first, position, items: int, size: int) -> None:
        """One step of the pipeline over items: tiles of `current`, reference of `next`, end of `current`."""
        core, tik, current, nxt = self.core, self.tik, self.current, self.next
        blocks = self.plan.row_blocks
        self.base.set_as(_key_base(core, current))
        for a in range(blocks):
            core.with_scalar(
                "vec_adds", rowmax.current_reference(core, a), rowmax.next_reference(core, a), 0.0, 128, 64
            )

        def next_query(a: int) -> None:
            if a == 0:
                self._load_next(attempt, first, position, items, size)
            self._prepare(a)

        def next_sample(a: int) -> None:
            with core.when(attempt == 0, nxt["rows", a] > 0):
                rowmax.load_sample(core, nxt, a, self.scalars)

        loads = [(next_query, a) for a in range(blocks)] + [(next_sample, a) for a in reversed(range(blocks))]
        self._tiles([functools.partial(load, a) for load, a in loads])
        self._first_tiles(nxt)
        for a in range(blocks):
            with tik.if_scope(nxt["rows", a] > 0):
                tiles.place_query(core, rowmax.query_slots(core, a), core.on["stage"][a], self.epoch)
        # The end of row block 0 fills the time until the Cube has the scores of the sample; its stores wait, lest they
        # delay the reference on their pipe. The end of row block 1 covers the first scores of the next item.
        self._finish(0)
        for a in range(blocks):
            self._reference(attempt, a)
        self._store(0)
        for a in range(1, blocks):
            self._finish(a)
            self._store(a)
        current.copy(nxt)
        if self.current_slopes:
            for mine, other in zip(self.current_slopes.terms, self.slopes.terms):
                mine.set_as(other)
        self.epoch.set_as(1 - self.epoch)

    def _load_next(self, attempt, first, position, items: int, size: int) -> None:
        core, tik, nxt = self.core, self.tik, self.next
        with core.when(position < size, first + position < items):
            nxt.load(first + position, position * worksplit.FIELDS)
            with tik.if_scope(attempt > 0):
                flags = core.on["flags"][0]
                for a in range(self.plan.row_blocks):
                    flag = core.scalar("int32", f"flag_{a}")
                    flag.set_as(flags[(position * 2 + a) * 8])
                    with tik.if_scope(flag < normalise.SATURATED):
                        nxt.skip(a)
                with tik.if_scope(sum(nxt["rows", a] for a in range(self.plan.row_blocks)) == 0):
                    nxt.skip_all()
        with tik.else_scope():
            nxt.skip_all()

    def _prepare(self, a: int) -> None:
        """Query of row block `a` of the next item, and what its reference needs besides the sample."""
        core, nxt = self.core, self.next
        if a == 0:
            self.scalars["base"].set_as(_key_base(core, nxt))
            if self.slopes:
                with self.tik.if_scope(nxt["end"] > 0):
                    self.slopes.load(nxt)
        with self.tik.if_scope(nxt["rows", a] > 0):
            base = core.wide(nxt["head"], core.depth_columns * core.seq_q * 16)
            tiles.fetch_query(core, core.on["stage"][a], base, nxt["start", a], nxt["rows", a])
            rowmax.clear(core, a, self.epoch)
            if self.slopes:
                self.slopes.row_block(nxt, a, self.epoch)

    def _reference(self, attempt, a: int) -> None:
        with self.tik.if_scope(self.next["rows", a] > 0):
            rowmax.reference(self.core, self.next, a, attempt, self.epoch, self.scalars)

    def _finish(self, a: int) -> None:
        with self.tik.if_scope(self.current["rows", a] > 0):
            normalise.finish(self.core, self.current, a)

    def _store(self, a: int) -> None:
        with self.tik.if_scope(self.current["rows", a] > 0):
            normalise.store(self.core, self.current, a, self.index, self.split.items)

    def _clear_flags(self) -> None:
        """Row blocks that do not exist have not failed."""
        core, items = self.core, self.split.items
        core.fill(core.on["flags"][0], 0, ITEMS_PER_CHUNK * 16, 64)
        for start, count in _chunk_parts(items):
            self.tik.data_move(
                core.gm["flags"][(self.index * items + start) * 16], core.on["flags"][0], 0, 1, count * 2, 0, 0
            )

    def _scan(self, failed) -> None:
        """Sets `failed` to the number of row blocks whose reference must be taken over all keys."""
        core, tik, items = self.core, self.tik, self.split.items
        failed.set_as(0)
        flag = core.scalar("int32", "scanned")
        for start, count in _chunk_parts(items):
            tik.data_move(
                core.on["flags"][0], core.gm["flags"][(self.index * items + start) * 16], 0, 1, count * 2, 0, 0
            )
            with tik.for_range(0, count * 2, name=f"scan_{start}") as row:
                flag.set_as(core.on["flags"][0][row * 8])
                with tik.if_scope(flag >= normalise.SATURATED):
                    failed.set_as(failed + 1)

    # ---- tiles of an item
    def _first_tiles(self, item: Item) -> None:
        """The first two key tiles of an item are under way before its loop starts."""
        base = self.scalars["base"]
        for ahead in range(2):
            self._load_key(item, base, item["begin"] + ahead, ahead)

    def _load_key(self, item: Item, base, tile, slot: int) -> None:
        core = self.core
        with core.when(tile < item["end"]):
            if lanes.is_dynamic(self.problem):
                lanes.load_key_lanes(core, core.on["key_lanes"][slot], item.planes(), tile)
            tiles.load_key(core, slot, base, tile)  # used first: waiting for it covers the lanes

    def _tiles(self, meanwhile: list) -> None:
        """The loop over the key tiles of `current`: scores two units ahead of the output, probabilities one ahead.

        Args:
            meanwhile: record loads that happen once per item, one after each unit of the first body, so that neither
                the scalar unit nor the queue of the loads keeps the tiles waiting.
        """
        core, tik, blocks = self.core, self.tik, self.plan.row_blocks
        item = self.current
        steps = core.scalar("int32", "steps")
        # Units of the item plus the lag, in bodies of RING tiles; an inactive item takes one body.
        ahead = -(-LAG // blocks)
        steps.set_as((item["end"] - item["begin"] + (ahead + RING - 1)) // RING)
        with tik.for_range(0, steps, name="body") as body:
            first = core.scalar("int32", "body_tile")
            first.set_as(item["begin"] + body * RING)
            for position in range(RING * blocks):
                self._step(first, position)
                if 0 < position <= len(meanwhile):
                    with tik.if_scope(body == 0):
                        meanwhile[position - 1]()

    def _step(self, first, position: int) -> None:
        core, blocks, item = self.core, self.plan.row_blocks, self.current
        a = position % blocks
        ring = position // blocks
        tile = first + ring
        if a == 0:
            with core.when(tile < item["end"]):
                tiles.load_value(core, core.on["value"][ring], self.base, tile)
            self._load_key(item, self.base, tile + 2, (ring + 2) % RING)
        ahead = (*self._unit(first, position), position)
        behind = (*self._unit(first, position - LAG), position - LAG)
        middle = self._unit(first, position - 1)
        count = len(self.plan.segments)
        shares = self._probability_steps(*middle, position - 1, count)
        for segment, share in enumerate(shares):
            with core.when(*item.visits(*middle)):
                for record in share:
                    record()
            if segment < count:
                self._scores(*ahead, segment)
                # Backwards: when the first probabilities of a later unit may overwrite these, all of them are read.
                self._output(*behind, count - 1 - segment)
        self._fetch(a, tile)

    def _unit(self, first, position: int) -> tuple:
        """(row block, key tile) of the unit at a position of the body; negative positions are the body before."""
        blocks = self.plan.row_blocks
        return position % blocks, first + position // blocks

    def _score_slot(self, position: int, segment: int):
        slots, segments = self.core.on["scores"], len(self.plan.segments)
        return slots[(position * segments + segment) % len(slots)]

    def _ring(self, name: str, position: int):
        """L1 slot of a tile (value) or of a unit (probability, dropped, low)."""
        if name in ("probability", "dropped", "low"):
            return self.core.on[name][position % RING]
        return self.core.on[name][position // self.plan.row_blocks % RING]

    def _scores(self, a: int, tile, position: int, segment: int) -> None:
        core, item = self.core, self.current
        with core.when(*item.visits(a, tile)):
            if segment == 0:
                # `epoch` is the parity of the next item, so the slots of the current one are the other ones.
                pairs = list(zip(rowmax.query_slots(core, a), rowmax.lane_slots(core, a)))[::-1]
                for query, variants in tiles.each_epoch(core, pairs, self.epoch):
                    rowmax.query_operand(core, item, a, tile, query, variants)
            by_key = core.on["key_lanes"]
            ring = position // self.plan.row_blocks % RING
            slot = ring if lanes.is_dynamic(self.problem) else 0
            operand = tiles.key_to_l0(core, ring, segment, segment % 2)
            rowmax.scores(core, self._score_slot(position, segment), operand, by_key[slot], segment)

    def _fetch(self, a: int, tile) -> None:
        """Tiles that the probabilities of a unit will need on Vector, one unit ahead."""
        core, item = self.core, self.current
        if not (
            self.numbered
            or self.signed
            or self.problem.mask == "full"
            or self.problem.alibi == "bias"
            or self.problem.dropout_threshold
        ):
            return
        with core.when(*item.visits(a, tile)):
            if self.numbered:
                item.tile_number(self.numbers[a], a, tile)
                mask.fetch_visible(core, self.numbers[a])
            if self.signed:
                item.distance_number(self.crossings[a], a, tile)
                rowmax.fetch_distance(core, self.crossings[a])
            if self.problem.mask == "full":
                mask.fetch_plane(core, "mask", "hidden", item["mask_plane"], tile, item["start", a], item["rows", a])
            if self.problem.alibi == "bias":
                mask.fetch_plane(core, "bias", "bias", item["bias_plane"], tile, item["start", a], item["rows", a])
            if self.problem.dropout_threshold:
                dropout.fetch_keep(core, item["head"], tile, item["start", a], item["rows", a])

    def _probability_steps(self, a: int, tile, position: int, count: int) -> list:
        """Vector work of a unit in shares, to be recorded around `count` segments of work for the Cube."""
        dropped = self._ring("dropped", position) if self.problem.dropout_threshold else None
        unit = softmax.Unit(
            a=a,
            tile=tile,
            scores=[self._score_slot(position, segment) for segment in range(count)],
            probability=self._ring("probability", position),
            dropped=dropped,
            low=self._ring("low", position) if self.plan.precise_total else None,
            number=self.numbers[a] if self.numbered else None,
            distance=self.crossings[a] if self.signed else None,
            slopes=self.current_slopes.correction if self.signed else (),
        )
        take, *others = softmax.steps(self.core, unit)
        size = -(-len(others) // count)
        return [[take]] + [others[start : start + size] for start in range(0, len(others), size)]

    def _output(self, a: int, tile, position: int, segment: int) -> None:
        """output += probabilities . values and total += probabilities . ones, one segment of keys."""
        core, item, tik, plan = self.core, self.current, self.tik, self.plan
        rows, width = plan.rows, plan.segments[segment]
        with core.when(*item.visits(a, tile)):
            probability = tiles.probability_to_l0(core, self._ring("probability", position), segment)
            ones = core.on["l0_ones"][0]
            values = tiles.value_to_l0(core, self._ring("value", position), segment)

            def accumulate(target, left, right, columns: int) -> None:
                if segment < len(plan.segments) - 1:
                    tik.mmad(target, left, right, rows, width, columns, 1)
                    return
                with tik.if_scope(tile == item["first", a]):
                    tik.mmad(target, left, right, rows, width, columns, 0)
                with tik.else_scope():
                    tik.mmad(target, left, right, rows, width, columns, 1)

            accumulate(core.on["total"][a], probability, ones, 16)
            if plan.precise_total:
                low = tiles.probability_to_l0(core, self._ring("low", position), segment)
                accumulate(core.on["low_total"][a], low, ones, 16)
                if not self.problem.dropout_threshold:
                    tiles.probability_to_l0(core, self._ring("probability", position), segment)
            if self.problem.dropout_threshold:
                probability = tiles.probability_to_l0(core, self._ring("dropped", position), segment)
            accumulate(core.on["output"][a], probability, values, plan.head_dim)


def _key_base(core: Core, item: Item):
    """First element of the item's keys and values in global memory."""
    return core.wide(item["kv_head"], core.depth_columns * core.seq_k * 16)


def _chunk_parts(items: int) -> list[tuple[int, int]]:
    """(first item, items) of the chunks of the work table."""
    return [(start, min(ITEMS_PER_CHUNK, items - start)) for start in range(0, items, ITEMS_PER_CHUNK)]
