"""Gather a paged cache into one tensor: what `paged_attention` means, for backends that have nothing better."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.base import Backend
from flash_attention.backends.composed.positional import alibi_bias, hidden_by_window
from flash_attention.call import Call, alibi_slopes
from flash_attention.call.paged import gathered_call


class PagedGather(nn.Cell):
    """Run the call through the backend's cell for BNSD in a dtype. A mask hides keys past the end of a sequence.

    bfloat16 goes through float32, whose operations compiled graphs have on every device.
    """

    def __init__(self, backend: Backend, call: Call, dtype: str):
        super().__init__()
        self.dtype, self.inner = getattr(mstype, call.dtype), getattr(mstype, dtype)
        self.moved = mstype.float32 if call.dtype == "bfloat16" else self.dtype
        self.query_shape = call.batch, call.seq_q, call.heads, call.head_dim
        self.output_shape = call.laid_out(call.shape_output())
        self.causal, self.left, self.right = call.rules.causal, call.rules.window_left, call.rules.window_right
        self.left_padding, self.return_lse = call.paged.left_padding, call.return_lse
        self.rows = Tensor(np.arange(-call.seq_q, 0, dtype=np.int32).reshape(1, 1, -1, 1))
        self.columns = Tensor(np.arange(call.seq_k, dtype=np.int32).reshape(1, 1, 1, -1))
        self.first_block, self.last_block = (Tensor([block], mstype.int32) for block in (0, call.paged.blocks - 1))
        self.own_slopes = None
        self.heads, self.slopes, self.sinks = call.heads, call.place("alibi_slopes"), call.place("sinks")
        if call.bias == "alibi":
            self.own_slopes = Tensor(np.array(alibi_slopes(call), np.float32))
        self.attention = backend.build(gathered_call(call, dtype))

    def construct(self, query, key_cache, value_cache, block_tables, context_lens, inputs):
        lengths, first_keys = context_lens, context_lens
        if self.left_padding:
            lengths, first_keys = context_lens
        length = ops.reshape(lengths, (-1, 1, 1, 1))
        position = length + self.rows
        hidden = self.columns > position if self.causal else self.columns >= length + self.rows * 0
        if self.left_padding:
            hidden = ops.logical_or(hidden, self.columns < ops.reshape(first_keys, (-1, 1, 1, 1)))
        given = (hidden_by_window(hidden, position, self.columns, self.left, self.right),)
        if self.own_slopes is not None:
            slopes = self.own_slopes if self.slopes is None else inputs[self.slopes]
            given = given + (alibi_bias(slopes, self.heads, position, self.columns),)
        if self.sinks is not None:
            given = given + (inputs[self.sinks],)
        query = ops.swapaxes(ops.reshape(ops.cast(query, self.moved), self.query_shape), 1, 2)
        # Entries past the end of a sequence may be anything.
        tables = ops.minimum(ops.maximum(block_tables, self.first_block), self.last_block)
        key, value = self.gathered(key_cache, tables), self.gathered(value_cache, tables)
        output, logsumexp = self.attention(ops.cast(query, self.inner), key, value, given)
        output = ops.swapaxes(ops.cast(output, self.moved), 1, 2)
        output = ops.cast(ops.reshape(output, self.output_shape), self.dtype)
        return (output, logsumexp) if self.return_lse else output

    def gathered(self, cache, tables):
        """Return the gathered cache, (batch, kv_heads, keys, width)."""
        blocks = ops.gather(ops.cast(cache, self.moved), tables, 0)
        keys = ops.reshape(blocks, (blocks.shape[0], -1) + blocks.shape[3:])
        return ops.cast(ops.swapaxes(keys, 1, 2), self.inner)
