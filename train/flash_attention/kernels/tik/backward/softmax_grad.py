"""Vector work of a step of the backward operator: scores to probabilities, and the gradients of the scores."""

from __future__ import annotations

from flash_attention.kernels.tik.backward.tiling import PAIR
from flash_attention.kernels.tik.backward.work_item import KeyItem, Unit
from flash_attention.kernels.tik.common import dropout, mask
from flash_attention.kernels.tik.common.tiles import F, by_keys, by_rows
from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.hardware import HALF_ROUND


class VectorWork:
    """Records the Vector work of one core, and the moves of its results to L1."""

    def __init__(self, core: Core, item: KeyItem, slopes):
        self.core, self.item, self.slopes = core, item, slopes

    def probabilities(self, unit: Unit) -> None:
        """exp(scores - logsumexp) to L1, dropped where dropout says so; float32 stays in `score`, float16 in `half`."""
        core, plan, problem, tik = self.core, self.core.plan, self.core.problem, self.core.tik
        score, half = core.on.score[0], core.on.probability_half[0]
        shift = core.operand_shift
        exponent = score[shift:]
        skew = HALF_ROUND if problem.post_scale != 1.0 else 0
        for at, elements in plan.pieces:
            tik.tensor_mov(score[at + shift + skew], core.on.scores[0][at], "m", 1, elements // F, 0, 0)
        if skew:
            for at, elements in plan.pieces:
                core.with_scalar("vec_muls", exponent[at:], exponent[at + skew :], problem.post_scale, elements, 64)
        if problem.alibi == "bias":
            for at, elements in plan.pieces:
                core.add_half(exponent[at:], core.on.bias[0][at:], 1.0, elements)
        if self.item.distance is not None:
            self._distances(exponent, unit)
        self._lower_hidden(exponent)
        for at, elements in plan.pieces:
            core.unary("vec_exp", exponent[at:], exponent[at:], elements, 64)
        for at, elements in plan.pieces:
            core.to_half(half[at:], exponent[at:], elements)
        result = half
        if problem.dropout_threshold:
            result, zeros = core.on.dropped[0], core.on.zeros[0]
            dropout.select(core, result, half, lambda first: zeros, 0, plan.area)
        self._to_l1(core.on.probability[0], result, plan.pieces)

    def d_scores(self, unit: Unit) -> None:
        """probability * (gradient of the probability - D) to L1."""
        core, plan, problem, tik = self.core, self.core.plan, self.core.problem, self.core.tik
        score, half, result = (core.on.copies(name)[0] for name in ("score", "probability_half", "d_score_half"))
        source = core.on.d_probability[0]
        if plan.single:
            factor = core.on.d_probability_single[0]
            tik.tensor_mov(factor, source, "m", 1, plan.area // F, 0, 0)
            for at, elements in plan.pieces:
                core.binary("vec_mul", score[at:], score[at + core.operand_shift :], factor[at:], elements, 64)
            for at, elements in plan.pieces:
                core.to_half(result[at:], score[at:], elements)
        else:
            # float16 factors; what is hidden has probability zero already.
            factor, pieces = result[2 * core.operand_shift :], plan.pieces
            if problem.dropout_threshold:
                # Before the products, and those in one move: the Cube then waits for fewer events.
                delta, square = core.on.row_delta[0], plan.rows * 16
                tik.tensor_mov(delta, core.on.delta[0], "m", 1, square // F, 0, 0)
                pieces = ((0, plan.area),)
            for at, elements in pieces:
                tik.tensor_mov(factor[at], source[at], "m", 1, elements // F, 0, 0)
            if problem.dropout_threshold:
                # A dropped score keeps minus D, which the Cube put beside the products.
                dropout.select(core, factor, factor, lambda first: delta[first % square], 0, plan.area)
            for at, elements in plan.pieces:
                core.binary("vec_mul", result[at:], factor[at:], half[at:], elements)
        # One move: with those of the probabilities and of the query gradients no more than four events are in flight.
        self._to_l1(core.on.d_score[unit.position % PAIR], result, ((0, plan.area),))
        if plan.bias_kind == "bias":
            self._store_bias(unit, result, score)

    def _to_l1(self, slot, source, pieces: tuple) -> None:
        for at, elements in pieces:
            self.core.tik.data_move(slot[at], source[at], 0, 1, elements // 16, 0, 0)

    def _lower_hidden(self, exponent) -> None:
        """Hidden scores to where the exponential is zero: no product with them, however large, then saturates."""
        core, plan, work = self.core, self.core.plan, self.core.on.probability_half[0]
        if self.item.number is not None:
            with core.tik.if_scope(self.item.number > 0):
                for at, elements in plan.pieces:
                    mask.lower_visible_single(core, exponent[at:], work[at:], at, elements)
        if core.problem.mask == "full":
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
                for column in range(keys // 16):
                    line = plane * (core.seq_k // 16) + item["tile"] * plan.columns + column
                    target = core.wide(line, core.seq_q * 16) + unit.tile * square
                    tik.data_move(core.gm["d_bias"][target], score[column * square], 0, 1, have * 2, 0, 0)

            by_keys(core, item["tile"], store)

        tik.set_atomic_add(1)
        by_rows(core, unit.rows, record)
        tik.set_atomic_add(0)
