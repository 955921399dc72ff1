"""Decoding problems for tests: caches that hold NaN if no sequence has a key, and the two kernels run on them."""

from __future__ import annotations

import numpy as np
from flash_attention.kernels.tik import operators
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.kernels.tik.signatures import DECODE_STAGES

from tests.train.flash_attention.support.arrays import random
from tests.train.flash_attention.support.calls import changed, make_kernel_problem
from tests.train.flash_attention.ut.tik.support import stored_arrays
from tests.train.flash_attention.ut.tik.support.shared_cases import check_closely

CAUSAL = {"causal": True, "causal_alignment": "bottom_right"}


def arrays(problem: KernelProblem, seed: int = 0) -> list:
    """Query, key and value of a contiguous cache."""
    call = problem.call
    shapes = call.shape_query(), call.shape_key(), call.shape_value()
    return [random(*shape, seed=seed + index, dtype=np.float16) for index, shape in enumerate(shapes)]


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
    """Hold sequences of random keys in a paged cache. Everything else in the cache is NaN, and unread entries of the
    table point nowhere.

    Attributes:
        problem: against as many keys as the table can name.
        query: (batch, heads, seq_q, head_dim).
        keys, values: by sequence, (kv_heads, length, head_dim).
        caches, pages: for `run`.
    """

    def __init__(self, lengths, block_size: int, heads: int, kv_heads: int, dim: int, seq_q: int = 1, **given):
        counts = [-(-length // block_size) for length in lengths]
        most = max(*counts, 1) + 1
        self.keys, self.values = (
            [
                random(kv_heads, length, dim, seed=7 * index + other, dtype=np.float16)
                for index, length in enumerate(lengths)
            ]
            for other in (1, 2)
        )
        order = list(np.random.default_rng(3).permutation(sum(counts) + 2))
        self.caches = [np.full((len(order), block_size, kv_heads, dim), np.nan, np.float16) for _ in range(2)]
        table = np.full((len(lengths), most), 1 << 30, np.int32)
        for sequence, count in enumerate(counts):
            for index in range(count):
                table[sequence, index] = block = order.pop()
                for cache, tokens in zip(self.caches, (self.keys, self.values)):
                    part = tokens[sequence][:, index * block_size : (index + 1) * block_size].swapaxes(0, 1)
                    cache[block, : len(part)] = part
        self.pages = table, np.array(lengths, np.int32)
        self.query = random(len(lengths), heads, seq_q, dim, seed=5, dtype=np.float16)
        self.problem = make_kernel_problem(
            len(lengths), heads, seq_q, most * block_size, dim, kv_heads=kv_heads, **{**CAUSAL, **given}
        )


def check(problem: KernelProblem, query, key, value, output, logsumexp, factor: float = 2.0) -> None:
    """Check as `check_closely` does, with the sinks of `run`, and a logsumexp of float32."""
    sinks = SINKS[: problem.call.heads] if problem.call.sinks else None
    check_closely(problem, (query, key, value), output, logsumexp, factor, 2e-6, sinks)
