"""Tiling strategies by name, and the bytes of each buffer."""

from __future__ import annotations

from dataclasses import dataclass, replace

from flash_attention.kernels.tik import instruction_forms
from flash_attention.kernels.tik.common import kept_tiles, segments, softcap, tile_lists
from flash_attention.kernels.tik.common.score_terms import TERMS, is_dynamic
from flash_attention.kernels.tik.common.table_row import ITEMS_PER_CHUNK
from flash_attention.kernels.tik.common.work_split import TableOfWork
from flash_attention.kernels.tik.forward import score_bound
from flash_attention.kernels.tik.hardware import (
    BYTES,
    FRACTAL,
    HALF_LANES,
    HALF_ROUND,
    LANES,
    LAYER,
    WIDENED,
    Buffer,
    usage,
)
from flash_attention.kernels.tik.layout import BLOCK, SINK_LANES
from flash_attention.kernels.tik.problem import KernelProblem, padded

# Buffers with one number per row of a row block, float32 and float16.
ROW_NUMBERS = ("least_total", "largest_half", "ones", "kept_scale", "compact_total", "seen")
SINK_ROWS = ("sink", "sink_share", "largest_sink")
ROW_HALVES = ("zeros", "half_ones", "least_reference", "term", "half_total", "largest_total")
MOST_HALF = 208  # largest head_dim, the mean of query and value, at which Vector may be the limit
WIDE = 128  # largest head_dim, the mean of query and value, at which the memory is not the limit
LONG = 512  # keys from which on a float16 post-scale is good enough
PRECISE_ROWS = 32  # with so few rows Vector has the time for a precise logsumexp
LOW_CAP = 2.0  # soft caps up to this ask for one
RING = 3  # tiles of key, value and probability in L1; the unrolled loop body covers as many tiles


@dataclass(frozen=True)
class Strategy:
    """A named tile shape.

    Attributes:
        rows: queries per row block.
        row_blocks: row blocks that share the key and value tiles of one work item.
        keys: keys per tile.
        segment: keys per matrix instruction.
        scattered: only for scattered tiles of 64, see common.tile_lists, unless it is asked for by name.
    """

    name: str
    rows: int
    row_blocks: int
    keys: int
    segment: int
    scattered: bool = False


STRATEGIES = {
    s.name: s
    for s in (
        Strategy("pair64keys64", 64, 2, 64, 64, scattered=True),
        Strategy("pair128", 128, 2, 128, 64),
        Strategy("pair112", 112, 2, 128, 32),
        Strategy("pair96", 96, 2, 128, 32),
        Strategy("single128", 128, 1, 128, 64),
        Strategy("single112", 112, 1, 128, 32),
        Strategy("single96", 96, 1, 128, 32),
        Strategy("pair64", 64, 2, 128, 32),
        Strategy("single64", 64, 1, 128, 32),
        Strategy("single32", 32, 1, 64, 32),
    )
}


@dataclass(frozen=True)
class ForwardPlan:
    """A strategy cut down to the lengths of a problem.

    Attributes:
        rows, keys: of a tile, multiples of 16.
        row_blocks: per work item, 1 or 2.
        segments: widths in keys of the matrix instructions of one tile.
        score_slots: segments of scores that fit in L0C at a time.
        head_dim, value_dim: padded to 16.
        half_scores: scores leave L0C as float16, which spares Vector the conversion. The row reference is subtracted
            before they are rounded, so that this costs less precision than scores in float16 do.
        precise_total: the logsumexp takes unrounded probabilities. With few rows Vector has the time for it; with
            a low soft cap many keys share a probability, and rounding moves all of them the same way.
        memory_bound: the memory is the limit, or nearly so.
        shared_sample: two neighbouring row blocks take their references from the same keys, see schedule._sample, or
            under a block mask from the first tiles of their list. Spares the memory.
        long_pieces: Vector works on halves of a tile, with instructions as long as a half, in tensors beside the
            probabilities. Otherwise it works on 32 keys at a time, in the tensors of the probabilities.
        streams: tiles of key and value that a work item visits at a time: one of each row block under a block mask.
            Otherwise row blocks visit the same tile.
        held: tiles of keys and values that the ring has room for, see common.kept_tiles.
    """

    strategy: str
    rows: int
    keys: int
    row_blocks: int
    segments: tuple[int, ...]
    score_slots: int
    head_dim: int
    value_dim: int
    half_scores: bool
    precise_total: bool
    memory_bound: bool
    shared_sample: bool
    long_pieces: bool
    streams: int = 1
    held: int = RING

    @property
    def ways(self) -> int:
        """Return the most tiles of a slot of the ring."""
        return -(-self.held // RING)

    @property
    def samples(self) -> int:
        """Return samples of keys of a work item."""
        return 1 if self.shared_sample else self.row_blocks

    @property
    def near_segments(self) -> int:
        """Return segments of a spread sample that are in the first key tile. It comes on chip anyway."""
        return len(self.segments) // 2 if self.shared_sample else 0

    @property
    def columns(self) -> int:
        """Return fractal columns of a score tile."""
        return self.keys // 16

    @property
    def pieces(self) -> tuple[tuple[int, int], ...]:
        """Return (first column, columns) of each piece of a tile. Vector works on them in turn."""
        size = -(-self.columns // 2) if self.long_pieces else 2
        if self.long_pieces:
            return tuple((first, min(size, self.columns - first)) for first in range(0, self.columns, size))
        result: list[tuple[int, int]] = []
        for index, width in enumerate(self.segments):
            start, columns = self.segment_start(index) // 16, width // 16
            result += [(start + first, min(size, columns - first)) for first in range(0, columns, size)]
        return tuple(result)

    def by_segment(self, column: int, columns: int) -> list[tuple[int, int, int]]:
        """Return (segment, first column in it, columns) of the parts of a piece: L0C has a tensor per segment."""
        result = []
        for index, width in enumerate(self.segments):
            start = self.segment_start(index) // 16
            first, end = max(column, start), min(column + columns, start + width // 16)
            if first < end:
                result.append((index, first - start, end - first))
        return result

    @property
    def staging_slots(self) -> int:
        """Return pairs of output columns at the end of a row block."""
        if self.long_pieces:
            return min(3, -(-self.value_dim // 32))
        slots = max(1, self.columns // 2)
        return min(2 if self.memory_bound else 3, slots) if self.half_scores and self.value_dim > 64 else slots

    @property
    def staging_slot(self) -> int:
        """Return float32 elements of such a slot: a pair, and room for operands that stand apart."""
        return self.rows * 32 + 2 * HALF_ROUND

    def segment_start(self, index: int) -> int:
        """Return the first key of a segment inside its tile."""
        return sum(self.segments[:index])


def cut(strategy: Strategy, problem: KernelProblem) -> ForwardPlan:
    """Return the strategy with its tiles cut to lengths that are shorter than a tile.

    With packed sequences the mean length counts, and the rows divide a block of stored rows.
    """
    call = problem.call
    rows, length = min(strategy.rows, padded(call.seq_q)), call.seq_q
    if problem.sequences:
        length = -(-call.seq_q // problem.sequences)
        rows = min(strategy.rows, next(size for size in (16, 32, 64, 128) if size >= min(length, 128)))
    keys = min(strategy.keys, padded(call.seq_k))
    memory_bound = _is_memory_bound(problem)
    segment = min(strategy.segment, 32) if memory_bound else strategy.segment
    full, rest = divmod(keys, segment)
    segments = (segment,) * full + ((rest,) if rest else ())
    row_blocks = strategy.row_blocks if padded(length) > rows else 1
    # Segments are numbered through the loop body (RING tiles of every row block). The slots must divide their number.
    per_body = RING * row_blocks * len(segments)
    wanted = {1: 3, 2: 3, 4: 4}.get(len(segments), 2 * len(segments))
    slots = next(n for n in range(wanted, 0, -1) if per_body % n == 0)
    # Reasons for float32 scores: Vector adds a bias per score and distances in float32. A bias per key can lift scores
    # far above a sample. Short rows show the rounding of the post-scale. Large head_dims leave Vector the time.
    plain = call.bias == "none" or (call.bias == "alibi" and call.rules.causal)
    plain = plain and not call.rules.softcap
    long = problem.post_scale in (1.0, 4.0, 16.0) or call.seq_k >= LONG * max(1, problem.sequences)
    half_scores = plain and long and rows > PRECISE_ROWS
    half_scores = half_scores and call.head_dim + call.value_dim <= 2 * MOST_HALF
    precise = rows <= PRECISE_ROWS or 0 < call.rules.softcap <= LOW_CAP
    widths = padded(call.head_dim), padded(call.value_dim)
    # Every query that sees a key sees the first one, and neither bias nor mask says which keys matter.
    plain = not problem.sequences and call.bias == "none" and problem.mask != "per_score"
    shared = problem.listed or (memory_bound and plain and call.band.keys(call.seq_q - 1)[0] == 0)
    # Explicit masks and dropout take passes of their own, over short pieces. One fractal column has no halves.
    long_pieces = (
        half_scores and segment > 32 and keys > 16 and problem.mask != "per_score" and not call.dropout_threshold
    )
    shape = strategy.name, rows, keys, row_blocks, segments, slots, *widths
    return ForwardPlan(*shape, half_scores, precise, memory_bound, shared, long_pieces)


def _is_memory_bound(problem: KernelProblem) -> bool:
    """Return if the memory would be the limit with 128 queries per item."""
    return problem.call.head_dim + problem.call.value_dim > 2 * WIDE


def buffers(problem: KernelProblem, plan: ForwardPlan, work: TableOfWork) -> list[Buffer]:
    """Return every on-chip buffer of the forward kernel, in the order of allocation."""
    call = problem.call
    tiles, distances = work.tiles.size, work.distances.size
    rows, keys, depth, value_dim = plan.rows, plan.keys, plan.head_dim, plan.value_dim
    width, area = max(plan.segments), plan.rows * plan.keys
    dynamic = is_dynamic(problem)
    computed, dropout = call.bias == "alibi", call.dropout_threshold > 0
    variants = 2 if distances else 1
    # Core.add_half
    added = call.bias == "per_score" or distances or call.rules.softcap
    widens = added and not plan.half_scores and not instruction_forms.current().mixed_axpy
    near = score_bound.is_needed(problem, plan.half_scores)
    norm = max(rows, keys) * depth if near else 0
    apart = 1 if problem.compares else 0
    result = [
        Buffer("query", "L1", "float16", rows * depth, 2 * plan.row_blocks),
        Buffer("query_terms", "L1", "float16", rows * TERMS, 2 * plan.row_blocks * variants),
        *kept_tiles.buffers("key", width * depth, plan.held, RING, len(plan.segments)),
        *kept_tiles.buffers("value", keys * value_dim, plan.held, RING),
        Buffer("probability", "L1", "float16", area, RING),
        Buffer("dropped", "L1", "float16", area, RING if dropout else 0),
        Buffer("low", "L1", "float16", area, RING if plan.precise_total else 0),
        Buffer("sample_key", "L1", "float16", width * depth, plan.samples * len(plan.segments)),
        Buffer("key_terms", "L1", "float16", keys * TERMS, RING * plan.streams + plan.samples if dynamic else 1),
        Buffer("segment_queries", "L1", "float16", rows * TERMS, 2 * plan.row_blocks * apart),
        Buffer("segment_keys", "L1", "float16", keys * TERMS, (RING * plan.streams + plan.samples) * apart),
        Buffer("fractals", "L1", "float16", FRACTAL),
        Buffer("tiles", "L1", "float16", tiles),
        Buffer("distances", "L1", "float16", distances),
        Buffer("norm_rows", "L1", "float16", norm, 2 + plan.row_blocks),
        Buffer("l0_query", "L0A", "float16", rows * depth),
        Buffer("l0_probability", "L0A", "float16", rows * width),
        Buffer("l0_query_terms", "L0A", "float16", rows * TERMS),
        Buffer("l0_segment_queries", "L0A", "float16", rows * TERMS, apart),
        Buffer("l0_norm_left", "L0A", "float16", norm),
        Buffer("l0_norm_right", "L0B", "float16", norm),
        Buffer("l0_key", "L0B", "float16", width * depth, 2),
        Buffer("l0_value", "L0B", "float16", width * value_dim),
        Buffer("l0_key_terms", "L0B", "float16", width * TERMS),
        Buffer("l0_ones", "L0B", "float16", width * 16),
        Buffer("l0_segment_keys", "L0B", "float16", keys * TERMS, apart),
        Buffer("output", "L0C", "float32", rows * value_dim, plan.row_blocks),
        Buffer("total", "L0C", "float32", rows * 16, plan.row_blocks),
        Buffer("low_total", "L0C", "float32", rows * 16, plan.row_blocks if plan.precise_total else 0),
        Buffer("scores", "L0C", "float32", rows * width, plan.score_slots),
        Buffer("squares", "L0C", "float32", score_bound.SQUARES if near else 0, 2),
        *_score_buffers(problem, plan, near),
        Buffer("stage", "UB", "float16", rows * max(depth, value_dim) + 128, plan.row_blocks),
        Buffer("row_total", "UB", "float32", 2048),
        Buffer("scratch", "UB", "float32", 2048),
        # Limits stand half a round of the banks off the scores, see softmax.Piece.
        Buffer("inverse", "UB", "float32", 2048 + HALF_ROUND),
        Buffer("visible", "UB", "float16", area + 4 * HALF_ROUND * segments.rows(problem) if tiles else 0),
        Buffer("visible_part", "UB", "float16", HALF_LANES if problem.sequences else 0),
        Buffer("hidden", "UB", "float16", area, 1 if problem.mask == "per_score" else 0),
        Buffer("nothing", "UB", "float16", 128, segments.rows(problem)),
        Buffer("bias", "UB", "float16", area, 1 if call.bias == "per_score" else 0),
        Buffer("distance", "UB", "float16", area, 1 if distances else 0),
        Buffer("keep", "UB", "uint8", rows * keys // 8, 2 if dropout else 0),
        Buffer("widened", "UB", "float32", WIDENED if widens else 0),
        *softcap.buffers(problem, rows, keys, width, plan.score_slots),
        *(Buffer(name, "UB", "float32", 128) for name in ROW_NUMBERS),
        # Numbers of all row blocks.
        *(Buffer(name, "UB", "float32", 128 * plan.row_blocks) for name in ("next_reference", "current_reference")),
        Buffer("reference_part", "UB", "float32", 128),
        *(Buffer(name, "UB", "float32", 128 if computed else 0) for name in ("slope_value", "slope_part")),
        Buffer("row_lse", "UB", "float32", 128, plan.row_blocks),
        *(Buffer(name, "UB", "float32", SINK_LANES if call.sinks else 0) for name in SINK_ROWS),
        *(Buffer(name, "UB", "float16", 128) for name in ROW_HALVES),
        *(
            Buffer(name, "UB", "float16", 128 * plan.row_blocks)
            for name in ("tile_max", "coarseness", "negated_reference")
        ),
        Buffer("negated_term", "UB", "float16", 128 if distances else 0),
        Buffer("row_numbers", "UB", "float32", 128 if computed else 0),
        Buffer("table", "UB", "int32", ITEMS_PER_CHUNK * work.words.shape[-1]),
        Buffer("lists", "UB", "int32", plan.streams * tile_lists.length(problem, plan) if problem.listed else 0, 2),
        Buffer("flags", "UB", "int32", ITEMS_PER_CHUNK * 16),
        Buffer("flag", "UB", "int32", 8, plan.row_blocks),
        *(Buffer(name, "UB", "float32", LANES if near else 0) for name in ("query_norm", "key_norm")),
        Buffer("lift", "UB", "float16", 128 if near else 0),
        Buffer("score_bound", "UB", "int32", 8 if near else 0, 2),
    ]
    result += segments.sums(problem, plan, result)
    return [buffer for buffer in result if buffer.copies and buffer.size]


def _score_buffers(problem: KernelProblem, plan: ForwardPlan, near: bool) -> list[Buffer]:
    """Return the buffers in which Vector turns scores into probabilities. Their order gives different banks.

    Each piece has a tensor. So Vector goes on while a piece leaves, whatever the synchronisation knows of addresses.
    Operands of an instruction stand half a round of the banks apart (hardware.HALF_ROUND), and tensors have room for
    it.

    Args:
        near: see score_bound.is_needed.
    """
    area, pieces = plan.rows * plan.keys, len(plan.pieces)
    piece = max(columns for _, columns in plan.pieces) * plan.rows * 16
    measured = 2 * score_bound.SQUARES if near else 0
    floor, ceiling = Buffer("floor", "UB", "float16", piece), Buffer("ceiling", "UB", "float16", piece + 256)
    if plan.long_pieces:
        # A tensor per piece, and one more for the score bound that is measured meanwhile, or two for exponent limits.
        size = max(piece // 2 + 4 * HALF_ROUND, plan.staging_slot, measured)
        score = Buffer("score", "UB", "float32", size, pieces)
        result = [score, Buffer("probability_piece", "UB", "float16", piece, pieces)]
        if near:
            return [*result, replace(score, copies=1), ceiling, replace(floor, size=256)]
        # Limits stand in another layer of the banks than the scores, or each instruction takes twice as long.
        gap = max(0, LAYER - usage(result)["UB"]) // BYTES["float32"]
        return [*result, Buffer("gap", "UB", "float32", gap), replace(score, copies=2)]
    scores = max(area // 2 if plan.half_scores else area, plan.staging_slots * plan.staging_slot, measured)
    room = softcap.RAW if problem.call.rules.softcap else 0
    return [
        # First, so that they lie in another layer of the banks than the probabilities.
        *((floor, ceiling) if plan.half_scores else ()),
        Buffer("score", "UB", "float32", scores + padded(64 * (len(plan.segments) + 1), 128) + room),
        Buffer("probability_piece", "UB", "float16", piece + 512, pieces),
        Buffer("ceiling_row", "UB", "float32", 0 if plan.half_scores else 64),
        Buffer("low_piece", "UB", "float16", piece, pieces if plan.precise_total else 0),
    ]


def _takes_any_rows(problem: KernelProblem, strategy: Strategy) -> bool:
    """Return if row blocks may start anywhere in a key tile. That spares the memory loads.

    Packed sequences are stored in blocks of 128 rows. A bias, or a narrow window, needs a sample of keys at the
    positions of the queries. The sample is one tile. It shows every row something only if it has all positions of the
    row block; row blocks without such a sample would be computed twice.
    """
    call = problem.call
    if not _is_memory_bound(problem) or problem.sequences or call.bias != "none" or problem.listed:
        return False
    if -(-call.seq_q // (2 * strategy.rows)) >= -(-call.seq_q // strategy.keys):
        return False
    if call.band.keys(call.seq_q - 1)[0] == 0:
        return True
    start = call.seq_q // 2 // strategy.rows * strategy.rows
    low, high = call.band.common(start, min(start + strategy.rows, call.seq_q) - 1)
    return high - low >= strategy.keys + 32


def candidates(problem: KernelProblem) -> list[ForwardPlan]:
    """Return plans to try in order: the named strategy, or for "auto" all of them from the fastest on.

    Raises:
        ValueError: problem.tiling names no strategy, or one that packed sequences cannot have.
    """
    if problem.tiling == "auto":
        # Unrolled for two row blocks, dropout's selections exceed the instruction cache, and Vector gains little.
        alone = problem.call.dropout_threshold > 0 and (problem.call.head_dim <= 128 or problem.mask == "per_score")
        strategies = [s for s in STRATEGIES.values() if s.row_blocks == 1 or not alone]
        strategies = [s for s in strategies if problem.scattered or not s.scattered]
        names = [s.name for s in strategies if s.keys % s.rows == 0 or _takes_any_rows(problem, s)]
        return _listed(problem, [cut(STRATEGIES[name], problem) for name in names])
    if problem.tiling not in STRATEGIES:
        raise ValueError(f"tiling: got {problem.tiling!r}, allowed are auto, {', '.join(STRATEGIES)}")
    strategy = STRATEGIES[problem.tiling]
    if problem.sequences and BLOCK % strategy.rows:
        allowed = ", ".join(s.name for s in STRATEGIES.values() if BLOCK % s.rows == 0)
        raise ValueError(f"tiling: got {problem.tiling!r} with packed sequences, allowed are auto, {allowed}")
    return _listed(problem, [cut(strategy, problem)])


def _listed(problem: KernelProblem, plans: list[ForwardPlan]) -> list[ForwardPlan]:
    """Return the plans whose tiles a list can name."""
    if not problem.listed:
        return plans
    tiles = [-(-problem.call.seq_k // plan.keys) for plan in plans]
    return [
        replace(plan, streams=plan.row_blocks, held=RING * plan.row_blocks)
        for plan, count in zip(plans, tiles)
        if tile_lists.holds(count * 2 * plan.row_blocks) and tile_lists.fits(problem, plan)
    ]
