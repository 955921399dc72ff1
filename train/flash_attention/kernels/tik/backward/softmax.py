"""Vector work of a step of the backward operator: scores to probabilities, and the gradients of the scores."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from flash_attention.kernels.tik.backward.items import KeyItem, Unit
from flash_attention.kernels.tik.backward.load import Loads
from flash_attention.kernels.tik.backward.tiling import PAIR, BackwardPlan, lowers_on_cube
from flash_attention.kernels.tik.common import alibi, dropout, mask, softcap
from flash_attention.kernels.tik.common.tails import by_keys, by_rows
from flash_attention.kernels.tik.hardware import FRACTAL, HALF_ROUND
from flash_attention.kernels.tik.problem import padded
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Scalar, Tensor

Part = tuple[int, int, Tensor]  # first element in a tile, elements, where they are


class VectorWork:
    """Record the Vector work of one core, and the moves of its results to L1."""

    def __init__(
        self, core: Core[BackwardPlan], item: KeyItem, loads: Loads, slopes: alibi.Slopes[BackwardPlan] | None
    ):
        self.core, self.item, self.loads, self.slopes = core, item, loads, slopes
        # Run-time flag: causality hides the second half of a tile from all of its rows. Its probabilities are zeros
        # without an exponential, which pays if Vector is the limit.
        plan, asked = core.plan, core.problem.call.rules.causal and not core.problem.call.prefix
        possible = asked and not plan.pipeline.single and plan.columns > 1
        self._hidden = core.scalar("int32", "hidden_half", 0) if possible else None

    def _by_sight(self, parts: list[Part]) -> Iterator[list[Part]]:
        """Yield parts in scopes: all parts if some row sees the second half of the tile, else the first half."""
        if self._hidden is None:
            yield parts
            return
        half = self.core.plan.half
        if len(parts) > 1:
            yield parts[:1]
            with self.core.tik.if_scope(self._hidden == 0):
                yield parts[1:]
            return
        with self.core.tik.if_scope(self._hidden == 0):
            yield parts
        with self.core.tik.else_scope():
            yield [(0, half, parts[0][2])]

    def _pieces(self, name: str, shift: int = 0) -> list[Part]:
        """Return (first element, elements, tensor) of the pieces of a tile in the Unified Buffer.

        Args:
            shift: elements by which they stand further on than the buffer begins.
        """
        copies, pieces = self.core.on.copies(name), self.core.plan.pieces
        if len(copies) > 1:
            return [(at, elements, copy[shift:]) for (at, elements), copy in zip(pieces, copies)]
        return [(at, elements, copies[0][at + shift :]) for at, elements in pieces]

    def _in_halves(self, name: str, shift: int = 0) -> list[Part]:
        """Return the same of the halves of a tile."""
        copies, half, area = self.core.on.copies(name), self.core.plan.half, self.core.plan.area
        if not self.core.plan.pipeline.whole or half == area:
            return self._pieces(name, shift)
        second = copies[1][shift:] if len(copies) > 1 else copies[0][half + shift :]
        return [(0, half, copies[0][shift:]), (half, area - half, second)]

    def _from_l0c(self, name: str, target: Tensor, at: int, elements: int) -> None:
        """Take a piece of a tile, which may be a tensor of L0C."""
        sources = self.core.on.copies(name) or self.core.on.scores
        source = sources[0][at] if len(sources) == 1 else sources[1 if at else 0]
        self.core.from_l0c(target, source, elements // FRACTAL)

    def take_scores(self) -> None:
        """Take the scores out of L0C. It is one move if Vector can do something else meanwhile."""
        core, shift, plan = self.core, self.core.operand_shift, self.core.plan
        if core.problem.call.rules.softcap:
            return
        skew = HALF_ROUND if core.problem.post_scale != 1.0 else 0
        if not plan.pipeline.single and not plan.pipeline.apart:
            core.from_l0c(core.on.score[0][shift + skew :], core.on.scores[0][0], plan.area // FRACTAL)
            return
        pieces = self._pieces("score", shift + skew)
        for at, elements, target in pieces if plan.pipeline.single else reversed(pieces):
            self._from_l0c("scores", target, at, elements)

    def exponentials(self, unit: Unit) -> None:
        """Compute exp(scores - logsumexp) in `score`."""
        core, problem = self.core, self.core.problem
        shift = core.operand_shift
        exponents = self._pieces("score", shift)
        skew = HALF_ROUND if problem.post_scale != 1.0 else 0
        if problem.call.rules.softcap:
            self._cap()
        if skew and not problem.call.rules.softcap:
            for (_, elements, exponent), (_, _, source) in zip(exponents, self._pieces("score", shift + skew)):
                core.with_scalar("vec_muls", exponent, source, problem.post_scale, elements)
        if problem.call.bias == "per_score":
            for at, elements, exponent in exponents:
                core.add_half(exponent, core.on.bias[0][at:], 1.0, elements)
        if self.loads.distance is not None and self.slopes is not None:
            self._distances(self.loads.distance, self.slopes, exponents, unit)
        halves = [half for _, _, half in self._in_halves("probability_half")]
        self._lower_hidden(self._in_halves("score", shift), halves)
        if self._hidden is not None:
            plan, item = core.plan, self.item
            self._hidden.set_as(0)
            last, first = item.position(unit.tile) + (plan.rows - 1), plan.half // plan.rows
            with core.tik.if_scope(item["tile"] * plan.keys + first > last):
                self._hidden.set_as(1)
        for seen in self._by_sight(exponents):
            for _, elements, exponent in seen:
                core.unary("vec_exp", exponent, exponent, elements)

    def round(self) -> None:
        """Round the probabilities to float16 in `half` and send them to L1, dropped if asked."""
        core, problem = self.core, self.core.problem
        exponents, halves = self._in_halves("score", core.operand_shift), self._in_halves("probability_half")
        for (at, elements, exponent), (_, _, half) in zip(exponents, halves):
            with contextlib.nullcontext() if at == 0 or self._hidden is None else core.tik.if_scope(self._hidden == 0):
                core.to_half(half, exponent, elements)
        if self._hidden is not None:
            with core.tik.if_scope(self._hidden > 0):
                core.fill(halves[1][2], 0.0, halves[1][1])
        results = [half for _, _, half in halves]
        if problem.call.dropout_threshold:
            dropped, zeros = core.on.dropped[0], core.on.zeros[0]
            dropout.select(core, dropped, halves[0][2], lambda first: zeros, 0, core.plan.area)
            results = [dropped[at:] for at, _, _ in exponents]
        for (at, elements, _), result in zip(exponents, results):
            self._to_l1(core.on.probability[0], result, at, elements)

    def take_d_probability(self) -> None:
        """Take gradients of the probabilities out of L0C in a step of its own."""
        if self.core.plan.pipeline.single:
            for at, elements, factor in reversed(self._pieces("d_probability_single")):
                self._from_l0c("d_probability", factor, at, elements)
        elif self.core.plan.pipeline.whole:
            self._take_factors()

    def _take_factors(self) -> list[Part]:
        """Take float16 gradients of the probabilities out of L0C. Return where they are."""
        factors = self._pieces("d_score_half", 2 * self.core.operand_shift)
        for at, elements, factor in factors:
            self._from_l0c("d_probability", factor, at, elements)
        return factors

    def d_scores(self, unit: Unit) -> None:
        """Move probability * (gradient of the probability - D) to L1."""
        core, plan, problem = self.core, self.core.plan, self.core.problem
        scores, results = self._pieces("score"), self._pieces("d_score_half")
        if plan.pipeline.single:
            factors = self._pieces("d_probability_single")
            sources = self._pieces("score", core.operand_shift)
            for (_, elements, score), (_, _, source), (_, _, factor) in zip(scores, sources, factors):
                core.binary("vec_mul", score, source, factor, elements)
            for (_, elements, score), (_, _, result) in zip(scores, results):
                core.to_half(result, score, elements)
        else:
            # float16 factors; what is hidden has probability zero already.
            if problem.call.dropout_threshold:
                # Before the products.
                delta, square = core.on.row_delta[0], plan.rows * 16
                core.from_l0c(delta, core.on.delta[0], square // FRACTAL)
            taken = plan.pipeline.whole
            factors = self._pieces("d_score_half", 2 * core.operand_shift) if taken else self._take_factors()
            if problem.call.dropout_threshold:
                # A dropped score keeps minus D, which the Cube put beside the products.
                factor = factors[0][2]
                dropout.select(core, factor, factor, lambda first: delta[first % square], 0, plan.area)
            halves = self._in_halves("probability_half")
            products = self._in_halves("d_score_half"), self._in_halves("d_score_half", 2 * core.operand_shift)
            for (_, elements, result), (_, _, factor), (_, _, half) in zip(*products, halves):
                core.binary("vec_mul", result, factor, half, elements)
        position = unit.position % PAIR
        if plan.bias_kind == "per_score":
            self._store_bias(unit, results[0][2], scores[0][2])
        if problem.call.rules.softcap:
            result = results[0][2]
            if plan.bias_chunks:
                self._to_l1(core.on.d_biased[position], result, 0, plan.area)
            core.binary("vec_mul", result, result, core.on.cap_slope[0], plan.area)
        # Only one wait here: with the waits for probabilities and query gradients, at most four events are in flight.
        if not plan.pipeline.apart:
            results = [(0, plan.area, results[0][2])]
        for at, elements, result in reversed(results):
            self._to_l1(core.on.d_score[position], result, at, elements)

    def _to_l1(self, slot: Tensor, source: Tensor, at: int, elements: int) -> None:
        """Move elements at.. of a tile from where they are to their place in L1."""
        self.core.tik.data_move(slot[at], source, 0, 1, elements // 16, 0, 0)

    def _cap(self) -> None:
        """Turn scores to capped scores with their terms, and store the derivative in `cap_slope`."""
        core, on = self.core, self.core.on
        parts = self._pieces("score", core.operand_shift)
        exponent = on.score[0][core.operand_shift :]
        for at, elements, _ in parts:
            softcap.take(core, exponent, on.scores[0], on.linear[0], at, at, elements)
        for at, elements, part in parts:
            squashed = exponent[at + 2 * HALF_ROUND :]
            softcap.squash(core, part, 2 * HALF_ROUND, elements)
            softcap.slope(core, on.cap_slope[0][at:], on.probability_half[0][at:], squashed, elements)
            capped = part[core.operand_shift :]
            core.with_scalar("vec_muls", capped, squashed, core.problem.call.rules.softcap, elements)
            softcap.add_terms(core, part, at, elements)

    def _lower_hidden(self, exponents: list[Part], work: list[Tensor]) -> None:
        """Lower hidden scores until their exponential is zero. Then no product with them saturates, however large.

        Args:
            work: float16, a place for each piece.
        """
        core = self.core
        if self.loads.number is not None and not lowers_on_cube(core.problem):
            with core.tik.if_scope(self.loads.number > 0):
                for (at, elements, exponent), place in zip(exponents, work):
                    mask.lower_visible_single(core, exponent, place, at, elements)
        if core.problem.mask == "per_score":
            for (at, elements, exponent), place in zip(exponents, work):
                mask.lower_explicit_single(core, exponent, place, at, elements)

    def _distances(self, number: Scalar, slopes: alibi.Slopes[BackwardPlan], exponents: list[Part], unit: Unit) -> None:
        """Correct keys after their queries in a tile with keys on both sides: -2 * slope * distance."""
        core = self.core
        with core.tik.if_scope(number > 0):
            slopes.load(self.item["slope"] + unit.member)
            for slope in slopes.correction:
                for at, elements, exponent in exponents:
                    core.add_half(exponent, core.on.distance[0][at:], slope, elements)

    def _store_bias(self, unit: Unit, half: Tensor, score: Tensor) -> None:
        """Add the gradients of the scores to the gradient of the bias, in float32."""
        core, plan, tik, item = self.core, self.core.plan, self.core.tik, self.item
        square = plan.rows * 16
        core.to_single(score[HALF_ROUND:], half, plan.area)
        core.with_scalar("vec_muls", score, score[HALF_ROUND:], core.problem.call.dropout_scale, plan.area)

        def emit(have: int) -> None:
            plane = item.plane("bias", unit)

            def store(keys: int) -> None:
                for column in range(padded(keys) // 16):
                    line = plane * (core.seq_k // 16) + item["tile"] * plan.columns + column
                    target = core.wide(line, core.seq_q * 16) + unit.tile * square
                    tik.data_move(core.gm["d_bias"][target], score[column * square], 0, 1, padded(have) * 2, 0, 0)

            by_keys(core, item["tile"], store)

        tik.set_atomic_add(1)
        by_rows(core, unit.rows, emit)
        tik.set_atomic_add(0)
