"""The loop over the key tiles of a work item: the pipeline of the forward operator.

A unit is one row block against one key tile. Scores run two units ahead of the output, probabilities one, so that no
pipe waits for another in the steady state; docs/kernels.md draws it.
"""

from __future__ import annotations

from collections.abc import Sequence

from flash_attention.kernels.tik.common import alibi, dropout, mask, score_terms, tiles
from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.forward import load, row_reference, softmax
from flash_attention.kernels.tik.forward.plan import RING, ForwardPlan
from flash_attention.kernels.tik.forward.score_bound import Verdict
from flash_attention.kernels.tik.forward.work import Item
from flash_attention.kernels.tik.language import Number, Scope, Step, Tensor

LAG = 2  # units between the scores of a tile and its part of the output


class TileLoop:
    """Records the tiles of one work item after another.

    Args:
        item: the item in work.
        epoch: run-time parity of the item that comes next.
        slopes: scalars of the slope of the item's head where keys stand on both sides of the queries, else None.
        numbered: whether there are visibility tiles.
        whole: number of the visibility tile that shows everything, 0 where there is none.
        verdict: see softmax.Unit.

    Attributes:
        base, value_base: run-time numbers of the first elements of the item's keys and values in global memory.
    """

    def __init__(
        self,
        core: Core[ForwardPlan],
        item: Item,
        epoch: Number,
        slopes: row_reference.QuerySlopes | None,
        *,
        numbered: bool,
        whole: int,
        verdict: Verdict | None,
    ):
        self.core, self.item, self.epoch, self.slopes = core, item, epoch, slopes
        self.tik, self.plan, self.problem = core.tik, core.plan, core.problem
        self.numbered, self.whole, self.verdict = numbered, whole, verdict
        # Where the memory is the limit, values are asked for as soon as what their slot held is used up, and the first
        # ones of an item before its loop. Elsewhere that would only take more events; what comes for a single tile of
        # scores would have to wait behind them.
        per_tile = "per_score" in (self.problem.mask, self.problem.bias) or self.problem.dropout_threshold > 0
        self.eager = self.plan.memory_bound and not per_tile
        self.value_ahead = RING - -(-LAG // self.plan.row_blocks) if self.eager else 0
        self.base = core.scalar("int64", "base")
        self.value_base = core.scalar("int64", "value_base") if core.value_columns != core.depth_columns else self.base
        self.numbers = [core.scalar("int32", f"unit_number_{a}") for a in range(self.plan.row_blocks)]
        # Of each unit of the loop body, 1 where its row block visits its key tile. Behind the last tile of an item, and
        # so before the first one of the next, it is 0.
        self.visits = [core.scalar("int32", f"visits_{unit}", 0) for unit in range(RING * self.plan.row_blocks)]
        self.crossings = [core.scalar("int32", f"unit_distance_{a}") for a in range(self.plan.row_blocks)]

    def first_tiles(self, item: Item, base: Number, value_base: Number) -> None:
        """The first tiles of an item are under way before its loop starts."""
        for ahead in range(RING - 1):
            self._load_key(item, base, item["begin"] + ahead, ahead)
            if ahead < self.value_ahead:
                self._load_value(item, value_base, item["begin"] + ahead, ahead)

    def _load_value(self, item: Item, base: Number, tile: Number, slot: int) -> None:
        with self.core.when(tile < item["end"]):
            load.load_value(self.core, self.core.on.value[slot], base, tile, item.keys)

    def _load_key(self, item: Item, base: Number, tile: Number, slot: int) -> None:
        core = self.core
        with core.when(tile < item["end"]):
            if score_terms.is_dynamic(self.problem):
                score_terms.load_key_terms(core, core.on.key_terms[slot], item.planes(), tile)
            # Used first: waiting for it covers the terms.
            load.load_key(core, load.key_slot(core, slot), base, tile, item.keys)

    def record(self, meanwhile: Sequence[Step]) -> None:
        """The loop over the key tiles of the item: scores two units ahead of the output, probabilities one ahead.

        Args:
            meanwhile: record loads that happen once per item, in this order, spread over its bodies: they share the
                memory with the tiles. In a body each has a unit after which it comes, so that neither the scalar unit
                nor the queue of the loads keeps the tiles waiting.
        """
        core, tik, blocks = self.core, self.tik, self.plan.row_blocks
        item = self.item
        steps = core.scalar("int32", "steps")
        # Units of the item plus the lag, in bodies of RING tiles; an inactive item takes one body.
        ahead = -(-LAG // blocks)
        steps.set_as((item["end"] - item["begin"] + (ahead + RING - 1)) // RING)
        bodies = [core.scalar("int32", f"load_body_{index}", 0) for index in range(len(meanwhile))]
        for index, turn in enumerate(bodies[1:], 1):
            turn.set_as((steps - 1) * index // len(meanwhile))
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
        core, blocks, item = self.core, self.plan.row_blocks, self.item
        a = position % blocks
        ring = position // blocks
        tile = first + ring
        if a == 0:
            if not self.eager:
                self._load_value(item, self.value_base, tile, ring)
            self._load_key(item, self.base, tile + 2, (ring + 2) % RING)
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
                for record in share:
                    record()
            if segment < count:
                self._scores(*ahead, segment)
                # Backwards: when the first probabilities of a later unit may overwrite these, all of them are read.
                self._output(*behind, count - 1 - segment)
        self._fetch(a, tile, position)
        if self.eager and a == blocks - 1:
            self._load_value(item, self.value_base, tile + self.value_ahead, (ring + self.value_ahead) % RING)

    def _visited(self, position: int) -> Scope:
        """if_scope over the unit at a position of the body being one of the item."""
        return self.tik.if_scope(self.visits[position % len(self.visits)] > 0)

    def _unit(self, first: Number, position: int) -> tuple[int, Number]:
        """(row block, key tile) of the unit at a position of the body; negative positions are the body before."""
        blocks = self.plan.row_blocks
        return position % blocks, first + position // blocks

    def _score_slot(self, position: int, segment: int) -> int:
        return (position * len(self.plan.segments) + segment) % self.plan.score_slots

    def _ring(self, name: str, position: int) -> Tensor:
        """L1 slot of a tile (value) or of a unit (probability, dropped, low)."""
        if name in ("probability", "dropped", "low"):
            return self.core.on.copies(name)[position % RING]
        return self.core.on.copies(name)[position // self.plan.row_blocks % RING]

    def _scores(self, a: int, tile: Number, position: int, segment: int) -> None:
        core, item = self.core, self.item
        with self._visited(position):
            if segment == 0:
                # `epoch` is the parity of the next item, so the slots of the current one are the other ones.
                pairs = list(zip(row_reference.query_slots(core, a), row_reference.query_terms(core, a)))[::-1]
                for query, variants in tiles.each_epoch(core, pairs, self.epoch):
                    row_reference.query_operand(core, item, a, tile, query, variants)
            by_key = core.on.key_terms
            ring = position // self.plan.row_blocks % RING
            slot = ring if score_terms.is_dynamic(self.problem) else 0
            load.key_to_l0(core, load.key_slot(core, ring), segment)
            score_terms.key_terms_to_l0(core, by_key[slot], segment)
            row_reference.scores(core, self._score_slot(position, segment), segment)

    def _fetch(self, a: int, tile: Number, position: int) -> None:
        """Tiles that the probabilities of a unit will need on Vector, one unit ahead."""
        core, item = self.core, self.item
        if not (
            self.numbered
            or self.slopes
            or self.problem.mask == "per_score"
            or self.problem.bias == "per_score"
            or self.problem.dropout_threshold
        ):
            return
        with self._visited(position):
            if self.numbered:
                item.tile_number(self.numbers[a], a, tile)
                if self.whole and self.verdict is not None:
                    with core.when(self.verdict.cut > 0, self.numbers[a] == 0):
                        self.numbers[a].set_as(self.whole)
                mask.fetch_visible(core, self.numbers[a])
            if self.slopes:
                item.distance_number(self.crossings[a], a, tile)
                alibi.fetch_distance(core, self.crossings[a])
            if self.problem.mask == "per_score":
                mask.fetch_plane(core, "mask", "hidden", item["mask_plane"], tile, item["start", a], item["rows", a])
            if self.problem.bias == "per_score":
                mask.fetch_plane(core, "bias", "bias", item["bias_plane"], tile, item["start", a], item["rows", a])
            if self.problem.dropout_threshold:
                dropout.fetch_keep(core, item, item["head"], tile, item["start", a], item["rows", a])

    def _probability_steps(self, a: int, tile: Number, position: int, count: int) -> list[list[Step]]:
        """Vector work of a unit in shares, to be recorded around `count` segments of work for the Cube."""
        dropped = self._ring("dropped", position) if self.problem.dropout_threshold else None
        on, slots = self.core.on, [self._score_slot(position, segment) for segment in range(count)]
        unit = softmax.Unit(
            a=a,
            tile=tile,
            scores=[on.scores[slot] for slot in slots],
            linear=[on.linear[slot % len(on.linear)] for slot in slots] if self.problem.rules.softcap else [],
            probability=self._ring("probability", position),
            dropped=dropped,
            low=self._ring("low", position) if self.plan.precise_total else None,
            number=self.numbers[a] if self.numbered else None,
            distance=self.crossings[a] if self.slopes else None,
            slopes=self.slopes.correction if self.slopes else (),
            verdict=self.verdict,
        )
        take, *others = softmax.steps(self.core, unit)
        size = -(-len(others) // count)
        return [[take]] + [others[start : start + size] for start in range(0, len(others), size)]

    def _output(self, a: int, tile: Number, position: int, segment: int) -> None:
        """output += probabilities . values and total += probabilities . ones, one segment of keys."""
        core, item, tik, plan = self.core, self.item, self.tik, self.plan
        rows, width = plan.rows, plan.segments[segment]

        def accumulate(*products: tuple[Tensor, Tensor, int]) -> None:
            """Each of `products` is (result, right operand, columns); the left one is the probabilities in L0A."""
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
            values = load.value_to_l0(core, self._ring("value", position), segment)
            total, output = (core.on.total[a], ones, 16), (core.on.output[a], values, plan.value_dim)
            if not plan.precise_total and not self.problem.dropout_threshold:
                accumulate(total, output)
                return
            accumulate(total)
            if plan.precise_total:
                load.probability_to_l0(core, self._ring("low", position), segment)
                accumulate((core.on.low_total[a], ones, 16))
            kept = "dropped" if self.problem.dropout_threshold else "probability"
            if plan.precise_total or kept == "dropped":
                load.probability_to_l0(core, self._ring(kept, position), segment)
            accumulate(output)
