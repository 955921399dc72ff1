"""Decoding problems for tests: caches that hold NaN if no sequence has a key, and the two kernels run on them."""

from __future__ import annotations

import numpy as np
from flash_attention.kernels.tik import operators
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.signatures import DECODE_STAGES

from tests.train.flash_attention.support.arrays import pages, random
from tests.train.flash_attention.support.calls import changed, make_kernel_problem
from tests.train.flash_attention.ut.tik.support import stored_arrays
from tests.train.flash_attention.ut.tik.support.shared_cases import check_closely

CAUSAL = {"causal": True, "causal_alignment": "bottom_right"}


SINKS = np.array([3.0, -2.0, 0.5, 60000.0, 7.0, -60000.0, 0.0, 1.0], np.float32)


def run(tik, execute, problem: KernelProblem, query, key, value, pages=None, saturates=False) -> tuple:
    """Run both kernels and return (output, logsumexp, plan). `pages` are block tables and lengths, key and value
    then caches.
    """
    problem = changed(problem, pages=None if pages is None else key.shape[:2])
    main, merge = (operators.build(stage, problem, tik, stage, True) for stage in DECODE_STAGES)
    more = {} if pages is None else stored_arrays.page_inputs(*pages)
    sums = execute(main.tik, main.feed(query=query, key=key, value=value, **more), ["sums", "statistics"], saturates)
    sinks = (
        {"row_sinks": stored_arrays.sink_rows(problem, main.plan, SINKS[: query.shape[1]])}
        if problem.call.sinks
        else {}
    )
    lengths = {name: array for name, array in more.items() if name == "context_lens"}
    stored = execute(merge.tik, merge.feed(**sums, **lengths, **sinks), ["output", "logsumexp"], saturates)
    return stored["output"], stored_arrays.decode_logsumexp(problem, main.plan, stored["logsumexp"]), main.plan


class Paged:
    """Hold sequences of random keys in a paged cache, as `pages` makes it.

    Attributes:
        problem: against as many keys as the table can name.
        query: (batch, heads, seq_q, head_dim).
        keys, values: by sequence, (kv_heads, length, head_dim).
        caches, pages: for `run`.
    """

    def __init__(self, lengths, block_size: int, heads: int, kv_heads: int, dim: int, seq_q: int = 1, **given):
        keys, values, *self.caches, table = pages(lengths, block_size, kv_heads, dim, dim, np.float16)
        self.keys, self.values = ([one.swapaxes(0, 1) for one in side] for side in (keys, values))
        self.pages = table, np.array(lengths, np.int32)
        self.query = random(len(lengths), heads, seq_q, dim, seed=5, dtype=np.float16)
        sizes = len(lengths), heads, seq_q, table.shape[1] * block_size, dim
        self.problem = make_kernel_problem(*sizes, kv_heads=kv_heads, **{**CAUSAL, **given})


def check(problem: KernelProblem, query, key, value, output, logsumexp, factor: float = 2.0) -> None:
    """Check as `check_closely` does, with the sinks of `run`, and a logsumexp of float32."""
    sinks = SINKS[: problem.call.heads] if problem.call.sinks else None
    check_closely(problem, (query, key, value), output, logsumexp, factor, 2e-6, sinks)
