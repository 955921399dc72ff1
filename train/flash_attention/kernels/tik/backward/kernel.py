"""The backward operator: gradients of query, key, value and bias, tile by tile (FlashAttention-2).

Dao, "FlashAttention-2" (2023), algorithm 2, with key tiles outermost: the gradients of a tile of keys and values stay
in the accumulator memory of the Cube while query tiles pass by. Three kernels run one after another: the pre-pass of
preprocess.py, the main kernel here, and postprocess.py, which rounds the query gradients to float16.
docs/kernels.md draws the pipeline.
"""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.kernels.tik import signature
from flash_attention.kernels.tik.backward import postprocess, preprocess, scheduler
from flash_attention.kernels.tik.backward.load import Loads
from flash_attention.kernels.tik.backward.scheduler import BackwardSplit
from flash_attention.kernels.tik.backward.softmax_grad import VectorWork
from flash_attention.kernels.tik.backward.tiling import (
    FIELDS,
    ITEMS_PER_CHUNK,
    PAIR,
    RING,
)
from flash_attention.kernels.tik.backward.work_item import KeyItem
from flash_attention.kernels.tik.common import alibi, score_terms
from flash_attention.kernels.tik.common.tiles import F, by_keys, each_epoch
from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.hardware import HALF_ROUND
from flash_attention.kernels.tik.kernel import Kernel
from flash_attention.kernels.tik.layout import accumulator_shape
from flash_attention.kernels.tik.problem import KernelProblem


@dataclass(frozen=True)
class Backward:
    """The kernels of the backward operator in the order in which they run; outputs of one are inputs of a later one."""

    rows: Kernel
    main: Kernel
    finish: Kernel

    @property
    def kernels(self) -> tuple[Kernel, ...]:
        return self.rows, self.main, self.finish

    def run(self, execute, **arrays) -> dict:
        """Runs the chain.

        Args:
            execute: execute(instance, feed, output_names) gives arrays by output name.
            arrays: stored inputs by name, see backward.host.inputs.

        Returns:
            d_query, d_key, d_value and the sums of the bias gradient, as stored.
        """
        for kernel in self.kernels:
            feed = kernel.feed(**{name: arrays[name] for name in kernel.given if name in arrays})
            arrays.update(execute(kernel.tik, feed, [tensor.name for tensor in kernel.outputs]))
        return {t.name: arrays[t.name] for t in self.main.outputs + self.finish.outputs if t.name != "d_query_sums"}


def build(
    problem: KernelProblem,
    tik,
    *,
    variant: str = "deterministic",
    bias_gradient: bool = False,
    logsumexp_gradient: bool = False,
    name: str = "flash_attention_backward",
    debug: bool = True,
) -> Backward:
    """Records and builds the three kernels of the backward operator.

    Args:
        problem: what to compute.
        tik: the tik module: `from tbe import tik`.
        variant: see VARIANTS.
        bias_gradient: also the gradient of a given bias.
        logsumexp_gradient: the pre-pass takes the gradient of the logsumexp.

    Raises:
        ValueError: an argument is not allowed, or no tiling strategy fits the memories of a core.
    """
    options = {"variant": variant, "bias_gradient": bias_gradient, "debug": debug}
    main = build_main(problem, tik, name=name, **options)
    rows = preprocess.build(problem, tik, logsumexp_gradient=logsumexp_gradient, name=f"{name}_rows", debug=debug)
    return Backward(rows, main, build_finish(problem, tik, name=f"{name}_finish", **options))


def build_main(
    problem: KernelProblem,
    tik,
    *,
    variant: str = "deterministic",
    bias_gradient: bool = False,
    name: str = "flash_attention_backward",
    debug: bool = True,
) -> Kernel:
    """The main kernel alone; arguments as in `build`."""
    return _main(signature.Request(problem, bias_gradient, variant=variant), tik, name, debug)


def build_finish(
    problem: KernelProblem,
    tik,
    *,
    variant: str = "deterministic",
    bias_gradient: bool = False,
    name: str = "flash_attention_backward_finish",
    debug: bool = True,
) -> Kernel:
    """The last kernel alone; arguments as in `build`."""
    request = signature.Request(problem, bias_gradient, variant=variant)
    return postprocess.build(request, tik, name=name, debug=debug)


def _main(request: signature.Request, tik, name: str, debug: bool) -> Kernel:
    problem = request.problem
    choice = scheduler.choose(problem, request.variant, request.bias_gradient)
    plan, split, parts = choice
    _, arguments = signature.match("grad", request, choice)
    instance = tik.Tik(disable_debug=not debug)
    gm = arguments.declare(tik, instance)
    core = Core(tik, instance, problem, plan, gm)
    with instance.for_range(0, split.cores, name="core", block_num=split.cores) as index:
        core.allocate(parts)
        _Main(core, split, index).record()
    arguments.build(instance, name, gm)
    units = max(split.units), sum(split.units)
    return Kernel(arguments.inputs, arguments.outputs, name, instance, problem, plan, parts, split.cores, units)


class _Main:
    """Records the statements of one core."""

    def __init__(self, core: Core, split: BackwardSplit, index):
        self.core, self.split, self.index = core, split, index
        self.tik, self.plan, self.problem = core.tik, core.plan, core.problem
        self.turn = 0

    def record(self) -> None:
        core, tik, items = self.core, self.tik, self.split.items
        self.item, self.coming = KeyItem(core, "item"), KeyItem(core, "coming")
        self.epoch = core.scalar("int32", "epoch", 0)  # parity of the item in work
        slopes = alibi.Slopes(core) if len(self.split.distances) else None
        self.loads = Loads(core, self.item, numbered=len(self.split.tiles) > 0, signed=slopes is not None)
        self.vector = VectorWork(core, self.item, slopes)
        self.loads.constants(len(self.split.tiles), len(self.split.distances))
        size = min(items, ITEMS_PER_CHUNK)
        with tik.for_range(0, -(-items // ITEMS_PER_CHUNK), name="chunk") as chunk:
            for start in range(0, items, ITEMS_PER_CHUNK):
                with tik.if_scope(chunk == start // ITEMS_PER_CHUNK):
                    count = min(ITEMS_PER_CHUNK, items - start)
                    source = core.gm["table"][(self.index * items + start) * FIELDS]
                    tik.data_move(core.on.table[0], source, 0, 1, count * FIELDS // 8, 0, 0)
            first = chunk * ITEMS_PER_CHUNK
            self._come(first, 0, size)
            with tik.if_scope(self.coming["count"] > 0):
                self.loads.keys(self.coming, self.epoch)
            with tik.for_range(0, size, name="position") as position:
                self.item.copy(self.coming)
                self._come(first, position + 1, size)
                with tik.if_scope(self.item["count"] > 0):
                    self._item()
                    self.epoch.set_as(1 - self.epoch)

    def _come(self, first, position, size: int) -> None:
        """Reads the item whose keys are loaded next; its count is 0 where there is none."""
        self.coming["count"].set_as(0)
        with self.core.when(position < size, first + position < self.split.items):
            self.coming.load(position * FIELDS)

    def _item(self) -> None:
        core, tik, item = self.core, self.tik, self.item
        item.rewind()
        for ahead in range(2):
            with core.when(ahead < item["steps"]):
                self.loads.rows(item.advance(ahead))
        self.loads.scores_extra(item.units[0])
        bodies = core.scalar("int32", "bodies")
        bodies.set_as((item["steps"] + (2 + RING - 1)) // RING)
        with tik.for_range(0, bodies, name="body") as body:
            for position in range(RING):
                self._step(body * RING + position, position)
                if position == 1:
                    # The keys of the next item are on their way while this one is in work.
                    with core.when(body == 0, self.coming["count"] > 0):
                        self.loads.keys(self.coming, 1 - self.epoch)
        self._end()

    def _step(self, step, position: int) -> None:
        """One step of the pipeline: scores of one tile, gradients of the one before, stores of the one before that."""
        core, item, steps = self.core, self.item, self.item["steps"]
        ahead, behind, done = (item.units[(position - lag) % RING] for lag in range(3))
        with core.when(step >= 2, step < steps + 2):
            self._store_query(done)
        with core.when(step + 2 < steps):
            self.loads.rows(item.advance((position + 2) % RING))
        with core.when(step < steps):
            self._scores(ahead)
        with core.when(step >= 1, step < steps + 1):
            self._value_gradient(behind, step)
        with core.when(step < steps):
            self.vector.probabilities(ahead)
            self._d_probability(ahead)
            self.vector.d_scores(ahead)
        with core.when(step >= 1, step < steps + 1):
            self._key_gradient(behind, step)
            self._query_gradient(behind)
        with core.when(step + 1 < steps):
            self.loads.scores_extra(item.units[(position + 1) % RING])

    # ---- Cube
    def _operand(self):
        """Place in L0B for the next operand made of keys: the one that was used longest ago."""
        copies = self.core.on.l0_keys
        self.turn += 1
        return copies[self.turn % len(copies)]

    def _product(self, target, left, left_terms, l0_terms, right, right_terms, key_terms=None) -> None:
        """target (rows, keys) = left . right + terms, segment by segment of keys; key_terms (L1) fill right_terms."""
        core, tik, plan = self.core, self.tik, self.plan
        operand = core.on.l0_rows[0]
        tik.load2dv1(l0_terms, left_terms, 0, plan.rows // 16, 1, 0, True)
        groups, columns = plan.rows // 16, core.depth_columns
        for group in range(groups):
            tik.load2dv1(operand[group * columns * F], left, group, columns, groups, 0, False)
        if key_terms is not None:
            tik.load2dv1(right_terms, key_terms, 0, plan.columns, 1, 0, True)
        for index, width in enumerate(plan.segments):
            keys, start = self._operand(), plan.segment_start(index)
            for slot in each_epoch(core, right, self.epoch):
                tik.load2dv1(keys, slot, start * plan.head_dim // F, width * plan.head_dim // F, 1, 0, False)
            tik.mmad(target[start * plan.rows], operand, keys, plan.rows, plan.head_dim, width, 0)
        tik.mmad(target, l0_terms, right_terms, plan.rows, 16, plan.keys, 1)

    def _scores(self, unit) -> None:
        on, ring = self.core.on, unit.position
        l0_keys, keys = on.l0_ones[0], None
        if score_terms.is_dynamic(self.problem):
            l0_keys, keys = on.l0_key_terms[0], on.key_terms[ring]
        left, rows = on.query[ring], on.logsumexp_terms[ring]
        self._product(on.scores[0], left, rows, on.l0_logsumexp_terms[0], on.key, l0_keys, keys)

    def _d_probability(self, unit) -> None:
        on, ring = self.core.on, unit.position
        ones = on.l0_ones[0]
        left, rows = on.d_output[ring], on.delta_terms[ring]
        self._product(on.d_probability[0], left, rows, on.l0_delta_terms[0], on.value, ones)
        if self.problem.dropout_threshold:
            self.tik.mmad(on.delta[0], on.l0_delta_terms[0], ones, self.plan.rows, 16, 16, 0)

    def _turned(self, target, weights, rows, step) -> None:
        """target (keys, head_dim) += weights^T . rows; it starts over at the first step of an item."""
        core, tik, plan = self.core, self.tik, self.plan
        left, right = core.on.l0_turned[0], core.on.l0_columns[0]
        tik.load2dv1(left, weights, 0, plan.area // F, 1, 0, True)
        groups = plan.rows // 16
        for first, count in plan.column_parts(plan.rows):
            for group in range(groups):
                tik.load2dv1(right[group * count * F], rows, first * groups + group, count, groups, 0, True)
            self._accumulate(target[first * plan.keys * 16], left, right, count * 16, step == 1)

    def _accumulate(self, target, left, right, columns: int, fresh) -> None:
        tik, plan = self.tik, self.plan
        with tik.if_scope(fresh):
            tik.mmad(target, left, right, plan.keys, plan.rows, columns, 0)
        with tik.else_scope():
            tik.mmad(target, left, right, plan.keys, plan.rows, columns, 1)

    def _value_gradient(self, unit, step) -> None:
        on = self.core.on
        self._turned(on.value_sum[0], on.probability[0], on.d_output[unit.position], step)

    def _key_gradient(self, unit, step) -> None:
        on, plan = self.core.on, self.plan
        self._turned(on.key_sum[0], on.d_score[unit.position % PAIR], on.query[unit.position], step)
        if not plan.bias_chunks:
            return
        # Sums per key, one column of 16 per query head of the group.
        column = on.l0_one_hot[0]
        for chunk in range(plan.bias_chunks):
            with self.core.when(unit.member >= 16 * chunk, unit.member < 16 * (chunk + 1)):
                fractal = on.one_hot[0][(unit.member - 16 * chunk) * F]
                self.core.repeat_fractal(column, fractal, plan.rows // 16, False)
                fresh = self.core.scalar("int32", "fresh", 0)
                with self.core.when(unit.member == 16 * chunk, unit.tile == self.item["first"]):
                    fresh.set_as(1)
                self._accumulate(on.bias_sum[chunk], on.l0_turned[0], column, 16, fresh > 0)

    def _query_gradient(self, unit) -> None:
        """query_sum (rows, head_dim) = d_score . keys."""
        core, tik, plan = self.core, self.tik, self.plan
        on = core.on
        left, weights = on.l0_d_score[0], on.d_score[unit.position % PAIR]
        for group in range(plan.rows // 16):
            tik.load2dv1(left[group * plan.keys * 16], weights, group, plan.columns, plan.rows // 16, 0, False)
        for first, count in plan.column_parts(plan.keys):
            right = self._operand()
            for slot in each_epoch(core, on.key_rows, self.epoch):
                tik.load2dv1(right, slot, first * plan.columns, count * plan.columns, 1, 0, True)
            tik.mmad(on.query_sum[0][first * plan.rows * 16], left, right, plan.rows, plan.keys, count * 16, 0)

    # ---- results
    def _store_query(self, unit) -> None:
        """Adds the query gradients of a step to their accumulator."""
        core, tik, plan, item = self.core, self.tik, self.plan, self.item
        _, heads, tiles, *_ = accumulator_shape(self.problem, plan, self.split.slots)
        stage, whole = core.on.d_query[0], plan.rows * plan.head_dim
        tik.tensor_mov(stage, core.on.query_sum[0], "m", 1, whole // F, 0, 0)
        number = (item["slot"] * heads + item["head"] + unit.member) * tiles + unit.tile
        tik.set_atomic_add(1)
        tik.data_move(core.gm["d_query_sums"][core.wide(number, whole)], stage, 0, 1, whole // 8, 0, 0)
        tik.set_atomic_add(0)

    def _end(self) -> None:
        """Gradients of the keys and values of the item, and of their bias."""
        core, tik, plan, problem, item = self.core, self.tik, self.plan, self.problem, self.item
        score, column = core.on.score[0], plan.keys * 16
        at_once = max(1, plan.rows // 16)
        halves = [core.on.probability_half[0], core.on.d_score_half[0]]
        base = core.wide(item["kv_head"], core.depth_columns * core.seq_k * 16)
        turn = 0
        for name, buffer, factor in (
            ("d_value", "value_sum", problem.dropout_scale),
            ("d_key", "key_sum", problem.scale * problem.dropout_scale),
        ):
            for first in range(0, core.depth_columns, at_once):
                count = min(at_once, core.depth_columns - first)
                half, turn = halves[turn % 2], turn + 1
                elements = count * column
                source = core.on.copies(buffer)[0][first * column]
                if factor == 1.0:
                    tik.tensor_mov(half, source, "m", 1, elements // F, 0, 0)
                else:
                    tik.tensor_mov(score[HALF_ROUND], source, "m", 1, elements // F, 0, 0)
                    core.with_scalar("vec_muls", score, score[HALF_ROUND:], factor, elements, 64)
                    core.to_half(half, score, elements)

                def store(have: int, name=name, first=first, count=count, half=half) -> None:
                    target = base + first * core.seq_k * 16 + item["tile"] * column
                    core.move((core.gm[name], target), (half, 0), count, have, plan.keys - have, core.seq_k - have)

                by_keys(core, item["tile"], store)
        for chunk in range(plan.bias_chunks):
            tik.tensor_mov(score[HALF_ROUND], core.on.bias_sum[chunk], "m", 1, plan.columns, 0, 0)
            core.with_scalar("vec_muls", score, score[HALF_ROUND:], problem.dropout_scale, column, 64)

            def store_bias(have: int, chunk=chunk) -> None:
                line = core.wide(item["kv_head"] * plan.bias_chunks + chunk, core.seq_k * 16)
                tik.data_move(core.gm["d_bias_sums"][line + item["tile"] * column], score, 0, 1, have * 2, 0, 0)

            by_keys(core, item["tile"], store_bias)
