"""Tile shapes of the decoding kernels, and the bytes of their buffers."""

from __future__ import annotations

from dataclasses import dataclass

from flash_attention.kernels.tik.hardware import LANES, Buffer
from flash_attention.kernels.tik.problem import KernelProblem, padded

OPERAND = 16384  # float16 elements of half of L0A, and of L0B
SCORES = 8192  # float32 scores of a tile in the Unified Buffer
MOST_KEYS = 512  # of a tile
WINDOW = 1024  # entries of a block table that are on chip at a time
HIDDEN_KEYS = 128  # keys that are hidden at a time
PIECE = 4096  # float32 elements of the output that leave L0C at a time

# Fits to tikemu's timing model, in cycles. MEMORY_RATE is the bytes of keys and values that each of 32 cores gets per
# cycle. LATENCY and WORK are the work of a tile on Cube and Vector. The memory stays busy if MARGIN times that work is
# less than its own time. PER_TILE is a tile's other costs.
MEMORY_RATE = 36.0
LATENCY, WORK, WORK_OF_MANY_ROWS = 450.0, 4.5, 8.0  # work per key and 16 rows
MARGIN = 1.3
PER_TILE = 60.0


@dataclass(frozen=True)
class DecodePlan:
    """Tiles of a decoding problem. All query heads of a group, times the queries, are the rows of one matrix.

    Attributes:
        group_heads: query heads of a row block.
        row_blocks: row blocks of a key/value head.
        rows: rows of a row block, padded to 16.
        segment: keys per matrix instruction and per move from global memory.
        keys: keys of a tile, one or two segments.
        ring: staging buffers.
        head_dim: columns of queries and keys.
        value_dim: columns of values.
    """

    group_heads: int
    row_blocks: int
    rows: int
    segment: int
    keys: int
    ring: int
    head_dim: int
    value_dim: int
    strategy: str = "decode"

    @property
    def row_groups(self) -> int:
        """Return groups of 16 rows."""
        return self.rows // 16

    @property
    def segments(self) -> int:
        """Return matrix instructions per tile."""
        return self.keys // self.segment


def rows_at_once(problem: KernelProblem) -> int:
    """Return most rows of a row block, and so most queries of a kernel."""
    return min(128, OPERAND // max(problem.call.head_dim, problem.call.value_dim) // 16 * 16)


def plan(problem: KernelProblem) -> DecodePlan:
    """Return the plan that takes the least time by the memory's rate: large tiles, but enough of them for all cores."""
    call = problem.call
    dim, most_rows = max(call.head_dim, call.value_dim), rows_at_once(problem)
    row_blocks = -(-call.group // max(1, min(call.group, most_rows // call.seq_q)))
    group_heads = -(-call.group // row_blocks)
    rows = padded(group_heads * call.seq_q)
    pairs = call.batch * call.kv_heads * row_blocks
    largest = min(OPERAND // dim, SCORES // rows, 256, padded(call.seq_k)) // 16 * 16
    choices = []
    for segment in sorted({largest, largest // 2, largest // 4, 64, 32, 16}):
        if segment % 16 or not 0 < segment <= largest:
            continue
        for segments in (1, 2) if rows == 16 else (1,):
            keys = segment * segments
            if keys <= MOST_KEYS and keys - segment < call.seq_k:
                most = -(-pairs * -(-call.seq_k // keys) // problem.cores)
                choices.append((_cycles(most, keys, rows, call.head_dim + call.value_dim), -keys, segment))
    _, keys, segment = min(choices)
    ring = 4 if rows == 16 else 2
    return DecodePlan(group_heads, row_blocks, rows, segment, -keys, ring, call.head_dim, call.value_dim)


def _cycles(tiles: int, keys: int, rows: int, width: int) -> float:
    """Return the estimated time of a core: its tiles, and if there are several also the first load or the last work."""
    memory = 2 * keys * width / MEMORY_RATE
    work = LATENCY + (WORK if rows == 16 else WORK_OF_MANY_ROWS) * keys * rows / 16
    return tiles * (max(memory, MARGIN * work) + PER_TILE) + (0.6 * memory if tiles > 1 else 0.0)


def buffers(problem: KernelProblem, plan: DecodePlan) -> list[Buffer]:
    """Return every on-chip buffer of the main kernel, in the order of allocation."""
    rows, dim, keys, segment = plan.rows, plan.head_dim, plan.keys, plan.segment
    area, square, product = keys * rows, rows * dim, rows * plan.value_dim
    slopes = LANES * plan.row_groups
    alibi = [Buffer("next_slopes", "UB", "float32", slopes, 2), Buffer("slopes", "UB", "float32", slopes)]
    return [
        Buffer("query", "L1", "float16", square, 2),
        Buffer("key", "L1", "float16", segment * dim, 2 * plan.segments),
        Buffer("value", "L1", "float16", segment * plan.value_dim, 2 * plan.segments),
        Buffer("probability", "L1", "float16", segment * rows, 2 * plan.segments),
        Buffer("l0_key", "L0A", "float16", segment * dim),
        Buffer("l0_value", "L0A", "float16", segment * plan.value_dim),
        Buffer("l0_query", "L0B", "float16", square),
        Buffer("l0_probability", "L0B", "float16", segment * rows),
        Buffer("scores", "L0C", "float32", segment * rows, plan.segments),
        Buffer("product", "L0C", "float32", product),
        Buffer("stage", "UB", "float16", segment * max(dim, plan.value_dim), plan.ring),
        Buffer("query_stage", "UB", "float16", square),
        Buffer("score", "UB", "float32", area),
        Buffer("folded", "UB", "float32", max(area // 2, LANES * plan.row_groups)),
        Buffer("half", "UB", "float16", area),
        Buffer("sum", "UB", "float32", product),
        Buffer("piece", "UB", "float32", min(product, PIECE)),
        Buffer("key_number", "UB", "float32", min(keys, HIDDEN_KEYS) * 16),
        Buffer("hiding", "UB", "float32", min(keys, HIDDEN_KEYS) * 16),
        # Each group of 16 rows has its values four times over, so that one repeat of 64 numbers serves four keys.
        Buffer("statistics", "UB", "float32", 2 * LANES * plan.row_groups),
        Buffer("limits", "UB", "float32", 3 * LANES * plan.row_groups),
        *(Buffer(name, "UB", "float32", LANES * plan.row_groups) for name in ("peak", "factor", "bound")),
        Buffer("wheel", "UB", "float32", 2 * LANES * plan.row_groups, 2),
        Buffer("zeros", "UB", "float32", LANES),
        *([Buffer("cap", "UB", "float32", 2 * LANES)] if problem.call.rules.softcap else []),
        *(alibi if problem.call.rules.alibi else []),
        *_lengths(problem),
        *([Buffer("table", "UB", "int32", WINDOW)] if problem.pages else []),
    ]


MERGED = 4  # units that the merging kernel works on at a time


def merge_buffers(problem: KernelProblem, columns: int) -> list[Buffer]:
    """Return the buffers of the merging kernel. `columns` of the output are a unit of its work."""
    size, slots = columns * 16, problem.cores + problem.call.sinks
    rows = ("peak", "total", "seen", "inverse", "unseen", "row_lse")
    return [
        *_lengths(problem),
        Buffer("statistics", "UB", "float32", slots * 2 * LANES, MERGED),
        Buffer("weight", "UB", "float32", slots * LANES, MERGED),
        Buffer("part", "UB", "float32", size, MERGED),
        Buffer("more", "UB", "float32", size, 2),
        Buffer("sum", "UB", "float32", size, MERGED),
        Buffer("half", "UB", "float16", size, MERGED),
        Buffer("rows", "UB", "float16", size, MERGED),
        *(Buffer(name, "UB", "float32", LANES, MERGED) for name in rows),
        Buffer("ones", "UB", "float32", LANES),
    ]


def _lengths(problem: KernelProblem) -> list[Buffer]:
    return [Buffer("lengths", "UB", "int32", padded(problem.call.batch, 8))] if problem.pages else []
