"""Sequences that are longer than a cache: for backends whose paged attention knows nothing of them."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.problem.paged import PagedProblem


class PagedEnd(nn.Cell):
    """Runs a paged problem with max_length through a cell for it without one.

    That cell puts the last query at the last key. Where the last n tokens of a sequence are not in the cache, its
    queries move on by n rows, so that each stands where it belongs, and their results move back.
    """

    def __init__(self, attention: nn.Cell, problem: PagedProblem):
        super().__init__()
        self.attention = attention
        whole = problem.whole
        self.several, self.last = whole.seq_q > 1, whole.seq_q - 1
        self.dtype = getattr(mstype, whole.dtype)
        # Compiled graphs have operations in every dtype but bfloat16.
        self.moved_dtype = mstype.float32 if whole.dtype == "bfloat16" else self.dtype
        self.max_length = Tensor(np.array([[problem.max_length]], np.int32))
        self.zero = Tensor(np.zeros((1, 1), np.int32))
        self.rows = Tensor(np.arange(whole.seq_q, dtype=np.int32).reshape(1, -1))
        self.firsts = Tensor(np.arange(whole.batch, dtype=np.int32).reshape(-1, 1) * whole.seq_q)
        self.of_lost = (whole.batch, 1, 1) if problem.one_query else (whole.batch, whole.seq_q, 1, 1)

    def construct(self, query, key_cache, value_cache, block_tables, context_lens, inputs):
        lengths = ops.expand_dims(context_lens, 1)
        past = ops.maximum(lengths - self.max_length, self.zero)
        kept = ops.reshape(lengths - past, (-1,))
        if self.several:
            query = ops.cast(self.moved(query, ops.maximum(self.rows - past, self.zero)), self.dtype)
        output = self.attention(query, key_cache, value_cache, block_tables, kept, inputs)
        if self.several:
            output = self.moved(output, ops.minimum(self.rows + past, self.zero + self.last))
        lost = ops.reshape(self.rows + past > self.last, self.of_lost)
        return ops.cast(ops.masked_fill(ops.cast(output, self.moved_dtype), lost, float("nan")), self.dtype)

    def moved(self, tensor, rows):
        """For each sequence its rows in the order of `rows`."""
        flat = ops.reshape(ops.cast(tensor, self.moved_dtype), (-1,) + tensor.shape[2:])
        return ops.reshape(ops.gather(flat, ops.reshape(self.firsts + rows, (-1,)), 0), tensor.shape)
