"""The backward operator: gradients of query, key, value and bias, tile by tile.

Dao, "FlashAttention-2" (2023), algorithm 2; two or three kernels run one after another, of which this is the main one:

    D = rowsum(dO * O), D and logsumexp as terms                preprocess.py, a kernel
    for K, V in work of this core:                              schedule.py, load.py
        for Q, dO in query tiles that see K:                    load.py
            S = Q K^T - logsumexp                               here
            P = exp(S), masks, dropout                          softmax.probabilities
            dV += P^T dO, dP = dO V^T - D                       here
            dS = P * dP, the gradient of a bias per score       softmax.d_scores
            dK += dS^T Q, dQ += dS K                            here (Cube), store.QuerySums
        dK, dV                                                  store.Results
    dQ in float16, if several cores share a head                postprocess.py, a kernel

dK and dV stay in the accumulator memory of the Cube while query tiles pass by. docs/kernels.md draws the pipeline,
tiling.py chooses the tiles and how their steps follow each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from flash_attention.kernels.tik.backward import kept_sums
from flash_attention.kernels.tik.backward.items import KeyItem, Unit
from flash_attention.kernels.tik.backward.load import Loads
from flash_attention.kernels.tik.backward.schedule import choose
from flash_attention.kernels.tik.backward.softmax import VectorWork
from flash_attention.kernels.tik.backward.store import QuerySums, Results
from flash_attention.kernels.tik.backward.tiling import ITEMS_PER_CHUNK, PAIR, RING, BackwardPlan, in_turn
from flash_attention.kernels.tik.common import alibi, score_terms, softcap
from flash_attention.kernels.tik.common.band import BandAtRunTime
from flash_attention.kernels.tik.common.double_buffer import each_epoch
from flash_attention.kernels.tik.common.score_terms import TERMS
from flash_attention.kernels.tik.common.table_row import chunks, load_chunk
from flash_attention.kernels.tik.hardware import FRACTAL
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, Scalar, Tensor

# If gradients are deferred: the loop body of an item in which the keys of the next item are placed. The keys are
# fetched at the end of the loop body before, or of the last body if there are fewer. One body earlier still, the key
# gradients of the previous item are stored. The placing is that late because later work in the queue of Vector waits
# with it. In items with few bodies, though, the rows of the next item would wait behind its keys.
PLACE_BODY, EARLY_BODY, FEW_BODIES = 3, 2, 8
PLACE_POSITION = 1


class Backward:
    """The main backward kernel: steps of query tiles, item after item, on one core."""

    flags = 0

    def __init__(self, problem: KernelProblem):
        self.problem = problem
        choice = choose(problem)
        self.plan, self.split, self.buffers = choice.plan, choice.split, choice.buffers
        self.cores, self.units = self.split.cores, (max(self.split.units), sum(self.split.units))
        self.behind = 2 if self.plan.pipeline.late else 1  # steps of an item's loop beyond its own

    def emit(self, core: Core[BackwardPlan], index: Number) -> None:
        """Emit the statements of one core."""
        self.core, self.tik, self.turn = core, core.tik, 0
        tik, items = core.tik, self.split.items
        self.item, self.next_item = (
            KeyItem(core, name, self.split.writes_d_query, self.split.kept) for name in ("item", "next_item")
        )
        self.epoch = core.scalar("int32", "epoch", 0)  # parity of the item in work
        self.lowered = core.scalar("int32", "lowered", 0)  # the next scores are added to numbers that lower them
        if self.problem.sequences:
            core.band = BandAtRunTime(core)
        slopes = alibi.Slopes(core) if len(self.split.distances) else None
        self.loads = Loads(core, self.item, numbered=len(self.split.tiles) > 0, signed=slopes is not None)
        self.vector = VectorWork(core, self.item, self.loads, slopes)
        self.results = Results(core)
        self.query_sums = QuerySums(core, self.item, self.split)
        self.loads.constants(self.split.tiles, self.split.distances)
        for name in ("d_key", "d_value", *(("d_query",) if self.split.writes_d_query else ())):
            core.clear_padding(name, core.on.d_score_half[0], index, self.split.cores)
        size = min(items, ITEMS_PER_CHUNK)
        with tik.for_range(0, -(-items // ITEMS_PER_CHUNK), name="chunk") as chunk:
            for start, count in chunks(items):
                with tik.if_scope(chunk == start // ITEMS_PER_CHUNK):
                    load_chunk(core, self.item.layout, index * items + start, count)
            first = chunk * ITEMS_PER_CHUNK
            self._read_next_item(first, 0, size)
            with tik.if_scope(self.next_item["count"] > 0):
                self.loads.fetch_keys(self.next_item, self.epoch)
                self.loads.place_keys(self.epoch)
            with tik.for_range(0, size, name="position") as position:
                self.item.copy(self.next_item)
                self._read_next_item(first, position + 1, size)
                with tik.if_scope(self.item["count"] > 0):
                    self._item()
                    self.epoch.set_as(1 - self.epoch)
        if self.plan.pipeline.deferred:
            with tik.if_scope(self.results.pending > 0):
                for gradient in (self.results.values, self.results.keys):
                    if self.plan.pipeline.late:
                        self.results.take(gradient)
                    for part in range(RING):
                        self.results.store(gradient, part)

    def _read_next_item(self, first: Number, position: Number, size: int) -> None:
        """Read the item whose keys are loaded next. Its count is 0 if there is none."""
        self.next_item["count"].set_as(0)
        with self.core.when(position < size, first + position < self.split.items):
            self.next_item.load(position)
            if self.problem.listed:
                self.next_item.load_list(position % 2)

    def _item(self) -> None:
        core, item = self.core, self.item
        item.rewind()
        for ahead in range(2):
            with core.when(ahead < item["steps"]):
                self.loads.rows(item.advance(ahead))
        self.loads.scores_extra(item.units[0], self.epoch)
        if self.plan.pipeline.whole:
            turn = self.turn
            self._scores(item.units[0], core.on.l0_turned[0])
            self.turn = turn
        bodies = core.scalar("int32", "bodies")
        bodies.set_as((item["steps"] + (self.behind + RING - 1)) // RING)
        (self._deferred if self.plan.pipeline.late else self._plain)(bodies)

    def _plain(self, bodies: Number) -> None:
        """Emit the steps of an item. The keys of the next one are on their way in the meantime."""
        store_body = self._body("store_body", 1, bodies)
        with self.tik.for_range(0, bodies, name="body") as body:
            for position in range(RING):
                (self._whole_step if self.plan.pipeline.whole else self._step)(body, position)
                self._store(body, store_body, position)
                with self.core.when(body == 0, self.next_item["count"] > 0):
                    if position == 1:
                        self.loads.fetch_keys(self.next_item, 1 - self.epoch)
                    # Steps later, because later work in the queue of Vector waits with it.
                    if position == 3:
                        self.loads.place_keys(1 - self.epoch)
        # This happens while the Cube works on the last gradients of queries.
        if self.plan.pipeline.deferred:
            for gradient in (self.results.values, self.results.keys):
                self.results.take(gradient)
            self.results.keep(self.item)
        else:
            self.results.finish(self.item)
        last = self.item.last()
        self.query_sums.locate(last)
        self.query_sums.store(last)

    def _deferred(self, bodies: Number) -> None:
        """Emit the steps of an item, and the gradients of the item before. The next keys then take their place."""
        core, next_item = self.core, self.next_item
        place_body = core.scalar("int32", "place_body", PLACE_BODY)
        with self.tik.if_scope(bodies <= FEW_BODIES):
            place_body.set_as(EARLY_BODY)
        store_body = self._body("store_body", place_body - 2, bodies)
        fetch_body = self._body("fetch_body", place_body - 1, bodies)
        with self.tik.for_range(0, bodies, name="body") as body:
            for position in range(RING):
                self._step(body, position)
                self._store(body, store_body, position)
                if position == PLACE_POSITION:
                    with core.when(body == place_body, next_item["count"] > 0):
                        self.loads.place_keys(1 - self.epoch)
            with core.when(body == fetch_body, next_item["count"] > 0):
                self.loads.fetch_keys(next_item, 1 - self.epoch)
        with core.when(bodies <= place_body, next_item["count"] > 0):
            self.loads.place_keys(1 - self.epoch)
        self.results.keep(self.item)

    def _store(self, body: Number, store_body: Number, position: int) -> None:
        """Store a part of the gradients of the item before."""
        core, results = self.core, self.results
        if not self.plan.pipeline.deferred:
            return
        with core.when(body == 0, results.pending > 0):
            results.store(results.values, position)
        with core.when(body == store_body, results.pending > 0):
            results.store(results.keys, position)

    def _body(self, name: str, wanted: Number, bodies: Number) -> Scalar:
        """Return the number of a loop body: the wanted one, or the last if there are fewer."""
        result = self.core.scalar("int32", name, wanted)
        with self.tik.if_scope(bodies <= result):
            result.set_as(bodies - 1)
        return result

    def _step(self, body: Number, position: int) -> None:
        """Record one step of the pipeline: scores of a tile, gradients and stores of tiles before."""
        core, item, steps = self.core, self.item, self.item["steps"]
        step = body * RING + position
        ahead, behind, done = (item.units[(position - lag) % RING] for lag in range(3))
        # If Vector is the limit, it takes them while it waits for the scores that it has just taken.
        late = not self.plan.pipeline.single
        with core.when(step >= 2, *((step >= steps,) if late else ()), step < steps + self.behind):
            self.query_sums.store(done)
        if not late:
            self._load_rows(step, position)
        with core.when(step < steps):
            self._scores(ahead)
        with core.when(step >= 1, step < steps + 1):
            values, on = self.plan.value_dim, core.on
            self._add_transposed_product(values, on.value_sum[0], on.probability[0], "scaled_d_output", behind, step)
        with core.when(step < steps):
            self.vector.take_scores()
            if late:
                with self.tik.if_scope(step >= 2):
                    self.query_sums.store(done)
        if late:
            self._load_rows(step, position)
        with core.when(step < steps):
            self.vector.exponentials(ahead)
            self.vector.round()
            self._take(body, position, exact=True)
            self._d_probability(ahead)
            self.vector.take_d_probability()
            if not self.plan.pipeline.tight:
                self.vector.d_scores(ahead)
                self._take(body, position, exact=False)
        if self.plan.pipeline.tight:
            self._halves(body, position)
        else:
            with core.when(step >= 1, step < steps + 1):
                # Before the work that waits for the gradients of the scores, so that fewer events are in flight.
                self.query_sums.fetch(behind)
                (part,) = self.plan.query_parts
                columns = self._key_columns(*self.plan.key_parts(part)[0])
                self._key_gradient(behind, step)
                self._query_gradient(behind, part, columns)
        with core.when(step + 1 < steps):
            self.loads.scores_extra(item.units[(position + 1) % RING], self.epoch)

    def _whole_step(self, body: Number, position: int) -> None:
        """Emit a step whose Vector instructions are independent and as long as a tile.

        The Cube has the scores of the step after when Vector comes to them.
        """
        core, item, steps = self.core, self.item, self.item["steps"]
        step = body * RING + position
        ahead, behind, done = (item.units[(position - lag) % RING] for lag in range(3))
        with core.when(step < steps):
            self.vector.take_scores()
        with core.when(step >= 2, step < steps + 1):
            self.query_sums.store(done)
        self._load_rows(step, position)
        with core.when(step >= 1, step < steps + 1):
            values, on = self.plan.value_dim, core.on
            self._add_transposed_product(values, on.value_sum[0], on.probability[0], "scaled_d_output", behind, step)
        with core.when(step < steps):
            self.vector.exponentials(ahead)
            self._d_probability(ahead)
            with core.tik.if_scope(step + 1 < steps):
                self.vector.take_d_probability()
            self.vector.round()
            # After the last probabilities, because all other work waits for them.
            with core.tik.if_scope(step + 1 >= steps):
                self.vector.take_d_probability()
            self.vector.d_scores(ahead)
        with core.when(step >= 1, step < steps + 1):
            self.query_sums.fetch(behind)
            self._key_gradient(behind, step)
        with core.when(step + 1 < steps):
            following = item.units[(position + 1) % RING]
            self.loads.scores_extra(following, self.epoch)
            self._scores(following)
        with core.when(step >= 1, step < steps + 1):
            (part,) = self.plan.query_parts
            self._query_gradient(behind, part, self._key_columns(*self.plan.key_parts(part)[0]))

    def _halves(self, body: Number, position: int) -> None:
        """Record the end of a step if L0C holds half of the queries' gradients.

        The Cube makes the first half ahead of the gradients of the keys, and Vector takes it in the meantime.
        """
        core, steps = self.core, self.item["steps"]
        step = body * RING + position
        ahead, behind = (self.item.units[(position - lag) % RING] for lag in range(2))
        first, second = self.plan.query_parts
        with core.when(step >= 1, step < steps + 1):
            self.query_sums.fetch(behind)
            self._query_gradient(behind, first, self._key_columns(*self.plan.key_parts(first)[0]))
            self.query_sums.take(first)
        with core.when(step < steps):
            self.vector.d_scores(ahead)
            self._take(body, position, exact=False)
        with core.when(step >= 1, step < steps + 1):
            self._key_gradient(behind, step)
            self._query_gradient(behind, second)

    def _load_rows(self, step: Number, position: int) -> None:
        """Load the rows of the step after the next in place of finished rows."""
        with self.core.when(step + 2 < self.item["steps"]):
            self.loads.rows(self.item.advance((position + 2) % RING))

    def _take(self, body: Number, position: int, exact: bool) -> None:
        """Take the previous item's gradients out of L0C in the first step. Gradients of factor 1 come first, because
        they need no space.
        """
        results = self.results
        gradients = [one for one in (results.values, results.keys) if (one.factor == 1.0) == exact]
        if not self.plan.pipeline.late or position > 0 or not gradients:
            return
        with self.core.when(body == 0, results.pending > 0):
            for gradient in gradients:
                results.take(gradient)

    # ---- Cube
    def _operand(self) -> Tensor:
        """Place in L0B for the next operand made of keys: the one that was used longest ago."""
        copies = self.core.on.l0_keys
        self.turn += 1
        return copies[self.turn % len(copies)]

    def _product(
        self,
        dim: int,
        target: list[Tensor],
        left: Iterable[Tensor],
        left_terms: Tensor,
        l0_terms: Tensor,
        right: list[Tensor],
        right_terms: Tensor,
        key_terms: Tensor | None = None,
        linear: Tensor | None = None,
        lowered: Scalar | None = None,
    ) -> None:
        """Compute target (rows, keys) = left . right + terms, segment by segment of keys; key_terms (L1) fill
        right_terms.

        target is one tensor, or two of half the keys each. left, as of `_rows_in_l1`, and right are `dim` wide. If
        `linear` is given it gets the terms instead.
        """
        core, tik, plan = self.core, self.tik, self.plan
        operand = core.on.l0_rows[0]
        tik.load2dv1(l0_terms, left_terms, 0, plan.rows // 16, 1, 0, True)
        groups, columns = plan.rows // 16, dim // 16
        for rows in left:
            for group in range(groups):
                tik.load2dv1(operand[group * columns * FRACTAL], rows, group, columns, groups, 0, False)
        if key_terms is not None:
            tik.load2dv1(right_terms, key_terms, 0, plan.columns, 1, 0, True)
        starts = [at // plan.rows for at, _ in plan.pieces]  # first keys of the tensors
        for index, part in in_turn(range(len(plan.segments)), len(target)):
            width, start = plan.segments[index], plan.segment_start(index)
            size = plan.keys if len(target) == 1 else plan.pieces[part][1] // plan.rows
            keys, inside = self._operand(), start - starts[part]
            for slot in each_epoch(core, right, self.epoch):
                tik.load2dv1(keys, slot, start * dim // FRACTAL, width * dim // FRACTAL, 1, 0, False)
            place = target[part][inside * plan.rows]
            if lowered is None:
                tik.mmad(place, operand, keys, plan.rows, dim, width, 0)
            else:
                with tik.if_scope(lowered > 0):
                    tik.mmad(place, operand, keys, plan.rows, dim, width, 1)
                with tik.else_scope():
                    tik.mmad(place, operand, keys, plan.rows, dim, width, 0)
            if linear is None and inside + width == size:
                terms = right_terms[starts[part] * TERMS]
                tik.mmad(target[part], l0_terms, terms, plan.rows, 16, size, 1)
        if linear is not None:
            columns = softcap.terms_width(self.problem, plan.keys)
            tik.mmad(linear, l0_terms, right_terms, plan.rows, 16, columns, 0)

    def _rows_in_l1(self, name: str, unit: Unit) -> Iterator[Tensor]:
        """Yield the place of the query or output gradient of a step: in the ring or among the kept tiles."""
        slot = self.core.on.copies(name)[unit.position]
        if unit.place is not None:
            slot = slot[unit.place.way * self.plan.row_elements(name)]
        if unit.kept is None:
            yield slot
            return
        with self.tik.if_scope(unit.kept < 0):
            yield slot
        with self.tik.else_scope():
            yield self.core.on.copies(f"kept_{name}")[0][unit.kept * self.plan.row_elements(name)]

    def _scores(self, unit: Unit, spare: Tensor | None = None) -> None:
        """Emit the scores of a step. `spare` replaces the place in L0A for lowering whole tiles."""
        on, ring = self.core.on, unit.position
        l0_keys, keys = on.l0_ones[0], None
        if score_terms.is_dynamic(self.problem):
            l0_keys, keys = on.l0_key_terms[0], on.key_terms[ring]
        left, rows = self._rows_in_l1("query", unit), on.logsumexp_terms[ring]
        linear = on.linear[0] if self.problem.call.rules.softcap else None
        dim, l0_rows = self.plan.head_dim, on.l0_logsumexp_terms[0]
        number, apart = self.loads.number if on.copies("lowering") else None, self.loads.apart
        before = number is not None and self.plan.pipeline.whole
        place = on.l0_turned[0] if not before else on.l0_d_score[0] if spare is None else spare
        if number is not None and before:
            # In the place of the operand that follows the scores. That operand then waits for nothing.
            turn = self.turn
            self.turn += len(self.plan.segments)
            with self.tik.if_scope(number > 0):
                self._lower_hidden(number, 0, place)
            self.turn = turn
        lowered = number if before else None
        if number is not None and apart is not None:
            turn, lowered = self.turn, self.lowered
            self.turn += len(self.plan.segments)
            with self.tik.if_scope(apart > 0):
                if before:
                    with self.tik.if_scope(number > 0):
                        self._lower_others(unit, 1, place)
                    with self.tik.else_scope():
                        self._lower_others(unit, 0, place)
                else:
                    self._lower_others(unit, 0, place)
            self.turn = turn
            lowered.set_as(apart + number if before else apart)
        self._product(dim, on.scores, left, rows, l0_rows, on.key, l0_keys, keys, linear, lowered)
        if number is not None and not before:
            with self.tik.if_scope(number > 0):
                self._lower_hidden(number, 1, place)

    def _lower_hidden(self, number: Number, adds: int, left: Tensor) -> None:
        """Lower hidden scores until their exponential is zero. Then no product with them saturates, however large.

        A product of a diagonal matrix with a tile of LOWEST and zeros takes Vector, which is the limit there, no time.
        """
        tik, plan, on, groups = self.tik, self.plan, self.core.on, self.plan.rows // 16
        tile = on.tiles[0][(number - 1) * plan.area]
        tik.load2dv1(left, on.lowering[0], 0, groups * groups, 1, 0, False)
        size = min(plan.columns, on.l0_keys[0].shape[0] // (plan.rows * 16))
        parts = plan.pieces if len(on.scores) > 1 else ((0, plan.area),)
        for (at, elements), target in zip(parts, on.scores):
            columns = elements // (plan.rows * 16)
            for first in range(0, columns, size):
                right, count = self._operand(), min(size, columns - first)
                start = (at // (plan.rows * 16) + first) * groups
                for group in range(groups):
                    tik.load2dv1(right[group * count * FRACTAL], tile, start + group, count, groups, 0, True)
                tik.mmad(target[first * plan.rows * 16], left, right, plan.rows, plan.rows, count * 16, adds)

    def _lower_others(self, unit: Unit, adds: int, left: Tensor) -> None:
        """Lower scores of other segments. This comes before the scores, because its sums are large but exact."""
        tik, plan, on = self.tik, self.plan, self.core.on
        tik.load2dv1(left, on.segment_queries[unit.position], 0, plan.rows // 16, 1, 0, True)
        right, at = self._operand(), 0
        for slot in each_epoch(self.core, on.segment_keys, self.epoch):
            tik.load2dv1(right, slot, 0, plan.columns, 1, 0, True)
        parts = plan.pieces if len(on.scores) > 1 else ((0, plan.area),)
        for (first, elements), target in zip(parts, on.scores):
            at, keys = first // plan.rows, elements // plan.rows
            tik.mmad(target, left, right[at * TERMS], plan.rows, TERMS, keys, adds)

    def _d_probability(self, unit: Unit) -> None:
        on, ring = self.core.on, unit.position
        ones = on.l0_ones[0]
        left, rows = self._rows_in_l1("scaled_d_output", unit), on.delta_terms[ring]
        target = on.copies("d_probability") or on.scores
        self._product(self.plan.value_dim, target, left, rows, on.l0_delta_terms[0], on.value, ones)
        if self.problem.call.dropout_threshold:
            self.tik.mmad(on.delta[0], on.l0_delta_terms[0], ones, self.plan.rows, 16, 16, 0)

    def _add_transposed_product(
        self, dim: int, target: Tensor, weights: Tensor, name: str, unit: Unit, step: Number
    ) -> None:
        """Add target (keys, dim) += weights^T . rows of `name`; it starts over at the first step of an item."""
        core, tik, plan = self.core, self.tik, self.plan
        left, right = core.on.l0_turned[0], core.on.l0_columns[0]
        groups, parts = plan.rows // 16, plan.column_parts(plan.rows, dim)

        def load(first: int, count: int) -> None:
            for rows in self._rows_in_l1(name, unit):
                for group in range(groups):
                    tik.load2dv1(right[group * count * FRACTAL], rows, first * groups + group, count, groups, 0, True)

        if plan.pipeline.whole:  # while the weights are on their way to L1
            load(*parts[0])
        tik.load2dv1(left, weights, 0, plan.area // FRACTAL, 1, 0, True)
        for first, count in parts:
            if first or not plan.pipeline.whole:
                load(first, count)
            self._accumulate(target[first * plan.keys * 16], left, right, count * 16, step == 1)

    def _accumulate(self, target: Tensor, left: Tensor, right: Tensor, columns: int, fresh: Number) -> None:
        tik, plan = self.tik, self.plan
        with tik.if_scope(fresh):
            tik.mmad(target, left, right, plan.keys, plan.rows, columns, 0)
        with tik.else_scope():
            tik.mmad(target, left, right, plan.keys, plan.rows, columns, 1)

    def _key_gradient(self, unit: Unit, step: Number) -> None:
        on, plan = self.core.on, self.plan
        weights = on.d_score[unit.position % PAIR]
        self._add_transposed_product(plan.head_dim, on.key_sum[0], weights, "query", unit, step)
        if not plan.bias_chunks:
            return
        # Sums per key, one column of 16 per query head of the group.
        if self.problem.call.rules.softcap:
            self.tik.load2dv1(on.l0_turned[0], on.d_biased[unit.position % PAIR], 0, plan.area // FRACTAL, 1, 0, True)
        column = on.l0_one_hot[0]
        for chunk in range(plan.bias_chunks):
            with self.core.when(unit.member >= 16 * chunk, unit.member < 16 * (chunk + 1)):
                fractal = on.one_hot[0][(unit.member - 16 * chunk) * FRACTAL]
                self.core.repeat_fractal(column, fractal, plan.rows // 16, False)
                fresh = self.core.scalar("int32", "fresh", 0)
                # Under a block mask there is one chunk, and its first step may be of any head.
                first = unit.member == 16 * chunk, unit.tile == self.item["first"]
                with self.core.when(*((step == 1,) if self.problem.listed else first)):
                    fresh.set_as(1)
                self._accumulate(on.bias_sum[chunk], on.l0_turned[0], column, 16, fresh > 0)

    def _key_columns(self, first: int, count: int) -> Tensor:
        """Return fractal columns of the keys in L0B."""
        right, size = self._operand(), self.plan.columns
        for slot in each_epoch(self.core, self.core.on.key_rows, self.epoch):
            self.tik.load2dv1(right, slot, first * size, count * size, 1, 0, True)
        return right

    def _query_gradient(self, unit: Unit, part: tuple[int, int], columns: Tensor | None = None) -> None:
        """Compute query_sum (rows, some columns) = d_score . keys.

        Args:
            part: one of plan.query_parts.
            columns: the first columns of the keys in L0B; None for another part than the first one.
        """
        tik, plan, on = self.tik, self.plan, self.core.on
        left, weights = on.l0_d_score[0], on.d_score[unit.position % PAIR]
        if columns is not None:
            for group in range(plan.rows // 16):
                tik.load2dv1(left[group * plan.keys * 16], weights, group, plan.columns, plan.rows // 16, 0, False)
        size = part[1] // len(on.query_sum)
        for (first, count), tensor in in_turn(self.plan.key_parts(part), len(on.query_sum)):
            right = columns if first == 0 else self._key_columns(first, count)
            at = (first - part[0] - tensor * size) * plan.rows * 16
            if unit.sum is None:
                tik.mmad(on.query_sum[tensor][at], left, right, plan.rows, plan.keys, count * 16, 0)
                continue
            target = on.query_sum[tensor][unit.sum.product * (size * plan.rows * 16) + at]
            with self.core.when(unit.sum.product > 0, unit.sum.kind > kept_sums.STARTS):
                tik.mmad(target, left, right, plan.rows, plan.keys, count * 16, 1)
            with tik.else_scope():
                tik.mmad(target, left, right, plan.rows, plan.keys, count * 16, 0)
