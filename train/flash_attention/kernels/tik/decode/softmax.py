"""Online softmax of one key tile on Vector (FlashAttention-2, algorithm 1): scores (keys, 16 rows), a key per row.

In this orientation the values of query rows are 16 numbers that repeat. Maxima and sums over the keys fold halves onto
each other in float32. A reference is subtracted by an instruction whose second source stands still.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from flash_attention.kernels.tik.common import softcap
from flash_attention.kernels.tik.decode.schedule import OUT_OF_REACH, Current, VisibleKeys
from flash_attention.kernels.tik.decode.tiling import HIDDEN_KEYS, DecodePlan
from flash_attention.kernels.tik.hardware import FRACTAL, HALF_ROUND, LANES
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Scalar, Step, Tensor

# Probabilities are multiplied by this before they become float16. Small probabilities then keep their precision, and
# the largest is exact.
PROBABILITY_SCALE = 32768.0
NOTHING = -1e20  # reference of a row that has seen no key: below every score
HIDING = 1e30  # times the distance of a key from the visible keys of a row: lowers the score below NOTHING


class Scratch(NamedTuple):
    """Run-time variables of `take`."""

    last_key: Scalar
    shift: Scalar
    number: Scalar


def initialise(core: Core[DecodePlan]) -> None:
    """Write constants of the rows."""
    plan = core.plan
    core.fill(core.on.zeros[0], 0.0, LANES)
    blocks = 3 * plan.row_groups * LANES // 8
    core.tik.data_move(core.on.limits[0], core.gm["limits"], 0, 1, blocks, 0, 0)
    softcap.initialise(core, core.problem.call.rules.softcap)
    # Number of the key of every score of 16 rows, doubled until it is full.
    number = core.on.key_number[0]
    for key in range(4):
        core.tik.vec_dup(16, number[key * 16], float(key), 1, 8)
    have, size = LANES, number.shape[0]
    while have < size:
        core.with_scalar("vec_adds", number[have:], number, have / 16, min(have, size - have))
        have *= 2


def clear(core: Core[DecodePlan]) -> None:
    """Clear sums of a pair before its first tile."""
    for group in range(core.plan.row_groups):
        maximum, total = statistics(core, group)
        core.fill(maximum, NOTHING, LANES)
        core.fill(total, 0.0, LANES)
    core.fill(core.on.sum[0], 0.0, core.plan.rows * core.plan.value_dim)


def statistics(core: Core[DecodePlan], group: int) -> tuple[Tensor, Tensor]:
    """Return reference and row total of a group of rows, four times over."""
    both = core.on.statistics[0][group * 2 * LANES :]
    return both, both[LANES:]


def take(core: Core[DecodePlan], current: Current, scratch: Scratch) -> None:
    """Take scores out of L0C: scaled, capped, biased, hidden if their key is out of sight."""
    plan, problem = core.plan, core.problem
    score, width = core.on.score[0], plan.segment * plan.rows
    for segment, source in enumerate(core.on.scores):
        core.from_l0c(score[segment * width :], source, width // FRACTAL)
    if problem.call.rules.softcap:
        _cap(core, score, plan.keys * plan.rows)
    elif problem.call.scale != 1.0:
        core.with_scalar("vec_muls", score, score, problem.call.scale, plan.keys * plan.rows)
    if problem.call.rules.alibi:
        _add_alibi(core, current, scratch)
    _, largest_first, least_last, _ = VisibleKeys.of(problem, plan).limits
    last = scratch.last_key
    last.set_as(current.length - 1)
    if least_last < OUT_OF_REACH:
        with core.tik.if_scope(last > current.base + least_last):
            last.set_as(current.base + least_last)
    with core.tik.if_scope(current.start + (plan.keys - 1) > last):
        _hide(core, current, scratch, after=True)
    if largest_first > -(OUT_OF_REACH >> 1):
        with core.tik.if_scope(current.start < current.base + largest_first):
            _hide(core, current, scratch, after=False)


def _hide(core: Core[DecodePlan], current: Current, scratch: Scratch, after: bool) -> None:
    """Lower the scores of hidden keys by more than any score."""
    plan, tik = core.plan, core.tik
    for group in range(plan.row_groups):
        limit = core.on.limits[0][(3 * group + (not after)) * LANES :]
        bound = _from_base(core, current, scratch, group, limit)
        if after:
            tik.scalar_conv("", scratch.number, current.shift(scratch.shift, current.length - 1))
            end = core.on.peak[0]
            core.fill(end, scratch.number, LANES)
            core.binary("vec_min", bound, bound, end, LANES)
        for score, count in _distances(core, group, bound, after):
            _lower(core, score, count)


def _from_base(core: Core[DecodePlan], current: Current, scratch: Scratch, group: int, positions: Tensor) -> Tensor:
    """Return positions of 16 rows relative to query 0, as keys of the tile."""
    bound = core.on.bound[0][group * LANES :]
    core.tik.scalar_conv("", scratch.number, current.shift(scratch.shift, current.base))
    core.with_scalar("vec_adds", bound, positions, scratch.number, LANES)
    return bound


def _distances(core: Core[DecodePlan], group: int, bound: Tensor, after: bool) -> Iterator[tuple[Tensor, int]]:
    """Yield (scores, elements) of a group by pieces. `hiding` has bound - key number, or its negative."""
    keys, number, hiding = core.plan.keys, core.on.key_number[0], core.on.hiding[0]
    for piece in range(0, keys, HIDDEN_KEYS):
        size = min(HIDDEN_KEYS, keys - piece) * 16
        if piece:
            core.with_scalar("vec_adds", bound, bound, float(-HIDDEN_KEYS), LANES)
        for mask, at, count in core.spans(size, 64):
            first, second = (bound, number[at:]) if after else (number[at:], bound)
            core.tik.vec_sub(mask, hiding[at], first, second, count, 8, *((0, 8) if after else (8, 0)))
        yield core.on.score[0][(group * keys + piece) * 16 :], size


def _cap(core: Core[DecodePlan], score: Tensor, size: int) -> None:
    """Compute score = softcap * tanh(scale * score / softcap), as in common.softcap."""
    cap, limits = core.problem.call.rules.softcap, core.on.cap[0]
    core.with_scalar("vec_muls", score, score, 2.0 * core.problem.call.scale / cap, size)
    core.with_row("vec_min", score, score, limits, size)
    core.unary("vec_exp", score, score, size)
    core.with_scalar("vec_adds", score, score, 1.0, size)
    for mask, at, count in core.spans(size, 64):
        core.tik.vdiv(mask, score[at], limits[HALF_ROUND], score[at], count, 1, 1, 1, 8, 0, 8)
    core.with_scalar("vec_adds", score, score, cap, size)


def _add_alibi(core: Core[DecodePlan], current: Current, scratch: Scratch) -> None:
    """Compute score -= slope * |position of the query - key|, of float32 integers."""
    hiding = core.on.hiding[0]
    for group in range(core.plan.row_groups):
        queries = core.on.limits[0][(3 * group + 2) * LANES :]
        bound = _from_base(core, current, scratch, group, queries)
        for score, size in _distances(core, group, bound, True):
            if not core.problem.call.rules.causal:
                core.unary("vec_abs", hiding, hiding, size)
            core.with_row("vec_mul", hiding, hiding, core.on.slopes[0][group * LANES :], size)
            core.binary("vec_sub", score, score, hiding, size)


def _lower(core: Core[DecodePlan], score: Tensor, size: int) -> None:
    """Lower scores whose distance is negative."""
    hiding = core.on.hiding[0]
    core.with_row("vec_min", hiding, hiding, core.on.zeros[0], size)
    core.with_scalar("vec_muls", hiding, hiding, HIDING, size)
    core.binary("vec_add", score, score, hiding, size)


def update(core: Core[DecodePlan]) -> None:
    """Update references and row totals. `half` gets float16 probabilities, `factor` is for the sums so far."""
    # The groups take turns, because instructions of one group of rows depend on each other.
    for steps in zip(*(_update_steps(core, group) for group in range(core.plan.row_groups))):
        for step in steps:
            step()


def _update_steps(core: Core[DecodePlan], group: int) -> list[Step]:
    size = core.plan.keys * 16
    score, half = (core.on.copies(name)[0][group * size :] for name in ("score", "half"))
    reference, total = statistics(core, group)
    peak, factor, folded = (
        core.on.copies(name)[0][group * place :]
        for name, place in (("peak", LANES), ("factor", LANES), ("folded", max(size // 2, LANES)))
    )
    first, *others = fold(core, "vec_add", score, size, folded)
    return [
        *fold(core, "vec_max", score, size, folded),
        *spread(core, "vec_max", folded, peak, group),
        lambda: core.binary("vec_max", peak, peak, reference, LANES),
        lambda: core.with_row("vec_sub", score, score, peak, size),
        lambda: core.binary("vec_sub", factor, reference, peak, LANES),
        lambda: core.unary("vec_exp", score, score, size),
        lambda: core.unary("vec_exp", factor, factor, LANES),
        first,
        lambda: core.with_scalar("vec_muls", score, score, PROBABILITY_SCALE, size),
        lambda: core.with_scalar("vec_adds", reference, peak, 0.0, LANES),
        lambda: core.to_half(half, score, size),
        lambda: core.binary("vec_mul", total, total, factor, LANES),
        *others,
        lambda: core.binary("vec_add", total, total, folded, LANES),
    ]


def accumulate(core: Core[DecodePlan]) -> None:
    """Compute sum = sum * factor + product, piece by piece."""
    plan = core.plan
    size, piece = plan.value_dim * 16, core.on.piece[0]
    length = piece.shape[0]
    for group in range(plan.row_groups):
        factor, target = core.on.factor[0][group * LANES :], core.on.sum[0][group * size :]
        core.with_row("vec_mul", target, target, factor, size)
    for at in range(0, size * plan.row_groups, length):
        count = min(length, size * plan.row_groups - at)
        target = core.on.sum[0][at:]
        core.from_l0c(piece, core.on.product[0][at], count // FRACTAL)
        core.binary("vec_add", target, target, piece, count)


def finish(core: Core[DecodePlan]) -> None:
    """Sum the lanes' row totals to totals of the rows, four times over."""
    for group in range(core.plan.row_groups):
        _, total = statistics(core, group)
        for step in spread(core, "vec_add", total, total, group):
            step()


def fold(core: Core[DecodePlan], name: str, source: Tensor, size: int, target: Tensor) -> list[Step]:
    """Return steps that fold `size` elements onto the first 64 of target, repeat by repeat."""
    repeats = size // LANES
    if repeats == 1:
        return [lambda: core.with_scalar("vec_adds", target, source, 0.0, LANES)]

    def step(left: Tensor, right: Tensor, count: int) -> Step:
        return lambda: core.binary(name, target, left, right, count * LANES)

    have = repeats // 2
    steps: list[Step] = [step(source, source[have * LANES :], have)]
    if repeats % 2:
        steps.append(step(target, source[2 * have * LANES :], 1))
    while have > 1:
        steps.append(step(target, target[(have - have // 2) * LANES :], have // 2))
        have -= have // 2
    return steps


def spread(core: Core[DecodePlan], name: str, source: Tensor, target: Tensor, group: int) -> list[Step]:
    """Return steps that fold 64 elements to 16. These then stand in target four times over.

    The 64 elements are read as a ring: element i is added to the element half a turn, then a quarter turn away.
    """
    tik = core.tik
    first, second = (wheel[group * 2 * LANES :] for wheel in core.on.wheel)
    operation = getattr(tik, name)
    return [
        lambda: tik.vec_adds(LANES, first, source, 0.0, 2, 8, 0),
        lambda: operation(LANES, second, first, first[32:], 2, 8, 0, 0),
        lambda: operation(LANES, target, second, second[16:], 1, 8, 8, 8),
    ]
