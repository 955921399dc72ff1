"""Vector work of a step of the backward operator: scores to probabilities, and the gradients of the scores."""

from __future__ import annotations

import contextlib

from flash_attention.kernels.tik.backward.tiling import PAIR, lowers_on_cube
from flash_attention.kernels.tik.backward.work_item import KeyItem, Unit
from flash_attention.kernels.tik.common import dropout, mask, softcap
from flash_attention.kernels.tik.common.tiles import F, by_keys, by_rows
from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.hardware import HALF_ROUND
from flash_attention.kernels.tik.problem import padded


class VectorWork:
    """Records the Vector work of one core, and the moves of its results to L1."""

    def __init__(self, core: Core, item: KeyItem, slopes):
        self.core, self.item, self.slopes = core, item, slopes
        # Run-time flag: causality hides the second piece of a tile from all of its rows. Its probabilities are zeros
        # without an exponential, which pays where Vector is the limit.
        plan, asked = core.plan, core.problem.rules.causal and not core.problem.prefix
        possible = asked and not plan.single and len(plan.pieces) > 1
        self._hidden = core.scalar("int32", "hidden_piece", 0) if possible else None

    def _look(self, unit: Unit) -> None:
        """Sets the flag."""
        if self._hidden is None:
            return
        plan, item = self.core.plan, self.item
        self._hidden.set_as(0)
        last, first = item.position(unit.tile) + (plan.rows - 1), plan.pieces[1][0] // plan.rows
        with self.core.tik.if_scope(item["tile"] * plan.keys + first > last):
            self._hidden.set_as(1)

    def _if_seen(self, at: int):
        """Scope of work on the piece from element `at` on, which is left out where nobody sees it."""
        return (
            contextlib.nullcontext() if at == 0 or self._hidden is None else self.core.tik.if_scope(self._hidden == 0)
        )

    def take_scores(self) -> None:
        """Scores out of L0C; in one move where Vector has something else to take while it waits for them."""
        core, shift = self.core, self.core.operand_shift
        if not core.problem.rules.softcap:
            skew = HALF_ROUND if core.problem.post_scale != 1.0 else 0
            for at, elements in core.plan.pieces if core.plan.single else ((0, core.plan.area),):
                part, inside = divmod(at, core.on.scores[0].shape[0])
                source = core.on.scores[part][inside]
                core.from_l0c(core.on.score[0][at + shift + skew :], source, elements // F)

    def probabilities(self, unit: Unit) -> None:
        """exp(scores - logsumexp) to L1, dropped where dropout says so; float32 stays in `score`, float16 in `half`."""
        core, plan, problem = self.core, self.core.plan, self.core.problem
        score, half = core.on.score[0], core.on.probability_half[0]
        shift = core.operand_shift
        exponent = score[shift:]
        skew = HALF_ROUND if problem.post_scale != 1.0 else 0
        if problem.rules.softcap:
            self._cap(exponent)
        if skew and not problem.rules.softcap:
            for at, elements in plan.pieces:
                core.with_scalar("vec_muls", exponent[at:], exponent[at + skew :], problem.post_scale, elements, 64)
        if problem.bias == "per_score":
            for at, elements in plan.pieces:
                core.add_half(exponent[at:], core.on.bias[0][at:], 1.0, elements)
        if self.item.distance is not None:
            self._distances(exponent, unit)
        self._lower_hidden(exponent)
        self._look(unit)
        for at, elements in plan.pieces:
            with self._if_seen(at):
                core.unary("vec_exp", exponent[at:], exponent[at:], elements, 64)
        for at, elements in plan.pieces:
            with self._if_seen(at):
                core.to_half(half[at:], exponent[at:], elements)
        if self._hidden is not None:
            at, elements = plan.pieces[1]
            with core.tik.if_scope(self._hidden > 0):
                core.fill(half[at:], 0.0, elements)
        result = half
        if problem.dropout_threshold:
            result, zeros = core.on.dropped[0], core.on.zeros[0]
            dropout.select(core, result, half, lambda first: zeros, 0, plan.area)
        self._to_l1(core.on.probability[0], result, plan.pieces)

    def d_scores(self, unit: Unit) -> None:
        """probability * (gradient of the probability - D) to L1."""
        core, plan, problem = self.core, self.core.plan, self.core.problem
        score, half, result = (core.on.copies(name)[0] for name in ("score", "probability_half", "d_score_half"))
        source = core.on.d_probability[0]
        if plan.single:
            factor = core.on.d_probability_single[0]
            core.from_l0c(factor, source, plan.area // F)
            for at, elements in plan.pieces:
                core.binary("vec_mul", score[at:], score[at + core.operand_shift :], factor[at:], elements, 64)
            for at, elements in plan.pieces:
                core.to_half(result[at:], score[at:], elements)
        else:
            # float16 factors; what is hidden has probability zero already.
            factor = result[2 * core.operand_shift :]
            if problem.dropout_threshold:
                # Before the products.
                delta, square = core.on.row_delta[0], plan.rows * 16
                core.from_l0c(delta, core.on.delta[0], square // F)
            for at, elements in plan.pieces:
                core.from_l0c(factor[at:], source[at], elements // F)
            if problem.dropout_threshold:
                # A dropped score keeps minus D, which the Cube put beside the products.
                dropout.select(core, factor, factor, lambda first: delta[first % square], 0, plan.area)
            for at, elements in plan.pieces:
                core.binary("vec_mul", result[at:], factor[at:], half[at:], elements)
        position = unit.position % PAIR
        if plan.bias_kind == "per_score":
            self._store_bias(unit, result, score)
        if problem.rules.softcap:
            if plan.bias_chunks:
                self._to_l1(core.on.d_biased[position], result, ((0, plan.area),))
            core.binary("vec_mul", result, result, core.on.cap_slope[0], plan.area)
        # One move: with those of the probabilities and of the query gradients no more than four events are in flight.
        self._to_l1(core.on.d_score[position], result, ((0, plan.area),))

    def _to_l1(self, slot, source, pieces: tuple) -> None:
        for at, elements in pieces:
            self.core.tik.data_move(slot[at], source[at], 0, 1, elements // 16, 0, 0)

    def _cap(self, exponent) -> None:
        """Scores to capped scores with their terms, and the derivative to `cap_slope`."""
        core, on = self.core, self.core.on
        for at, elements in core.plan.pieces:
            softcap.take(core, exponent, on.scores[0], on.linear[0], at, at, elements)
        for at, elements in core.plan.pieces:
            part, squashed = exponent[at:], exponent[at + 2 * HALF_ROUND :]
            softcap.squash(core, part, 2 * HALF_ROUND, elements)
            softcap.slope(core, on.cap_slope[0][at:], on.probability_half[0][at:], squashed, elements)
            capped = part[core.operand_shift :]
            core.with_scalar("vec_muls", capped, squashed, core.problem.rules.softcap, elements, 64)
            softcap.add_terms(core, part, at, elements)

    def _lower_hidden(self, exponent) -> None:
        """Hidden scores to where the exponential is zero: no product with them, however large, then saturates."""
        core, plan, work = self.core, self.core.plan, self.core.on.probability_half[0]
        if self.item.number is not None and not lowers_on_cube(core.problem):
            with core.tik.if_scope(self.item.number > 0):
                for at, elements in plan.pieces:
                    mask.lower_visible_single(core, exponent[at:], work[at:], at, elements)
        if core.problem.mask == "per_score":
            for at, elements in plan.pieces:
                mask.lower_explicit_single(core, exponent[at:], work[at:], at, elements)

    def _distances(self, exponent, unit: Unit) -> None:
        """Keys after their queries in a tile with keys on both sides: -2 * slope * distance."""
        core, plan = self.core, self.core.plan
        with core.tik.if_scope(self.item.distance > 0):
            self.slopes.load({"slope": self.item["slope"] + unit.member})
            for slope in self.slopes.correction:
                for at, elements in plan.pieces:
                    core.add_half(exponent[at:], core.on.distance[0][at:], slope, elements)

    def _store_bias(self, unit: Unit, half, score) -> None:
        """Adds the gradients of the scores to the gradient of the bias, in float32."""
        core, plan, tik, item = self.core, self.core.plan, self.core.tik, self.item
        square = plan.rows * 16
        core.to_single(score[HALF_ROUND:], half, plan.area)
        core.with_scalar("vec_muls", score, score[HALF_ROUND:], core.problem.dropout_scale, plan.area, 64)

        def record(have: int) -> None:
            plane = item.plane("bias", unit)

            def store(keys: int) -> None:
                for column in range(padded(keys) // 16):
                    line = plane * (core.seq_k // 16) + item["tile"] * plan.columns + column
                    target = core.wide(line, core.seq_q * 16) + unit.tile * square
                    tik.data_move(core.gm["d_bias"][target], score[column * square], 0, 1, padded(have) * 2, 0, 0)

            by_keys(core, item["tile"], store)

        tik.set_atomic_add(1)
        by_rows(core, unit.rows, record)
        tik.set_atomic_add(0)
