"""End of a row block: output / row total, logsumexp, and the check of the row reference."""

from __future__ import annotations

import functools

from flash_attention.kernels.tik.common.tails import by_rows, stored_rows
from flash_attention.kernels.tik.forward.items import Item
from flash_attention.kernels.tik.forward.tiling import ForwardPlan
from flash_attention.kernels.tik.hardware import FRACTAL, LARGEST_SINGLE
from flash_attention.kernels.tik.recorder import Core
from flash_attention.kernels.tik.tik_types import Number, Step, Tensor

LEAST_TOTAL = 2.0**-120
SATURATED = 59000  # a row total beyond this may hold a probability whose exponent was cut at softmax.CEILING
LARGEST_FLAG = 65000.0  # of the row totals that are compared with SATURATED
# Limit of a sink less the row reference: there its exponential is all of the total, and the logsumexp is the sink.
LARGEST_SINK = 40.0


def initialise(core: Core[ForwardPlan]) -> None:
    """Write constants of the rows."""
    core.fill(core.on.least_total[0], LEAST_TOTAL, 128)
    core.fill(core.on.kept_scale[0], core.problem.call.dropout_scale, 128)
    core.fill(core.on.ones[0], 1.0, 128)
    core.fill(core.on.largest_half[0], LARGEST_FLAG, 128)
    core.fill(core.on.row_total[0], 0.0, 2048)
    for vector in core.on.copies("largest_sink"):
        core.fill(vector, LARGEST_SINK, 128)


def finish(core: Core[ForwardPlan], item: Item, a: int) -> None:
    """Record the Vector work at the end of row block `a`: its sums leave L0C, the output lands in stage[a]."""
    plan, tik = core.plan, core.tik
    inverse = core.on.inverse[0]
    square = plan.rows * 16
    small, shift = _small_steps(core, a), core.operand_shift
    scores, result = core.on.score, core.on.stage[a]
    columns, slots = core.value_columns, plan.staging_slots
    # Backwards, because waiting until the last query column has left stage[a] covers the others.
    spans = [(first, min(2, columns - first)) for first in range(0, columns, 2)][::-1]

    def slot(index: int) -> Tensor:
        return scores[index % slots] if plan.long_pieces else scores[0][index % slots * plan.staging_slot :]

    def move(index: int) -> None:
        first, width = spans[index]
        core.from_l0c(slot(index)[shift], core.on.output[a][first * square], width * plan.rows // 16)

    def scale(index: int) -> None:
        for column in range(spans[index][1]):
            part = slot(index)[column * square :]
            core.binary("vec_mul", part, part[shift:], inverse, square)

    def convert(index: int) -> None:
        first, width = spans[index]
        core.to_half(result[first * square :], slot(index), width * square)

    # The first parts of the output hide the latency of the inverse, later ones the latency of the logsumexp.
    moves = [functools.partial(move, index) for index in range(len(spans))]
    left = max(0, len(spans) - slots)
    for step in _inverse_steps(core, a):
        step()
        if len(moves) > left:
            moves.pop(0)()
    while len(moves) > left:
        moves.pop(0)()
    lag = min(1, slots - 1)
    for index in range(len(spans) + lag):
        if index < len(spans):
            scale(index)
        for _ in range(2):
            if small:
                small.pop(0)()
        if index >= lag:
            convert(index - lag)
            if moves:
                moves.pop(0)()
    while small:
        small.pop(0)()

    def flag(have: Number) -> None:
        largest = core.on.largest_total[0]
        tik.vcmax(stored_rows(core, have), largest, core.on.half_total[0], 1, 1, 1, 8)
        tik.vec_conv(8, "round", core.on.flag[a], largest, 1, 8, 4)

    if core.problem.sequences:  # rows that do not exist have a query of zeros
        flag(plan.rows)
    else:
        by_rows(core, item["rows", a], flag)


def store(core: Core[ForwardPlan], item: Item, a: int, core_index: Number, items: int) -> None:
    """Record the moves of output, logsumexp and flag of row block `a` to global memory."""
    tik = core.tik

    def emit(have: Number) -> None:
        start = core.start("output", item["head"], item.origin("output")) + item["start", a] * 16
        core.store("output", start, (core.on.stage[a], 0), have, core.plan.rows)
        place = core.gm["logsumexp"][core.wide(item["head"], core.seq_q) + item.stored(item["start", a])]
        tik.data_move(place, core.on.row_lse[a], 0, 1, stored_rows(core, have) // 8, 0, 0)
        row = (core_index * items + item.index) * 2 + a
        tik.data_move(core.gm["flags"][row * 8], core.on.flag[a], 0, 1, 1, 0, 0)

    by_rows(core, item["rows", a], emit)


def _inverse_steps(core: Core[ForwardPlan], a: int) -> list[Step]:
    """Return steps to `inverse`, the factors of the output, to come between long instructions.

    It leaves the row totals in compact_total, with the sinks in row_lse.
    """
    total, compact, whole = core.on.row_total[0], core.on.compact_total[0], core.on.row_lse[a]
    tiny, kept, factor = core.on.least_total[0], core.on.kept_scale[0], core.on.reference_part[0]
    gather, turn = _compact_steps(core, compact)
    spread = _spread_steps(core, core.on.inverse[0], factor)
    limit: list[Step] = [lambda: core.with_row("vec_max", whole, compact, tiny, 128)]

    def add_sink() -> None:
        core.binary("vec_sub", share, core.on.sink[0], core.on.current_reference[0][a * 128 :], 128)
        core.with_row("vec_min", share, share, core.on.largest_sink[0], 128)
        core.unary("vec_exp", share, share, 128)

    if core.problem.call.sinks:
        share = core.on.sink_share[0]
        limit = [
            add_sink,
            lambda: core.binary("vec_add", whole, compact, share, 128),
            lambda: core.with_row("vec_max", whole, whole, tiny, 128),
        ]
    return [
        lambda: core.from_l0c(total, core.on.total[a], core.plan.rows // 16),
        gather,
        turn,
        *limit,
        lambda: core.tik.vdiv(64, factor, kept, whole, 2, 1, 1, 1, 8, 8, 8),
        *spread,
    ]


def _small_steps(core: Core[ForwardPlan], a: int) -> list[Step]:
    """Return short dependent instructions of the logsumexp, to come between long ones."""
    tik = core.tik
    one = core.on.ones[0]
    compact, seen, lse = core.on.compact_total[0], core.on.seen[0], core.on.row_lse[a]
    first, last = [], []
    if core.plan.precise_total:
        # The output is divided by the sum of the rounded probabilities it was made from. The logsumexp takes unrounded
        # ones.
        low, whole = core.on.scratch[0], core.on.row_total[0]
        first = [
            lambda: core.from_l0c(low, core.on.low_total[a], core.plan.rows // 16),
            lambda: core.binary("vec_add", whole, whole, low, core.plan.rows * 16),
            *_compact_steps(core, compact),
            lambda: core.with_row("vec_max", lse, compact, core.on.least_total[0], 128),
        ]
        if core.problem.call.sinks:
            first += [lambda: core.binary("vec_add", lse, lse, core.on.sink_share[0], 128)]
    if core.problem.call.sinks:
        last = [lambda: core.binary("vec_max", lse, lse, core.on.sink[0], 128)]
    return [
        *first,
        lambda: core.with_scalar("vec_muls", seen, lse, 2.0**60, 128),
        lambda: core.with_row("vec_min", core.on.reference_part[0], compact, core.on.largest_half[0], 128),
        lambda: core.binary("vec_min", seen, seen, one, 128),
        lambda: core.unary("vec_ln", lse, lse, 128),
        lambda: core.to_half(core.on.half_total[0], core.on.reference_part[0], 128),
        lambda: tik.vec_adds(64, compact, seen, -1.0, 2, 8, 8),
        lambda: core.binary("vec_add", lse, lse, core.on.current_reference[0][a * 128 :], 128),
        lambda: core.with_scalar("vec_muls", compact, compact, LARGEST_SINGLE, 128),
        lambda: core.binary("vec_mul", lse, lse, seen, 128),
        lambda: core.binary("vec_add", lse, lse, compact, 128),
        *last,
    ]


def _spread_steps(core: Core[ForwardPlan], target: Tensor, source: Tensor) -> list[Step]:
    """Spread 128 contiguous numbers to (128 rows, 16 equal columns), as pairs of halves: compact
    backwards.
    """
    halves = core.on.scratch[0].reinterpret_cast_to("float16")
    wide = target.reinterpret_cast_to("float16")
    sources = [halves[16 * (k % 2)] for k in range(16)]

    def scatter(side: int) -> None:
        targets = [wide[8 * k * 32 + 16 * side] for k in range(16)]
        core.tik.vec_trans_scatter(False, False, targets, sources, 8, 2, 2)

    return [
        # First the halves apart: block 2e holds the low ones of rows e, e + 8, ..., block 2e + 1 the high ones.
        lambda: core.tik.vec_trans(halves, source.reinterpret_cast_to("float16"), 1, 1, 1),
        lambda: scatter(0),
        lambda: scatter(1),
    ]


def _compact_steps(core: Core[ForwardPlan], target: Tensor) -> list[Step]:
    """Return steps from row_total (128 rows, 16 equal columns) to 128 numbers. They move as 16-bit halves.

    A first transpose takes one half of every eighth row into a block, a second one puts the halves side by side.
    """
    rows = core.on.row_total[0].reinterpret_cast_to("float16")
    scratch = core.on.scratch[0].reinterpret_cast_to("float16")
    sources = [rows[8 * k * 32] for k in range(16)]
    # Outputs 0 and 1 are the two halves of column 0; the others repeat them and are not used.
    targets = [scratch[0], scratch[16]] + [scratch[FRACTAL * e] for e in range(1, 15)]
    return [
        lambda: core.tik.vec_trans_scatter(False, False, targets, sources, 8, 2, 2),
        lambda: core.tik.vec_trans(target.reinterpret_cast_to("float16"), scratch, 1, 1, 1),
    ]
