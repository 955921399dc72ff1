"""The soft cap: scaled scores s become cap * tanh(s / cap), in float32 on Vector.

tanh has no instruction. With y = 2 * s / cap it is 1 - 2 / (exp(y) + 1), whose error near zero is float32's error at 1.
Vector makes -2 * cap / (exp(y) + 1), and the cap itself is one of the terms that the Cube adds (score_terms.py).

These terms come after the cap, so they leave the Cube in a tensor of their own. It is as wide as the scores if the
terms differ from key to key. Otherwise it has 16 equal columns.
"""

from __future__ import annotations

from flash_attention.kernels.tik.common import score_terms
from flash_attention.kernels.tik.hardware import FRACTAL, HALF_ROUND, Buffer
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import BlockPlan, Tensor, TilePlan

# Largest y: beyond it tanh is 1 in float32, and its exponential is far from the end of the range.
LARGEST_EXPONENT = 30.0
# Distance of the Cube's scores behind the place of the capped scores: source and target stand half rounds apart.
RAW = 5 * HALF_ROUND


def terms_width(problem: KernelProblem, keys: int) -> int:
    """Return columns of the terms of a tile with so many keys."""
    return keys if score_terms.is_dynamic(problem) else 16


def buffers(problem: KernelProblem, rows: int, keys: int, width: int, copies: int) -> list[Buffer]:
    """Return the buffers of a soft cap. None without one.

    Args:
        rows, keys: of a tile of scores.
        width: keys of a matrix instruction, whose terms L0C holds in one tensor.
        copies: copies of that tensor, if it is as wide as the scores.
    """
    if not problem.call.rules.softcap:
        return []
    copies = copies if score_terms.is_dynamic(problem) else 1
    return [
        Buffer("linear", "L0C", "float32", rows * terms_width(problem, width), copies),
        Buffer("linear_part", "UB", "float32", rows * terms_width(problem, keys) + HALF_ROUND),
        Buffer("cap", "UB", "float32", 2 * HALF_ROUND),
    ]


def initialise(core: Core[BlockPlan], unit: float) -> None:
    """Write constants, if the problem has a soft cap; see `squash` for the unit."""
    for cap in core.on.copies("cap"):
        core.fill(cap, LARGEST_EXPONENT, HALF_ROUND)
        core.fill(cap[HALF_ROUND:], -2.0 * unit, HALF_ROUND)


def take(
    core: Core[TilePlan], score: Tensor, scores: Tensor, linear: Tensor, at: int, source: int, elements: int
) -> None:
    """Bring scores and terms from elements `source`.. of their tensors in L0C to elements `at`.. of a tile."""
    # The scores come last. The Cube makes the terms later, so waiting for the terms covers both. It also overwrites
    # them later.
    part = core.on.linear_part[0][HALF_ROUND:]
    if score_terms.is_dynamic(core.problem):
        core.from_l0c(part[at], linear[source], elements // FRACTAL)
    elif at == 0:
        core.from_l0c(part, linear, core.plan.rows // 16)
        core.with_scalar("vec_muls", part, part, core.problem.post_scale, core.plan.rows * 16)
    core.from_l0c(score[at + RAW], scores[source], elements // FRACTAL)


def squash(core: Core[TilePlan], score: Tensor, place: int, elements: int) -> None:
    """Compute score[place:] = unit * (tanh - 1) of the scores at score[RAW:]. place is at most 2 * HALF_ROUND.

    With the cap as the unit the results are the capped scores less the cap. The terms add the cap.
    """
    problem, (cap,) = core.problem, core.on.cap
    scaled, limited, result = (score[at:] for at in (4 * HALF_ROUND, 4 * HALF_ROUND - core.operand_shift, place))
    core.with_scalar("vec_muls", scaled, score[RAW:], 2.0 * problem.post_scale / problem.call.rules.softcap, elements)
    core.with_row("vec_min", limited, scaled, cap, elements)
    core.unary("vec_exp", limited, limited, elements)
    core.with_scalar("vec_adds", result, limited, 1.0, elements)
    for mask, at, count in core.spans(elements, 64):
        core.tik.vdiv(mask, result[at], cap[HALF_ROUND], result[at], count, 1, 1, 1, 8, 0, 8)


def add_terms(core: Core[TilePlan], score: Tensor, at: int, elements: int) -> None:
    """Compute score = score[operand_shift:] + the Cube's sum of the terms, for elements at.. of a tile."""
    part, column, source = core.on.linear_part[0][HALF_ROUND:], core.plan.rows * 16, score[core.operand_shift :]
    if score_terms.is_dynamic(core.problem):
        core.with_scalar("vec_muls", part[at:], part[at:], core.problem.post_scale, elements)
        core.binary("vec_add", score, source, part[at:], elements)
        return
    for first in range(0, elements, column):
        core.binary("vec_add", score[first:], source[first:], part, column)


def gradient_sign(problem: KernelProblem) -> float:
    """Return the sign of the Cube's gradients of query and key, see `slope`."""
    return -1.0 if problem.call.rules.softcap else 1.0


def slope(core: Core[TilePlan], result: Tensor, work: Tensor, squashed: Tensor, elements: int) -> None:
    """Compute result (float16) = tanh^2 - 1, minus the derivative of the capped scores.

    Args:
        work: float16, as large.
        squashed: the result of `squash` with unit 1, which is -d with d = 1 - tanh. The derivative is d * (2 - d). This
            form loses nothing if tanh comes close to 1.
    """
    core.to_half(work, squashed, elements)
    core.with_scalar("vec_adds", result, work, 2.0, elements)
    core.binary("vec_mul", result, result, work, elements)
