"""Host side of the decoding kernels: block tables and lengths as stored, and the logsumexp back. NumPy only."""

from __future__ import annotations

import numpy as np

from flash_attention.kernels.tik.decode import work
from flash_attention.kernels.tik.decode.plan import DecodePlan
from flash_attention.kernels.tik.problem import KernelProblem, padded


def page_inputs(block_tables, context_lens) -> dict[str, np.ndarray]:
    """Stored arrays of a paged cache: (batch, most) and (batch,), int32, flat and padded to whole blocks of memory."""
    given = {"block_tables": block_tables, "context_lens": context_lens}
    return {name: _padded(np.asarray(array, np.int32).reshape(-1)) for name, array in given.items()}


def sink_rows(problem: KernelProblem, plan: DecodePlan, sinks) -> np.ndarray:
    """Sinks (heads,) as the merging kernel takes them: one per row."""
    return np.asarray(sinks, np.float32)[work.head_rows(problem, plan)]


def logsumexp(problem: KernelProblem, plan: DecodePlan, stored: np.ndarray) -> np.ndarray:
    """(batch, heads, seq_q) from what the merging kernel stores: a row block a row, padded."""
    blocks = stored.reshape(problem.batch, problem.kv_heads, plan.row_blocks, plan.rows)
    rows = blocks[..., : plan.group_heads * problem.seq_q].reshape(problem.batch, problem.kv_heads, -1)
    rows = rows[..., : problem.group * problem.seq_q]
    return np.ascontiguousarray(rows.reshape(problem.batch, problem.heads, problem.seq_q))


def _padded(array: np.ndarray) -> np.ndarray:
    return np.concatenate([array, np.zeros(padded(len(array), 8) - len(array), array.dtype)])
