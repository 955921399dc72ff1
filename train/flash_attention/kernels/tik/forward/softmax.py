"""Scores of one tile to probabilities, on Vector: post-scale, bias, exponential, masks, dropout.

The Cube has already subtracted the row reference. So the exponential meets numbers near zero, and a probability never
needs the running maximum of its row. No exponent passes CEILING, so nothing saturates and the overflow status of the
chip stays clear. If a score was cut, the row total shows it (store.py), and the row block is computed again.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import dataclass

import numpy as np

from flash_attention.kernels.tik.common import dropout, mask, softcap
from flash_attention.kernels.tik.forward import load
from flash_attention.kernels.tik.forward.score_bound import CEILING, FAR_UNIT, Verdict
from flash_attention.kernels.tik.forward.tiling import ForwardPlan
from flash_attention.kernels.tik.hardware import FRACTAL, HALF_ROUND
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, Scalar, Step, Tensor


@dataclass(frozen=True)
class Unit:
    """One row block against one key tile.

    Attributes:
        a: row block inside the work item.
        tile: number of the key tile, a run-time value.
        scores: segments of the scores in L0C.
        linear: segments of the terms that come after a soft cap; empty if the kernel has none.
        probability, dropped, low: places in L1 for the probabilities, for the probabilities after dropout, and for
            their rounding errors; None if the kernel has none.
        number, distance: run-time numbers of the visibility and distance tiles, or None if the kernel has none.
        slopes: float16 scalars of the slope terms, for distances.
        verdict: cut is 0 if no exponent passes CEILING; if it is 1, `number` is never 0. far is 1 if the
            scores were divided by FAR_UNIT. The verdict is None if the kernel does not bound scores.
    """

    a: int
    tile: Number
    scores: list[Tensor]
    linear: list[Tensor]
    probability: Tensor
    dropped: Tensor | None
    low: Tensor | None
    number: Scalar | None
    distance: Scalar | None
    slopes: tuple[Scalar, ...]
    verdict: Verdict | None


LARGEST_MAGNITUDE = 64000.0  # magnitude of the exponents that are told apart from each other in float16


def limits(problem: KernelProblem, visible: np.ndarray) -> np.ndarray:
    """Return upper limits of float16 exponents before the post-scale. Limits of hidden scores leave no probability."""
    unit = problem.post_scale
    return np.where(visible > 0, CEILING / unit, -LARGEST_MAGNITUDE / unit).astype(np.float16)


def initialise(core: Core[ForwardPlan]) -> None:
    """Write limits of the exponents."""
    if not core.plan.half_scores:
        core.fill(core.on.ceiling_row[0], CEILING, 64)
    elif core.on.copies("ceiling"):
        _fill_limits(core, core.on.floor[0], core.on.ceiling[0])
    softcap.initialise(core, core.problem.call.rules.softcap)


def begin_item(core: Core[ForwardPlan]) -> None:
    """Restore the limits of the exponents among the scores, which other work has used since."""
    if core.plan.long_pieces and not core.on.copies("ceiling"):
        _fill_limits(core, _floor(core), _halves(core, 3))


def _fill_limits(core: Core[ForwardPlan], floor: Tensor, ceiling: Tensor) -> None:
    unit = core.problem.post_scale
    core.fill(ceiling, CEILING / unit, ceiling.shape[0])
    core.fill(floor, -LARGEST_MAGNITUDE / (FAR_UNIT if unit == 1.0 else unit), floor.shape[0])


def _halves(core: Core[ForwardPlan], copy: int) -> Tensor:
    """Return a tensor of scores as float16."""
    return core.on.score[copy].reinterpret_cast_to("float16")


def _floor(core: Core[ForwardPlan]) -> Tensor:
    """Lower limits of float16 exponents."""
    return (core.on.copies("floor") or [_halves(core, 2)])[0]


def _ceiling(core: Core[ForwardPlan]) -> Tensor:
    """Return upper limits of float16 exponents. They stand half a round of the banks off the scores, too."""
    return (core.on.copies("ceiling") or [_halves(core, 3)])[0][2 * HALF_ROUND :]


def steps(core: Core[ForwardPlan], unit: Unit) -> list[Step]:
    """Return steps of the Vector work of one unit and of the moves to L1.

    The first step takes the scores out of L0C; the others follow in order. The caller records work of other pipes in
    between, because the queue of Vector is shorter than the work of a unit.
    """
    plan = core.plan
    pieces = [
        Piece(core, unit, index, column, columns, column * plan.rows * 16, columns * plan.rows * 16)
        for index, (column, columns) in enumerate(plan.pieces)
    ]

    # All pieces do one step, then the next, so that they hide each other's latency.
    def take_single() -> None:
        for piece in pieces:
            piece.take(0)
        for piece in pieces:
            piece.limit_single()

    def take_scaled() -> None:
        for piece in pieces:
            piece.take(3)
        # Cut on both sides before the post-scale, because scaled scores would leave the range of float16.
        for piece in pieces:
            piece.limit_below()
        if unit.number is None:
            for piece in pieces:
                piece.limit_above(_ceiling(core))
        else:
            with core.tik.if_scope(unit.number > 0):
                for piece in pieces:
                    piece.limit_above(core.on.visible[0][piece.at :])
            with core.tik.else_scope():
                for piece in pieces:
                    piece.limit_above(_ceiling(core))
        for piece in pieces:
            piece.scale_half()

    def take_half(verdict: Verdict) -> None:
        with core.tik.if_scope((verdict.cut if unit.number is None else unit.number) > 0):
            for piece in pieces:
                piece.take(2)
            with core.tik.if_scope(verdict.far > 0):
                for piece in pieces:
                    piece.limit_far()
            for piece in pieces:
                piece.limit_above(_ceiling(core) if unit.number is None else core.on.visible[0][piece.at :])
        with core.tik.else_scope():
            for piece in pieces:
                piece.take(1)

    half = take_scaled if unit.verdict is None else functools.partial(take_half, unit.verdict)
    result: list[Step] = [half if plan.half_scores else take_single]
    for index in range(len(pieces) + 1):
        if index < len(pieces):
            result.append(pieces[index].exponential)
        if index:
            result.append(pieces[index - 1].finish)
    return result


@functools.lru_cache(maxsize=64)
def column_factors(post_scale: float, columns: int, piece: int = 1) -> tuple[float, ...]:
    """Return float16 factors of a tile's fractal columns: neighbours of the post-scale, its mean over the columns.

    One rounded factor for all would make every exponent wrong in the same direction, and so the logsumexp.

    Args:
        piece: columns among which equal factors stand side by side: Vector multiplies such a stretch at once.
    """
    half = np.float16(post_scale)
    near = float(half)
    other = float(np.nextafter(half, np.float16(np.inf if near < post_scale else -np.inf)))
    share = (post_scale - near) / (other - near)
    # The two factors are spread over the columns, so that a row that sees part of the tile has some of both.
    takes_other = [math.floor((c + 1.5) * share) > math.floor((c + 0.5) * share) for c in range(columns)]
    pieces = [takes_other[first : first + piece] for first in range(0, columns, piece)]
    return tuple(other if taken else near for some in pieces for taken in sorted(some, reverse=True))


@dataclass(frozen=True)
class Piece:
    """A part of the keys of a unit.

    Attributes:
        column, columns: fractal columns of the tile.
        at, elements: the same in elements.
    """

    core: Core[ForwardPlan]
    unit: Unit
    index: int
    column: int
    columns: int
    at: int
    elements: int

    def half(self, distance: int = 0) -> Tensor:
        """Return float16 scores and, in the end, probabilities, on their way to distance 0.

        Operands of an instruction stand an odd number of half rounds of the banks apart, the result first.
        """
        if distance and self.core.plan.long_pieces:
            return _halves(self.core, self.index)[distance * 2 * self.core.operand_shift :]
        return self.core.on.probability_piece[self.index][distance * 2 * self.core.operand_shift :]

    @property
    def single(self) -> Tensor:
        """Return float32 scores and probabilities."""
        return self.core.on.score[0][self.at :]

    def take(self, distance: int) -> None:
        """Take scores out of L0C; float16 to a distance."""
        core, plan, unit, done = self.core, self.core.plan, self.unit, 0
        if plan.half_scores:
            target = self.half(distance)
        else:
            target = self.single[HALF_ROUND if core.problem.post_scale != 1.0 else 0 :]
        for segment, column, columns in plan.by_segment(self.column, self.columns):
            source, elements = column * plan.rows * 16, columns * plan.rows * 16
            if core.problem.call.rules.softcap:
                scores, linear = unit.scores[segment], unit.linear[segment]
                softcap.take(core, core.on.score[0], scores, linear, self.at + done, source, elements)
            else:
                core.from_l0c(target[done], unit.scores[segment][source], elements // FRACTAL)
            done += elements

    def limit_single(self) -> None:
        """Finish float32 scores: post-scale, bias, distances, and no exponent beyond a float16 probability."""
        core, problem, unit, score, result = self.core, self.core.problem, self.unit, self.single, self.single
        if problem.call.rules.softcap:
            softcap.squash(core, result, 2 * core.operand_shift, self.elements)
            score = result[core.operand_shift :]
            softcap.add_terms(core, score, self.at, self.elements)
        elif problem.post_scale != 1.0:
            core.with_scalar("vec_muls", score, score[HALF_ROUND:], problem.post_scale, self.elements)
        if problem.call.bias == "per_score":
            core.add_half(score, core.on.bias[0][self.at :], 1.0, self.elements)
        if unit.distance is not None:
            with core.tik.if_scope(unit.distance > 0):
                for slope in unit.slopes:
                    core.add_half(score, core.on.distance[0][self.at :], slope, self.elements)
        core.with_row("vec_min", result, score, core.on.ceiling_row[0], self.elements)

    def limit_below(self) -> None:
        """Limit float16 exponents to be scaled: none below what float16 holds afterwards."""
        self.core.binary("vec_max", self.half(2), self.half(3), _floor(self.core), self.elements)

    def limit_above(self, limit: Tensor) -> None:
        """Limit float16 exponents: none beyond what a probability holds, hidden ones far below."""
        self.core.binary("vec_min", self.half(1), self.half(2), limit, self.elements)

    def scale_half(self) -> None:
        """Apply the post-scale to float16."""
        core, plan = self.core, self.core.plan
        piece = plan.pieces[0][1] if plan.long_pieces else 1
        factors = column_factors(core.problem.post_scale, plan.columns, piece)[self.column :][: self.columns]
        column = plan.rows * 16
        start = 0
        for factor, group in itertools.groupby(factors):
            count = len(list(group)) * column
            core.with_scalar("vec_muls", self.half()[start:], self.half(1)[start:], factor, count)
            start += count

    def limit_far(self) -> None:
        """Multiply float16 scores that were divided by FAR_UNIT. This is rare, so it works in place."""
        core, raw, elements = self.core, self.half(2), self.elements
        core.with_row("vec_max", raw, raw, core.on.floor[0], elements)
        core.with_row("vec_min", raw, raw, core.on.ceiling[0], elements)
        core.with_scalar("vec_muls", raw, raw, FAR_UNIT, elements)

    def exponential(self) -> None:
        """Turn scores to probabilities."""
        core = self.core
        if core.plan.half_scores:
            core.unary("vec_exp", self.half(), self.half(0 if self.unit.verdict is None else 1), self.elements)
        else:
            core.unary("vec_exp", self.single, self.single, self.elements)

    def finish(self) -> None:
        """Round, keep the rounding error if asked, apply masks and dropout, and move to L1."""
        core, problem, unit, half = self.core, self.core.problem, self.unit, self.half()
        if not core.plan.half_scores:
            core.to_half(half, self.single, self.elements)
        outputs = [(half, unit.probability)]
        if unit.low is not None:
            low, rounded = core.on.low_piece[self.index], core.on.scratch[0]
            for first in range(0, self.elements, rounded.shape[0]):
                count, part = min(rounded.shape[0], self.elements - first), self.single[first:]
                core.to_single(rounded, half[first:], count)
                core.binary("vec_sub", part, part, rounded, count)
                core.to_half(low[first:], part, count)
            outputs.append((low, unit.low))
        for values, place in outputs:
            if unit.number is not None and not core.plan.half_scores:
                with core.tik.if_scope(unit.number > 0):
                    mask.hide_visible(core, values, self.at, self.elements)
            if problem.mask == "per_score":
                mask.hide_explicit(core, values, self.at, self.elements)
            load.probability_to_l1(core, place, self.column, self.columns, values)
        if unit.dropped is not None:
            zeros = core.on.zeros[0]
            dropout.select(core, half, half, lambda first: zeros, self.at, self.elements)
            load.probability_to_l1(core, unit.dropped, self.column, self.columns, half)
