"""Who computes what: the key tiles of all sequences and heads are one stream, of which every core takes an equal part.

The lengths are data, so the cores find their parts themselves (cursor.py): of `total` tiles a core takes those from
core * total // cores on, up to those of the next one. With fewer tiles than cores only the first cores have one: the
slots of a pair have no holes. A part that begins or ends inside a sequence leaves sums to be merged. Slots hold them:
one per core for a pair of sequence and row block that began on another core, then one per pair for the core that has
its first tile.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import numpy as np

from flash_attention.kernels.tik.decode import plan as tiling
from flash_attention.kernels.tik.hardware import Buffer, excess
from flash_attention.kernels.tik.plan import Choice
from flash_attention.kernels.tik.problem import KernelProblem

MOST_QUERIES = 16  # of a call
OUT_OF_REACH = 1 << 24  # keys before and after a query: more than there are, and exact in float32


@dataclass(frozen=True)
class DecodeSplit:
    """The work of both kernels.

    Attributes:
        slots: of sums, see the module.
        limits: see `VisibleKeys.table`.
        slope_rows: see `slope_rows`.
        columns: of the output, that are a unit of the merging kernel.
        merge_buffers: on-chip buffers of that kernel.
    """

    slots: int
    limits: np.ndarray
    slope_rows: np.ndarray
    columns: int
    merge_buffers: tuple[Buffer, ...]


DecodeChoice = Choice[tiling.DecodePlan, DecodeSplit]


@functools.lru_cache(maxsize=16)
def choose(problem: KernelProblem, paged: bool) -> DecodeChoice:
    """The plan and its buffers.

    Raises:
        ValueError: the problem asks for what the kernels do not have, or does not fit the memories of a core.
    """
    reason = refuse(problem, tiling.rows_at_once(problem))
    if reason:
        raise ValueError(f"decode: {reason}")
    plan = tiling.plan(problem)
    pairs = problem.batch * problem.kv_heads * plan.row_blocks * plan.row_groups
    columns = tiling.merge_columns(problem, pairs)
    main, merge = tiling.buffers(problem, plan, paged), tiling.merge_buffers(problem, columns, paged)
    for parts in (main, merge):
        if excess(parts, problem):
            raise ValueError(f"decode: needs {excess(parts, problem)}")
    limits, rows = VisibleKeys.of(problem, plan).table(plan), slope_rows(problem, plan)
    work = DecodeSplit(slots(problem, plan), limits, rows, columns, tuple(merge))
    return Choice(plan, work, tuple(main))


def refuse(problem: KernelProblem, most_queries: int = MOST_QUERIES) -> str | None:
    """Why the decoding kernels cannot compute a problem, or None; with more queries others are faster."""
    rules = problem.rules
    if problem.seq_q > most_queries:
        return f"got {problem.seq_q} queries, allowed are {most_queries}"
    for dim in (problem.head_dim, problem.value_dim):
        if dim % 16:
            return f"got head_dim {dim}, allowed are multiples of 16"
    for name, given in (
        ("a mask", problem.mask != "none"),
        ("a bias tensor", problem.bias_shape is not None),
        ("dropout", problem.dropout_threshold > 0),
        ("layout but BNSD", problem.layout != "BNSD"),
        ("block windows", rules.in_blocks),
    ):
        if given:
            return f"the decoding kernels have no {name.removeprefix('a ')}"
    if problem.cores > 255:
        return f"got {problem.cores} cores, allowed are 255"
    return None


@dataclass(frozen=True)
class VisibleKeys:
    """Keys that the rows of a row block see: row r those from p + before[r] to p + after[r], p = the first query's.

    Attributes:
        before, after: by row, relative to the position of query 0.
        seq_q: queries; row r is that of query r % seq_q.
    """

    before: tuple[int, ...]
    after: tuple[int, ...]
    seq_q: int

    @staticmethod
    def of(problem: KernelProblem, plan: tiling.DecodePlan) -> VisibleKeys:
        rules = problem.rules
        queries = [row % problem.seq_q for row in range(plan.group_heads * problem.seq_q)]
        ends = [0] if rules.causal else []
        ends += [rules.window_right] if rules.window_right >= 0 else []
        return VisibleKeys(
            tuple(query - rules.window_left if rules.window_left >= 0 else -OUT_OF_REACH for query in queries),
            tuple(query + min(ends) if ends else OUT_OF_REACH for query in queries),
            problem.seq_q,
        )

    @property
    def limits(self) -> tuple[int, int, int, int]:
        """Of the first key that a row sees, the least and the largest; of the last key, likewise."""
        return min(self.before), max(self.before), min(self.after), max(self.after)

    def table(self, plan: tiling.DecodePlan) -> np.ndarray:
        """float32 (groups of rows, 3, 64): after, before and query of 16 rows, four times over. Padding is as row 0."""
        rows = [row if row < len(self.after) else 0 for row in range(plan.rows)]
        queries = tuple(row % self.seq_q for row in range(len(self.after)))
        values = np.array([[column[row] for row in rows] for column in (self.after, self.before, queries)], np.float32)
        return np.tile(values.reshape(3, plan.row_groups, 16).transpose(1, 0, 2), (1, 1, 4))


def tiles_of(problem: KernelProblem, plan: tiling.DecodePlan, length: int) -> tuple[int, int, int]:
    """(position of query 0, first key tile, tiles) of a sequence of `length` keys."""
    least, _, _, most = VisibleKeys.of(problem, plan).limits
    base = length - problem.seq_q if problem.rules.causal_alignment == "bottom_right" else 0
    start, end = max(base + least, 0), min(base + most + 1, length)
    if end <= start:
        return base, 0, 0
    first = start // plan.keys
    return base, first, -(-end // plan.keys) - first


def slots(problem: KernelProblem, plan: tiling.DecodePlan) -> int:
    """Slots of sums, see the module."""
    return problem.cores + problem.batch * problem.kv_heads * plan.row_blocks


def head_rows(problem: KernelProblem, plan: tiling.DecodePlan) -> np.ndarray:
    """Query head of every row: int32 (pairs of a sequence, groups of rows, 64), 16 rows four times over.

    Rows of padding have the head of row 0.
    """
    rows = np.arange(plan.rows)
    heads = np.zeros((problem.kv_heads, plan.row_blocks, plan.rows), np.int32)
    for block in range(plan.row_blocks):
        inside = rows // problem.seq_q + block * plan.group_heads
        real = (rows < plan.group_heads * problem.seq_q) & (inside < problem.group)
        heads[:, block] = np.where(real, inside, block * plan.group_heads)
    heads += np.arange(problem.kv_heads, dtype=np.int32)[:, None, None] * problem.group
    return np.tile(heads.reshape(-1, plan.row_groups, 16), (1, 1, 4))


def slope_rows(problem: KernelProblem, plan: tiling.DecodePlan) -> np.ndarray:
    """Number of the slope of every row, like `head_rows`: those of all sequences where each has its own."""
    rows = head_rows(problem, plan)
    if not problem.slope_stride:
        return rows
    return np.concatenate([rows + item * problem.slope_stride for item in range(problem.batch)])
