"""End of a row block: output / row total, logsumexp, and the check of the row reference."""

from __future__ import annotations

from flash_attention.kernels.tik.common.tiles import by_rows
from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.forward.work_item import Item

LEAST = (2 - 2.0**-23) * 2.0**127  # its negative, the most negative number, is the logsumexp of a row that sees nothing
TINY = 2.0**-120
SATURATED = 59000  # a row total beyond this may hold a probability whose exponent was cut at softmax.CEILING
LARGEST_FLAG = 65000.0  # of the row totals that are compared with SATURATED


def initialise(core: Core) -> None:
    """Constants of the rows."""
    core.fill(core.on.least_total[0], TINY, 128, 64)
    core.fill(core.on.kept_scale[0], core.problem.dropout_scale, 128, 64)
    core.fill(core.on.ones[0], 1.0, 128, 64)
    core.fill(core.on.largest_half[0], LARGEST_FLAG, 128, 64)
    core.fill(core.on.row_total[0], 0.0, 2048, 64)


def finish(core: Core, item: Item, a: int) -> None:
    """Records the Vector work at the end of row block `a`: its sums leave L0C, the output lands in stage[a]."""
    plan, tik = core.plan, core.tik
    total, inverse = core.on.row_total[0], core.on.inverse[0]
    square = plan.rows * 16
    small, shift = _small_steps(core, a), core.operand_shift
    score, result = core.on.score[0], core.on.stage[a]
    columns, slots = core.depth_columns, plan.staging_slots
    # Backwards: waiting until the last query column has left stage[a] covers the others.
    spans = [(first, min(2, columns - first)) for first in range(0, columns, 2)][::-1]

    tik.tensor_mov(total, core.on.total[a], "m", 1, plan.rows // 16, 0, 0)
    core.with_row("vec_max", inverse, total, core.on.least_total[0], square, 64)
    for mask, at, count in core.spans(square, 64):
        tik.vdiv(mask, inverse[at], core.on.kept_scale[0], inverse[at], count, 1, 1, 1, 8, 0, 8)

    if plan.precise_total:
        # The output is divided by the sum of what it was made from, the logsumexp is that of unrounded probabilities.
        tik.tensor_mov(core.on.scratch[0], core.on.low_total[a], "m", 1, plan.rows // 16, 0, 0)
        core.binary("vec_add", total, total, core.on.scratch[0], square, 64)

    def move(index: int) -> None:
        first, width = spans[index]
        at = index % slots * 2 * square + shift
        tik.tensor_mov(score[at], core.on.output[a][first * square], "m", 1, width * plan.rows // 16, 0, 0)

    def scale(index: int) -> None:
        for column in range(spans[index][1]):
            at = (index % slots * 2 + column) * square
            core.binary("vec_mul", score[at:], score[at + shift :], inverse, square, 64)

    def convert(index: int) -> None:
        first, width = spans[index]
        core.to_half(result[first * square :], score[index % slots * 2 * square :], width * square)

    lag = 1 if slots > 3 else 0  # three stages at a time touch four slots
    for step in range(len(spans) + 2 * lag):
        if step < len(spans):
            move(step)
        if 0 <= step - lag < len(spans):
            scale(step - lag)
        for _ in range(2):
            if small:
                small.pop(0)()
        if step - 2 * lag >= 0:
            convert(step - 2 * lag)
    while small:
        small.pop(0)()

    def flag(have: int) -> None:
        largest = core.on.largest_total[0]
        tik.vcmax(have, largest, core.on.half_total[0], 1, 1, 1, 8)
        tik.vec_conv(8, "round", core.on.flag[a], largest, 1, 8, 4)

    by_rows(core, item["rows", a], flag)


def store(core: Core, item: Item, a: int, core_index, items: int) -> None:
    """Records the moves of output, logsumexp and flag of row block `a` to global memory."""
    tik, columns = core.tik, core.depth_columns

    def record(have: int) -> None:
        target = core.wide(item["head"], columns * core.seq_q * 16) + item["start", a] * 16
        core.move(
            (core.gm["output"], target),
            (core.on.stage[a], 0),
            columns,
            have,
            core.plan.rows - have,
            core.seq_q - have,
        )
        tik.data_move(
            core.gm["logsumexp"][core.wide(item["head"], core.seq_q) + item["start", a]],
            core.on.row_lse[a],
            0,
            1,
            have // 8,
            0,
            0,
        )
        row = (core_index * items + item.index) * 2 + a
        tik.data_move(core.gm["flags"][row * 8], core.on.flag[a], 0, 1, 1, 0, 0)

    by_rows(core, item["rows", a], record)


def _small_steps(core: Core, a: int) -> list:
    """Short dependent instructions of the logsumexp, to be recorded between long ones that hide their latency."""
    tik = core.tik
    one, tiny = core.on.ones[0], core.on.least_total[0]
    compact, seen, lse = core.on.compact_total[0], core.on.seen[0], core.on.row_lse[a]
    return [
        lambda: _compact(core, compact),
        lambda: core.with_scalar("vec_muls", seen, compact, 2.0**60, 128, 64),
        lambda: core.with_row("vec_max", lse, compact, tiny, 128, 64),
        lambda: core.binary("vec_min", seen, seen, one, 128, 64),
        lambda: core.unary("vec_ln", lse, lse, 128, 64),
        lambda: core.with_row("vec_min", core.on.reference_part[0], compact, core.on.largest_half[0], 128, 64),
        lambda: core.to_half(core.on.half_total[0], core.on.reference_part[0], 128),
        lambda: core.binary("vec_add", lse, lse, core.on.current_reference[a], 128, 64),
        lambda: tik.vec_adds(64, compact, seen, -1.0, 2, 8, 8),
        lambda: core.binary("vec_mul", lse, lse, seen, 128, 64),
        lambda: core.with_scalar("vec_muls", compact, compact, LEAST, 128, 64),
        lambda: core.binary("vec_add", lse, lse, compact, 128, 64),
    ]


def _compact(core: Core, target) -> None:
    """row_total (128 rows, 16 equal columns) to 128 contiguous numbers, float32 moved as pairs of 16-bit halves.

    A first transpose takes one half of every eighth row into a block, a second one puts the halves side by side.
    """
    rows = core.on.row_total[0].reinterpret_cast_to("float16")
    scratch = core.on.scratch[0].reinterpret_cast_to("float16")
    sources = [rows[8 * k * 32] for k in range(16)]
    # Outputs 0 and 1 are the two halves of column 0; the others repeat them and are not used.
    targets = [scratch[0], scratch[16]] + [scratch[256 * e] for e in range(1, 15)]
    core.tik.vec_trans_scatter(False, False, targets, sources, 8, 2, 2)
    core.tik.vec_trans(target.reinterpret_cast_to("float16"), scratch, 1, 1, 1)
