"""Tile shapes of the backward operator, and the bytes of its buffers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from flash_attention.kernels.tik import instruction_forms
from flash_attention.kernels.tik.backward import row_block
from flash_attention.kernels.tik.common import kept_tiles, segments, softcap, tile_lists
from flash_attention.kernels.tik.common.score_terms import TERMS, is_dynamic
from flash_attention.kernels.tik.common.table_row import ITEMS_PER_CHUNK
from flash_attention.kernels.tik.common.work_split import TableOfWork
from flash_attention.kernels.tik.hardware import BYTES, FRACTAL, HALF_LANES, HALF_ROUND, WIDENED, Buffer, usage
from flash_attention.kernels.tik.layout import BLOCK
from flash_attention.kernels.tik.problem import KernelProblem, padded

FINISH_COPIES = 2  # tiles that the last pass has in work at a time
FINISH_PARTS = 4  # and accumulators of a tile that are on their way to it at most
RING = 4  # row tiles of query, output gradient and row terms in L1; the unrolled loop body covers as many steps
PAIR = 2  # copies in L1 of the score gradients: the Cube still reads one while Vector writes the next
HALF_FACTORS = (48, 64)  # padded head_dims that multiply float16 factors
# How many times the keys of key tiles of 128 a plan may compute, if the strategy is free. Global memory bounds tiles of
# 128 keys, and Vector bounds the wider tiles of narrow heads.
WASTE, NARROW_WASTE, NARROW = 1.3, 1.1, 96
SHORT, SHORT_WASTE = 1024, 1.1  # the same of tight plans, which gain less if keys are few
NARROWEST = "rows64keys64"  # for scattered tiles of 64, see common.tile_lists
# WIDEST saves Vector some moves of query gradients, but only pays if it computes no more scores than WIDE.
WIDEST, WIDE = "rows48keys256", "rows64keys192"


@dataclass(frozen=True)
class Strategy:
    """A named tile shape.

    Attributes:
        rows: queries per step.
        keys: per work item.
        operand: float16 elements of one operand in L0B.
        tight: for nothing but plans that are tight, unless it is asked for by name.
    """

    name: str
    rows: int
    keys: int
    operand: int = 6144
    tight: bool = False


STRATEGIES = {
    s.name: s
    for s in (
        # Narrow heads have few operands on their way at a time; larger operands need fewer instructions.
        Strategy(WIDEST, 48, 256, 12288),
        Strategy(WIDE, 64, 192, 12288),
        Strategy("rows32keys192", 32, 192),
        Strategy("rows32keys176", 32, 176, tight=True),
        Strategy("rows32keys160", 32, 160, tight=True),
        Strategy("rows32keys144", 32, 144, 8192, tight=True),
        Strategy("rows64keys128", 64, 128),
        Strategy("rows32keys128", 32, 128, 8192),
        Strategy("rows32keys112", 32, 112, 8192, tight=True),
        Strategy("rows16keys128", 16, 128),
        Strategy("rows16keys112", 16, 112),
        Strategy("rows32keys96", 32, 96),
        Strategy("rows64keys64", 64, 64),
        Strategy("rows32keys64", 32, 64),
        Strategy("rows16keys32", 16, 32),
    )
}


@dataclass(frozen=True)
class Pipeline:
    """Order of the steps of the main kernel.

    Attributes:
        single: the gradient of the scores is multiplied out in float32; otherwise from float16 factors, which costs
            Vector less, its limit at HALF_FACTORS, and doubles what rounding does to them.
        deferred: the Unified Buffer holds the gradients of an item, which are stored during the next one, see store.py.
        apart: every piece of a tile is a tensor of its own in the Unified Buffer, see `BackwardPlan.pieces`. Even if
            synchronisation looks at whole tensors, Vector then works on one piece while it waits for the result of
            another.
        tight: scores and the gradients of the probabilities take turns in one place in L0C, and the gradients of the
            queries leave it in halves: gradients of more keys fit.
        whole: Vector works on whole tiles, with instructions as long as a tile. Its order of work then keeps dependent
            instructions apart: it multiplies a step behind (`kernel.Backward`).
    """

    single: bool
    deferred: bool
    apart: bool
    tight: bool
    whole: bool

    @property
    def late(self) -> bool:
        """Return True if the gradients of an item leave L0C during the next one."""
        return self.deferred and self.single


@dataclass(frozen=True)
class BackwardPlan:
    """A strategy cut down to the lengths of a problem.

    Attributes:
        rows: queries of one step.
        keys: keys of a work item, whose gradients stay in L0C.
        operand: as in Strategy.
        head_dim, value_dim: padded to 16.
        bias_kind: kind of the bias whose gradient is wanted, or "none".
        bias_chunks: groups of 16 query heads whose sums per key are kept, for bias_kind "per_key".
        held: tiles of query and output gradient that the ring has room for, see common.kept_tiles.
        product_sums, vector_sums: places in L0C and in the Unified Buffer for sums of query gradients, see kept_sums.
    """

    strategy: str
    rows: int
    keys: int
    operand: int
    head_dim: int
    value_dim: int
    pipeline: Pipeline
    bias_kind: str
    bias_chunks: int
    held: int = RING
    product_sums: int = 0
    vector_sums: int = 0

    row_blocks = 1

    @property
    def ways(self) -> int:
        """Return the most tiles of a slot of the ring."""
        return -(-self.held // RING)

    @property
    def sums(self) -> int:
        """Return all places for sums of query gradients."""
        return self.product_sums + self.vector_sums

    def row_elements(self, name: str) -> int:
        """Return elements of a tile of "query" or "scaled_d_output"."""
        return self.rows * (self.head_dim if name == "query" else self.value_dim)

    @property
    def columns(self) -> int:
        """Return fractal columns of a score tile."""
        return self.keys // 16

    @property
    def area(self) -> int:
        """Return scores of a tile."""
        return self.rows * self.keys

    @property
    def segments(self) -> tuple[int, ...]:
        """Return keys per matrix instruction of the scores by piece of a tile. As many as an operand holds."""
        most = max(1, self.operand // (self.widest * 16))
        if self.columns <= most:
            return (self.keys,)
        result: list[int] = []
        for _, elements in self.pieces:
            columns = elements // (self.rows * 16)
            count = -(-columns // most)
            result += [16 * len(range(index, columns, count)) for index in range(count)]
        return tuple(result)

    @property
    def widest(self) -> int:
        """Return the larger one of head_dim and value_dim."""
        return max(self.head_dim, self.value_dim)

    def column_parts(self, depth: int, dim: int) -> tuple[tuple[int, int], ...]:
        """Return (first, count) of the columns of `dim` that an operand of `depth` rows holds."""
        whole = dim // 16
        count = min(whole, max(1, self.operand // (depth * 16)))
        count = -(-whole // -(-whole // count))
        return tuple((first, min(count, whole - first)) for first in range(0, whole, count))

    @property
    def query_parts(self) -> tuple[tuple[int, int], ...]:
        """Return (first, count) of the query gradients' columns that L0C holds at a time."""
        columns = self.head_dim // 16
        half = -(-columns // 2) if self.pipeline.tight else columns
        return tuple((first, min(half, columns - first)) for first in range(0, columns, half))

    def key_parts(self, part: tuple[int, int]) -> list[tuple[int, int]]:
        """Return (first, count) of the columns of keys of an operand, for one of query_parts."""
        return [(part[0] + at, count) for at, count in self.column_parts(self.keys, part[1] * 16)]

    @property
    def query_halves(self) -> int:
        """Return how many tensors of L0C share the query gradients: one if Vector is the limit."""
        parts = self.key_parts(self.query_parts[0])
        alike = len(parts) % 2 == 0 and len({count for _, count in parts}) == 1
        return 2 if self.pipeline.single and alike and not self.pipeline.tight else 1

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """Return (first element, elements) of each part of a tile. Vector works on them in turn."""
        size = self.area if self.pipeline.whole else self.half
        return tuple((at, min(size, self.area - at)) for at in range(0, self.area, size))

    @property
    def half(self) -> int:
        """Return the number of scores in half a tile of whole fractal columns."""
        return -(-self.columns // 2) * self.rows * 16

    @property
    def copies(self) -> int:
        """Return Tensors that hold a tile in the Unified Buffer: one, or one per piece."""
        return len(self.pieces) if self.pipeline.apart else 1

    def segment_start(self, index: int) -> int:
        """Return the first key of a segment inside its tile."""
        return sum(self.segments[:index])


def plans(problem: KernelProblem) -> list[BackwardPlan]:
    """Return plans to try in order, the fastest first.

    Raises:
        ValueError: problem.tiling names no strategy of the backward operator.
    """
    call = problem.call
    names = list(STRATEGIES)
    if problem.tiling in STRATEGIES:
        names = [problem.tiling]
    elif problem.tiling != "auto":
        raise ValueError(f"tiling: got {problem.tiling!r}, allowed are auto, {', '.join(STRATEGIES)}")
    if problem.scattered:
        names.sort(key=lambda name: name != NARROWEST)
    result = []
    for name in names:
        strategy = STRATEGIES[name]
        if problem.sequences and BLOCK % strategy.rows:
            continue  # a block of stored rows would end inside a tile
        waste = NARROW_WASTE if max(call.head_dim, call.value_dim) <= NARROW else WASTE
        computed = padded(call.seq_k, strategy.keys)
        if len(names) > 1 and computed > waste * padded(call.seq_k, 128):
            continue
        if len(names) > 1 and name == WIDEST and _computed(problem, strategy) > _computed(problem, STRATEGIES[WIDE]):
            continue
        bias = call.bias if problem.bias_grad else "none"
        head_dim, value_dim = padded(call.head_dim), padded(call.value_dim)
        chunks = -(-call.group // 16) if bias == "per_key" else 0
        widest = max(head_dim, value_dim)
        single = widest not in HALF_FACTORS and not call.dropout_threshold and bias != "per_score"
        # If Vector is the bound, or dropout's selections fill the instruction cache, the first kind gains nothing.
        kinds = [(True, False), (False, False)] if not call.dropout_threshold and not chunks else [(False, False)]
        # Plain problems: L0C and Vector have only scores to work on, and lengths are known.
        plain = not call.rules.softcap and not problem.sequences
        if kinds[0][0] and single and widest > 128 and strategy.rows == 32 and plain:
            kinds.insert(1, (True, True))
        if strategy.tight and len(names) > 1:
            kinds = [kind for kind in kinds if kind[1]]
        if len(names) > 1 and call.seq_k < SHORT and computed > SHORT_WASTE * padded(call.seq_k, 128):
            kinds = [kind for kind in kinds if not kind[1]]
        for deferred, tight in kinds:
            apart = deferred and widest <= (224 if tight else 128) and not call.rules.softcap and bias != "per_score"
            plan = BackwardPlan(
                name,
                _cut(strategy.rows, call.seq_q if not problem.sequences else min(call.seq_q, 64)),
                _cut(strategy.keys, call.seq_k),
                strategy.operand,
                head_dim,
                value_dim,
                Pipeline(
                    single=single,
                    deferred=deferred,
                    apart=apart and single,
                    tight=tight,
                    whole=apart and not single,
                ),
                bias,
                chunks,
            )
            # Sums per key of more than one chunk of heads start over at known steps.
            cut = problem.listed and (chunks > 1 or not tile_lists.fits(problem, plan))
            if plan not in result and not cut:
                result.append(plan)
    return result


def _computed(problem: KernelProblem, strategy: Strategy) -> int:
    """Return scores of all tiles that a head visits, hidden ones included."""
    call = problem.call
    rows, keys, result = strategy.rows, strategy.keys, 0
    for start in range(0, call.seq_k, keys):
        first, end = call.band.rows_that_see(start, min(start + keys, call.seq_k))
        result += (-(-end // rows) - first // rows) * rows * keys if first < end else 0
    return result


def _cut(most: int, length: int) -> int:
    return min(size for size in (16, 32, 64, 128, most) if size >= min(most, length))


def lowers_on_cube(problem: KernelProblem) -> bool:
    """Return if the Cube lowers hidden scores: its work comes last, and the tiles are in L1."""
    return not problem.sequences and not problem.call.rules.softcap and not problem.prefixed


def buffers(
    problem: KernelProblem,
    plan: BackwardPlan,
    work: TableOfWork,
    writes_d_query: bool,
    kept: int = 0,
    list_length: int = 0,
) -> list[Buffer]:
    """Return every on-chip buffer of the main kernel, in the order of allocation.

    Args:
        writes_d_query: see BackwardSplit.
        kept: query tiles of a head that stay in L1.
        list_length: words of an item's list under a block mask.
    """
    call = problem.call
    rows, keys, depth, value_dim, area = plan.rows, plan.keys, plan.head_dim, plan.value_dim, plan.area
    tiles, distances = work.tiles.size, work.distances.size
    dropout, capped = call.dropout_threshold > 0, call.rules.softcap > 0
    dynamic = is_dynamic(problem)
    width = max(plan.segments)
    queries = rows * 16 * plan.query_parts[0][1] // plan.query_halves
    # With equal parts, an operand may hold more columns of the narrower head_dim at a time than of the wider one.
    part_rows = max(plan.column_parts(rows, dim)[0][1] for dim in (depth, value_dim)) * 16
    part_keys = max(count for part in plan.query_parts for _, count in plan.key_parts(part)) * 16
    half, deferred = padded(area, 128), plan.pipeline.deferred
    lowering = rows * rows if tiles and lowers_on_cube(problem) else 0
    shown = 1 if problem.compares and not lowering else 0  # ids, on their way to Vector
    limits = shown * segments.rows(problem)
    # The products of two tensors take turns. So no product waits for the end of the one before, even if the
    # synchronisation looks at whole tensors. Vector takes one after the other.
    in_turns = (plan.pipeline.single or plan.pipeline.apart) and not capped and len(plan.segments) > 1
    halves = len(plan.pieces) if in_turns else 1
    piece = plan.pieces[0][1] if halves > 1 else area
    l0_keys = max(width * plan.widest, keys * part_keys, rows * 16 if lowering else 0)
    l0_other = (
        rows * part_rows + keys * TERMS * ((2 if dynamic else 1) + shown) + (rows * 16 if plan.bias_chunks else 0)
    )
    l0_left = problem.capacity["L0B"] // BYTES["float16"] - l0_other
    result = [
        *(
            part
            for name in ("query", "scaled_d_output")
            for part in kept_tiles.buffers(name, plan.row_elements(name), plan.held, RING)
        ),
        Buffer("kept_query", "L1", "float16", rows * depth * kept),
        Buffer("kept_scaled_d_output", "L1", "float16", rows * value_dim * kept),
        Buffer("logsumexp_terms", "L1", "float16", rows * TERMS, RING),
        Buffer("delta_terms", "L1", "float16", rows * TERMS, RING),
        Buffer("probability", "L1", "float16", area),
        Buffer("d_score", "L1", "float16", area, PAIR),
        # Before the derivative of the soft cap.
        Buffer("d_biased", "L1", "float16", area, PAIR if capped and plan.bias_chunks else 0),
        Buffer("key", "L1", "float16", keys * depth, 2),
        Buffer("key_rows", "L1", "float16", keys * depth, 2),
        Buffer("value", "L1", "float16", keys * value_dim, 2),
        Buffer("key_terms", "L1", "float16", keys * TERMS, RING if dynamic else 0),
        Buffer("segment_queries", "L1", "float16", rows * TERMS if problem.compares else 0, RING),
        Buffer("segment_keys", "L1", "float16", keys * TERMS if problem.compares else 0, 2),
        Buffer("one_terms", "L1", "float16", FRACTAL),
        Buffer("one_hot", "L1", "float16", 16 * FRACTAL, 1 if plan.bias_chunks else 0),
        Buffer("tiles", "L1", "float16", tiles),
        Buffer("lowering", "L1", "float16", lowering),
        Buffer("distances", "L1", "float16", distances),
        Buffer("l0_rows", "L0A", "float16", rows * plan.widest),
        Buffer("l0_turned", "L0A", "float16", max(area, lowering)),
        Buffer("l0_d_score", "L0A", "float16", max(area, lowering)),
        Buffer("l0_logsumexp_terms", "L0A", "float16", rows * TERMS),
        Buffer("l0_delta_terms", "L0A", "float16", rows * TERMS),
        Buffer("l0_segment_queries", "L0A", "float16", rows * TERMS, shown),
        Buffer("l0_segment_keys", "L0B", "float16", keys * TERMS, shown),
        Buffer("l0_keys", "L0B", "float16", l0_keys, max(2, min(4, l0_left // l0_keys))),
        Buffer("l0_columns", "L0B", "float16", rows * part_rows),
        Buffer("l0_ones", "L0B", "float16", keys * TERMS),
        Buffer("l0_key_terms", "L0B", "float16", keys * TERMS if dynamic else 0),
        Buffer("l0_one_hot", "L0B", "float16", rows * 16, 1 if plan.bias_chunks else 0),
        Buffer("value_sum", "L0C", "float32", keys * value_dim),
        Buffer("key_sum", "L0C", "float32", keys * depth),
        Buffer("query_sum", "L0C", "float32", queries * (1 + plan.product_sums), plan.query_halves),
        Buffer("scores", "L0C", "float32", piece, halves),
        Buffer("d_probability", "L0C", "float32", 0 if plan.pipeline.tight else piece, halves),
        Buffer("delta", "L0C", "float32", rows * 16, 1 if dropout else 0),
        Buffer("bias_sum", "L0C", "float32", keys * 16, plan.bias_chunks),
        *_vector_operands(problem, plan),
        # A whole number of rounds of the banks behind the query gradients that are added to it.
        Buffer("query_total", "UB", "float32", rows * depth + HALF_ROUND if writes_d_query else 0),
        Buffer("cap_slope", "UB", "float16", half, 1 if capped else 0),
        Buffer("dropped", "UB", "float16", half, 1 if dropout else 0),
        Buffer("row_delta", "UB", "float16", rows * 16, 1 if dropout else 0),
        Buffer("keep", "UB", "uint8", area // 8, 2 if dropout else 0),
        Buffer("visible", "UB", "float16", half + 4 * HALF_ROUND * limits if tiles and not lowering else 0),
        Buffer("nothing", "UB", "float16", 128, limits),
        Buffer("visible_column", "UB", "float16", rows * 16, shown),
        Buffer("visible_part", "UB", "float16", HALF_LANES if problem.sequences else 0),
        Buffer("hidden", "UB", "float16", half, 1 if problem.mask == "per_score" else 0),
        Buffer("bias", "UB", "float16", half, 1 if call.bias == "per_score" else 0),
        Buffer("distance", "UB", "float16", half, 1 if distances else 0),
        Buffer("slope_value", "UB", "float32", 128, 1 if distances else 0),
        Buffer("value_gradient", "UB", "float16", keys * value_dim if deferred else 0),
        Buffer("key_gradient", "UB", "float16", keys * depth if deferred and not plan.pipeline.single else 0),
        Buffer("query_half", "UB", "float16", rows * depth if writes_d_query else 0),
        Buffer("zeros", "UB", "float16", 128, 1 if dropout else 0),
        Buffer("term", "UB", "float16", 128, 1 if distances else 0),
        Buffer("widened", "UB", "float32", 0 if instruction_forms.current().mixed_axpy else WIDENED),
        Buffer("table", "UB", "int32", ITEMS_PER_CHUNK * work.words.shape[-1]),
        Buffer("lists", "UB", "int32", list_length, 2),
        *softcap.buffers(problem, rows, keys, keys, 1),
    ]
    result += segments.sums(problem, plan, result) if shown else []
    return [buffer for buffer in result if buffer.copies and buffer.size]


def in_turn(products: Sequence, tensors: int) -> list[tuple]:
    """Return (product, number of its tensor) in an order in which the tensors take turns.

    Each tensor has equally many neighbouring products. The last tensor has fewer if the number does not divide.
    """
    size = -(-len(products) // tensors)
    parts = [products[first : first + size] for first in range(0, len(products), size)]
    return [(part[index], number) for index in range(size) for number, part in enumerate(parts) if index < len(part)]


def _vector_operands(problem: KernelProblem, plan: BackwardPlan) -> list[Buffer]:
    """Return the operands of Vector in every step, in an order with different banks.

    They stand half a round of the banks apart, see hardware.HALF_ROUND, or 64 KiB.
    """
    copies = plan.copies
    largest = plan.area if copies == 1 else plan.pieces[0][1]
    area, half = padded(largest, 64), padded(largest, 128)
    raw = softcap.RAW if problem.call.rules.softcap > 0 else 0
    score = Buffer("score", "UB", "float32", area + 128 + raw, copies)
    probability = Buffer("probability_half", "UB", "float16", half, copies)
    if plan.pipeline.whole and plan.half < plan.area:  # the first half leaves while Vector works on the second one
        probability = Buffer("probability_half", "UB", "float16", padded(plan.half, 128), 2)
    # Copies begin a whole number of rounds apart.
    d_score = Buffer("d_score_half", "UB", "float16", half if plan.pipeline.single else half + 128 * copies, copies)
    # The room for keys that are to be scaled ends with a whole round, so that the tensors behind it keep their banks.
    keys = Buffer("key_stage", "UB", "float16", plan.keys * plan.head_dim + 4 * HALF_ROUND)
    # Sums stand half a round of the banks away from what is added to them.
    size = plan.rows * plan.head_dim * (1 + plan.vector_sums) + (2 * HALF_ROUND if plan.vector_sums else 0)
    if plan.pipeline.single:
        d_query = Buffer("d_query", "UB", "float32", size)
        factor = Buffer("d_probability_single", "UB", "float32", area, copies)
        return [score, d_query, keys, probability, factor, d_score]
    # If d_score is one tensor, this room makes scores begin with a round.
    room = HALF_ROUND if copies == 1 else 0
    d_query = Buffer("d_query", "UB", "float32", size + room)
    return [d_query, probability, keys, d_score, score]


def finish_buffers(problem: KernelProblem, plan: BackwardPlan, slots: int) -> list[Buffer]:
    """Return every on-chip buffer of the last pass. It adds `slots` accumulators of the query gradient."""
    whole = plan.rows * plan.head_dim
    result = [
        Buffer("total", "UB", "float32", whole + HALF_ROUND, FINISH_COPIES),
        Buffer("d_query", "UB", "float16", whole),
        *row_block.buffers(problem, FINISH_COPIES),
    ]
    if slots > 1:
        part = Buffer("part", "UB", "float32", whole)
        room = (problem.capacity["UB"] - usage(result)["UB"]) // part.bytes
        result.append(replace(part, copies=max(1, min(FINISH_PARTS, slots - 1, room))))
    return result
