"""Sequences longer than a cache, and queries beside padding, for paged attention that knows neither."""

from __future__ import annotations

from dataclasses import replace
from typing import Callable

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.composed.positional import counted
from flash_attention.call import Call


def with_end(build: Callable[[Call], nn.Cell], call: Call, takes_max_length: bool = False) -> nn.Cell:
    """Return the Cell of a paged call. `build` makes cells that know no padding, and max_length if it takes it."""
    pages = call.paged
    if not pages.padding and (pages.max_length is None or takes_max_length):
        return build(call)
    return PagedEnd(build(replace(call, storage=replace(pages, max_length=None, padding=None))), call)


class PagedEnd(nn.Cell):
    """Run a paged call with max_length or padding through a cell without them.

    That cell puts the last query at the last key. The last n tokens of a sequence may not be in the cache, or its last
    n queries may be padding. Its queries then move on by n rows. Each stands where it belongs, and the results move
    back. With padding, the lengths come in a tuple with the numbers of padding queries.
    """

    def __init__(self, attention: nn.Cell, call: Call):
        super().__init__()
        self.attention = attention
        self.several, self.seq_q = call.seq_q != 1, call.seq_q
        self.dtype = getattr(mstype, call.dtype)
        # Compiled graphs have operations in every dtype but bfloat16.
        self.moved_dtype = mstype.float32 if call.dtype == "bfloat16" else self.dtype
        self.padding = call.paged.padding
        self.most = call.paged.max_length
        if call.paged.max_length is not None:
            self.max_length = Tensor(np.array([[call.paged.max_length]], np.int32))
        self.zero = Tensor(np.zeros((1, 1), np.int32))
        self.dynamic = call.dynamic
        if not call.dynamic:
            self.rows = Tensor(np.arange(call.seq_q, dtype=np.int32).reshape(1, -1))
            self.firsts = Tensor(np.arange(call.batch, dtype=np.int32).reshape(-1, 1) * call.seq_q)

    def construct(self, query, key_cache, value_cache, block_tables, context_lens, inputs):
        # All variables have a value from the start, see flash_attention.bridge.
        if self.dynamic:
            seq_q = query.shape[1]
            rows = ops.reshape(counted(seq_q), (1, -1))
            firsts = ops.reshape(counted(query.shape[0]), (-1, 1)) * seq_q
        else:
            seq_q, rows, firsts = self.seq_q, self.rows, self.firsts
        lengths, tokens, outside = context_lens, self.zero, rows < self.zero
        if self.padding is not None:
            lengths, tokens = context_lens
            tokens = ops.minimum(ops.maximum(ops.expand_dims(tokens, 1), self.zero), self.zero + seq_q)
        lengths = ops.expand_dims(lengths, 1)
        past = self.zero * lengths
        if self.most is not None:
            past = ops.maximum(lengths - self.max_length, self.zero)
        kept = ops.reshape(lengths - past, (-1,))
        shift = past
        if self.padding == "right":
            shift = past + (seq_q - tokens)
        if self.padding is not None:
            outside = by_row(rows >= tokens if self.padding == "right" else rows < seq_q - tokens)
            # Padding may hold anything, for instance NaN if a rotary embedding has no such position.
            query = ops.cast(ops.masked_fill(ops.cast(query, self.moved_dtype), outside, 0.0), self.dtype)
        if self.several:
            query = ops.cast(self.moved(query, firsts + ops.maximum(rows - shift, self.zero)), self.dtype)
        output = self.attention(query, key_cache, value_cache, block_tables, kept, inputs)
        last = seq_q - 1
        if self.several:
            output = self.moved(output, firsts + ops.minimum(rows + shift, self.zero + last))
        output = ops.cast(output, self.moved_dtype)
        if self.most is not None:
            output = ops.masked_fill(output, by_row(rows + shift > last), float("nan"))
        if self.padding is not None:
            output = ops.masked_fill(output, outside, 0.0)
        return ops.cast(output, self.dtype)

    def moved(self, tensor, rows):
        """Return each sequence's rows in the order of `rows`."""
        flat = ops.reshape(ops.cast(tensor, self.moved_dtype), (-1,) + tensor.shape[2:])
        return ops.reshape(ops.gather(flat, ops.reshape(rows, (-1,)), 0), tensor.shape)


def by_row(condition):
    """Extend a condition from (batch, seq_q) to (batch, seq_q, heads, width)."""
    return ops.expand_dims(ops.expand_dims(condition, 2), 3)
