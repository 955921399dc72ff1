"""Pre-pass of the backward operator: what the gradients need once per query row.

D_i = rowsum(d_output * output), minus the incoming gradient of the logsumexp (Dao, "FlashAttention-2", 2023, equation
4 and its extension to a logsumexp that is an output), and the logsumexp itself, both as float16 terms
that the Cube adds to its products (score_terms.py). Computed ALiBi contributes its query terms here too.
"""

from __future__ import annotations

from flash_attention.kernels.tik import signature
from flash_attention.kernels.tik.common import alibi, score_terms
from flash_attention.kernels.tik.common.tiles import by_rows
from flash_attention.kernels.tik.core import Core
from flash_attention.kernels.tik.hardware import Buffer, excess
from flash_attention.kernels.tik.kernel import Kernel
from flash_attention.kernels.tik.layout import row_term_kinds, row_terms_shape
from flash_attention.kernels.tik.problem import KernelProblem, padded

ROWS = 128  # queries of a block
DELTA, SCORE, AFTER = range(
    3
)  # kinds of terms: of d_output . value, of the scores, of the scores of keys after queries
# One float32 value per query row each.
VECTORS = ("delta", "logsumexp", "d_logsumexp", "rounded_term", "seen", "slope_value", "slope_part")
# Constants per query row.
CONSTANTS = {"zero": 0.0, "one": 1.0, "largest_half": 65504.0, "least_half": -65504.0}
LEAST_SCORE = -120000.0  # of a row that sees nothing: its probabilities are zero
PART = 4  # fractal columns multiplied at a time


class RowPlan:
    """Shape of a block, as the shared helpers ask for it."""

    strategy, keys, row_blocks = "rows128", 16, 1

    def __init__(self, problem: KernelProblem):
        self.rows = min(ROWS, padded(problem.seq_q))
        self.head_dim = padded(problem.head_dim)


def buffers(problem: KernelProblem, plan: RowPlan) -> list[Buffer]:
    """On-chip buffers in the order of allocation."""
    whole = plan.rows * plan.head_dim
    return [
        Buffer("output", "UB", "float16", whole),
        Buffer("d_output", "UB", "float16", whole),
        Buffer("left", "UB", "float32", PART * plan.rows * 16 + 64),
        Buffer("right", "UB", "float32", PART * plan.rows * 16),
        Buffer("sum", "UB", "float32", plan.rows * 16),
        *(Buffer(name, "UB", "float32", 128) for name in (*VECTORS, *CONSTANTS)),
        Buffer("term", "UB", "float16", 128),
        Buffer("row_numbers", "UB", "float32", 128),
        Buffer("terms", "UB", "float16", plan.rows * 16, row_term_kinds(problem)),
    ]


def build(
    problem: KernelProblem,
    tik,
    *,
    logsumexp_gradient: bool = False,
    name: str = "flash_attention_backward_rows",
    debug: bool = True,
) -> Kernel:
    """Records and builds the pre-pass.

    Args:
        logsumexp_gradient: the kernel takes the gradient of the logsumexp.
    """
    plan = RowPlan(problem)
    parts = buffers(problem, plan)
    assert not excess(parts)  # its size depends on head_dim only
    request = signature.Request(problem, logsumexp_gradient=logsumexp_gradient)
    _, arguments = signature.match("grad_rows", request, None)
    instance = tik.Tik(disable_debug=not debug)
    gm = arguments.declare(tik, instance)
    blocks = -(-problem.seq_q // plan.rows)
    total = problem.batch * problem.heads * blocks
    cores = min(problem.cores, total)
    core = Core(tik, instance, problem, plan, gm)
    with instance.for_range(0, cores, name="core", block_num=cores) as index:
        core.allocate(parts)
        _Rows(core, logsumexp_gradient, blocks).record(index, total, cores)
    arguments.build(instance, name, gm)
    units = -(-total // cores), total
    return Kernel(arguments.inputs, arguments.outputs, name, instance, problem, plan, tuple(parts), cores, units)


class _RowSlopes(alibi.Slopes):
    """Query terms of computed ALiBi, to their place in the Unified Buffer."""

    def _write(self, a: int, epoch, place: int, half) -> None:
        core = self.core
        for kind, sign in ((SCORE, 1.0), (AFTER, -1.0))[: len(core.on.terms) - 1]:
            target = core.on.terms[kind][place * 16]
            core.tik.vec_muls(16, target, half, sign, core.plan.rows // 16, 16, 1)


class _Rows:
    """Records the statements of one core."""

    def __init__(self, core: Core, with_gradient: bool, blocks: int):
        self.core, self.with_gradient, self.blocks = core, with_gradient, blocks
        self.slopes = _RowSlopes(core) if core.problem.alibi == "computed" else None

    def record(self, index, total: int, cores: int) -> None:
        core = self.core
        self._constants()
        share, rest = divmod(total, cores)
        count = core.scalar("int32", "count", share)
        with core.tik.if_scope(index < rest):
            count.set_as(share + 1)
        head, block, start, rows = (core.scalar("int32", name, 0) for name in ("head", "block", "start", "rows"))
        with core.tik.for_range(0, count, name="item") as item:
            head.set_as((item * cores + index) // self.blocks)
            block.set_as((item * cores + index) - head * self.blocks)
            start.set_as(block * core.plan.rows)
            rows.set_as(core.plan.rows)
            if core.tail_rows:
                with core.tik.if_scope(block == self.blocks - 1):
                    rows.set_as(core.tail_rows)
            self._block(head, start, rows)

    def _constants(self) -> None:
        core, plan, problem = self.core, self.core.plan, self.core.problem
        for buffer in core.on.terms + core.on.output + core.on.d_output:
            core.fill(buffer, 0.0, buffer.shape[0])
        for name, value in {**dict.fromkeys(VECTORS, 0.0), **CONSTANTS}.items():
            core.fill(core.on.copies(name)[0], value, 128, 64)
        core.fill(core.on.term[0], 0.0, 128)
        constants = {}
        if problem.alibi == "given":
            constants.update(score_terms.bias_constants(problem))
        if problem.mask == "key":
            constants[score_terms.KEY_MASK] = score_terms.HIDING
        for place, value in constants.items():
            for kind in core.on.terms[SCORE:]:
                core.tik.vec_dup(16, kind[place * 16], value, plan.rows // 16, 16)
        if self.slopes:
            alibi.initialise(core)

    def _block(self, head, start, rows) -> None:
        core, plan, tik, problem = self.core, self.core.plan, self.core.tik, self.core.problem
        delta, lse, extra = (core.on.copies(name)[0] for name in VECTORS[:3])

        def load(have: int) -> None:
            base = core.wide(head, core.depth_columns * core.seq_q * 16)
            for name in ("output", "d_output"):
                core.move(
                    (core.on.copies(name)[0], 0),
                    (core.gm[name], base + start * 16),
                    core.depth_columns,
                    have,
                    core.seq_q - have,
                    plan.rows - have,
                )
            line = core.wide(head, core.seq_q)
            tik.data_move(lse, core.gm["logsumexp"][line + start], 0, 1, have // 8, 0, 0)
            if self.with_gradient:
                tik.data_move(extra, core.gm["d_logsumexp"][line + start], 0, 1, have // 8, 0, 0)

        by_rows(core, rows, load)
        self._products()
        # Row sums of 16 score_terms.
        tik.vcadd(16, delta, core.on.sum[0], plan.rows, 1, 1, 2)
        if self.with_gradient:
            core.binary("vec_sub", delta, delta, extra, 128, 64)
        core.with_scalar("vec_muls", delta, delta, -1.0 / problem.dropout_scale, 128, 64)
        self._negate(lse)
        for place in score_terms.REFERENCE:
            self._term(delta, place, (DELTA,))
            self._term(lse, place, tuple(range(SCORE, len(core.on.terms))))
        if self.slopes:
            self.slopes.load({"slope": self._slope(head)})
            self.slopes.row_block({("start", 0): start}, 0, None)

        def store(have: int) -> None:
            _, heads, groups, _, _ = row_terms_shape(problem)
            for kind, source in enumerate(core.on.terms):
                target = core.wide(head + kind * heads, groups * 256) + start * 16
                tik.data_move(core.gm["row_lanes"][target], source, 0, 1, have, 0, 0)

        by_rows(core, rows, store)

    def _negate(self, lse) -> None:
        """lse = -lse in units of the scores of L0C; LEAST_SCORE where a row sees nothing."""
        core, seen = self.core, self.core.on.seen[0]
        core.with_scalar("vec_muls", seen, lse, 2.0**-10, 128, 64)
        core.with_scalar("vec_adds", seen, seen, 2000.0, 128, 64)
        core.binary("vec_max", seen, seen, core.on.zero[0], 128, 64)
        core.binary("vec_min", seen, seen, core.on.one[0], 128, 64)
        core.binary("vec_mul", lse, lse, seen, 128, 64)
        core.with_scalar("vec_muls", lse, lse, -1.0 / core.problem.post_scale, 128, 64)
        core.with_scalar("vec_adds", seen, seen, -1.0, 128, 64)
        core.with_scalar("vec_axpy", lse, seen, -LEAST_SCORE, 128, 64)

    def _slope(self, head):
        """Number of the head inside its batch."""
        heads = self.core.problem.heads
        number = self.core.scalar("int32", "slope_head")
        number.set_as(head - head // heads * heads)
        return number

    def _products(self) -> None:
        """sum (rows, 16) = output * d_output, added over the fractal columns."""
        core, plan = self.core, self.core.plan
        square = plan.rows * 16
        shift = core.operand_shift
        left, right, total = (core.on.copies(name)[0] for name in ("left", "right", "sum"))
        core.fill(total, 0.0, square, 64)
        for first in range(0, core.depth_columns, PART):
            count = min(PART, core.depth_columns - first)
            elements = count * square
            core.to_single(left[shift:], core.on.output[0][first * square :], elements)
            core.to_single(right, core.on.d_output[0][first * square :], elements)
            core.binary("vec_mul", left, left[shift:], right, elements, 64)
            for column in range(count):
                core.binary("vec_add", total, total, left[column * square :], square, 64)

    def _term(self, value, place: int, places: tuple) -> None:
        """Next float16 term of `value` to a place of some kinds; `value` is left with what it does not hold."""
        core, tik, groups = self.core, self.core.tik, self.core.plan.rows // 16
        back = core.on.rounded_term[0]
        # The last term takes what is left; where that does not fit, the result does not either.
        source = value if place == score_terms.REFERENCE[-1] else back
        if source is back:
            core.binary("vec_min", back, value, core.on.largest_half[0], 128, 64)
            core.binary("vec_max", back, back, core.on.least_half[0], 128, 64)
        for kind in places:
            tik.vec_conv(16, "none", core.on.terms[kind][place * 16], source, groups, 16, 2)
        tik.vec_conv(16, "none", back, core.on.terms[places[0]][place * 16], groups, 2, 16)
        core.binary("vec_sub", value, value, back, 128, 64)
