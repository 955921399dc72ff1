"""Scores of one tile to probabilities, on Vector: post-scale, bias, exponential, masks, dropout.

The Cube has already subtracted the row reference, so the exponential meets numbers near zero and a probability never
needs the running maximum of its row.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

from flash_attention.kernels.tik.common import dropout, mask, tiles
from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.hardware import HALF_ROUND


@dataclass(frozen=True)
class Unit:
    """One row block against one key tile.

    Attributes:
        a: row block inside the work item.
        tile: number of the key tile, a run-time value.
        scores: segments of the scores in L0C.
        probability, dropped, low: places in L1 for the probabilities, for those that dropout kept, and for what
            rounding took from them; None where the kernel has none.
        number, distance: run-time numbers of the visibility and distance tiles, or None where the kernel has none.
        slopes: float16 scalars of the slope terms, for distances.
    """

    a: int
    tile: object
    scores: list
    probability: object
    dropped: object
    low: object
    number: object
    distance: object
    slopes: tuple


def half_precision_pieces(core: Core) -> int:
    """Pieces of a tile, counted from its end, whose exponential runs in float16: half of them at head_dim up to 64.

    There Vector limits the kernel, and a float16 exponential saves the conversion. Its argument is rounded after the
    reference is subtracted, an error well under that of rounded scores. None where Vector needs float32 scores anyway.
    """
    problem = core.problem
    exact = problem.post_scale != 1.0 or problem.alibi in ("bias", "computed") or core.plan.head_dim > 64
    return 0 if exact or core.plan.precise_total or len(core.plan.pieces) < 4 else len(core.plan.pieces) // 2


def steps(core: Core, unit: Unit) -> list:
    """What records the Vector work of one unit, and the moves of its probabilities to L1.

    The first step takes the scores out of L0C; the others follow in order. The caller records work of other pipes in
    between, because the queue of Vector is shorter than the work of a unit.
    """
    plan, problem = core.plan, core.problem
    score, halves = core.on.score[0], core.on.probability_piece
    pieces = plan.pieces
    singles = len(pieces) - half_precision_pieces(core)
    spans = [(column * plan.rows * 16, columns * plan.rows * 16) for _, column, columns in pieces]
    skew = HALF_ROUND if problem.post_scale != 1.0 else 0

    def take() -> None:
        for index, ((segment, column, _), (at, elements)) in enumerate(zip(pieces, spans)):
            source = (column - plan.segment_start(segment) // 16) * plan.rows * 16
            target = score[at + skew] if index < singles else halves[index]
            core.tik.tensor_mov(target, unit.scores[segment][source], "m", 1, elements // 256, 0, 0)
        if problem.post_scale != 1.0:
            for at, elements in spans:
                core.with_scalar("vec_muls", score[at:], score[at + skew :], problem.post_scale, elements, 64)
        if problem.alibi == "bias":
            for at, elements in spans:
                core.add_half(score[at:], core.on.bias[0][at:], 1.0, elements)
        if unit.distance is not None:
            with core.tik.if_scope(unit.distance > 0):
                for slope in unit.slopes:
                    for at, elements in spans:
                        core.add_half(score[at:], core.on.distance[0][at:], slope, elements)

    def exponential(index: int) -> None:
        at, elements = spans[index]
        if index < singles:
            core.unary("vec_exp", score[at:], score[at:], elements, 64)
        else:
            core.unary("vec_exp", halves[index], halves[index], elements)

    def finish(index: int) -> None:
        at, elements = spans[index]
        _, column, columns = pieces[index]
        half = halves[index]
        if index < singles:
            core.to_half(half, score[at:], elements)
        outputs = [(half, unit.probability)]
        if unit.low is not None:
            low, rounded = core.on.low_piece[index], core.on.scratch[0]
            core.to_single(rounded, half, elements)
            core.binary("vec_sub", score[at:], score[at:], rounded, elements, 64)
            core.to_half(low, score[at:], elements)
            outputs.append((low, unit.low))
        for values, place in outputs:
            if unit.number is not None:
                with core.tik.if_scope(unit.number > 0):
                    mask.hide_visible(core, values, at, elements)
            if problem.mask == "full":
                mask.hide_explicit(core, values, at, elements)
            tiles.probability_to_l1(core, place, column, columns, values)
        if problem.dropout_threshold:
            dropout.drop(core, half, at, elements)
            tiles.probability_to_l1(core, unit.dropped, column, columns, half)

    result = [take]
    for index in range(len(pieces) + 1):
        if index < len(pieces):
            result.append(functools.partial(exponential, index))
        if index:
            result.append(functools.partial(finish, index - 1))
    return result
