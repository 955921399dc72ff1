"""Gather a paged cache into one tensor: what `paged_attention` means, for backends that have nothing better."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.base import Backend
from flash_attention.backends.composed.positional import alibi_bias, hidden_by_window
from flash_attention.call import AttentionRules, Call, alibi_slopes


class PagedGather(nn.Cell):
    """Run the call through the backend's cell for BNSD. A mask hides keys past the end of a sequence.

    Arithmetic around it is in float32, whose operations compiled graphs have on every device.
    """

    def __init__(self, backend: Backend, call: Call):
        super().__init__()
        batch, heads, seq_q, seq_k = call.batch, call.heads, call.seq_q, call.seq_k
        self.dtype = getattr(mstype, call.dtype)
        self.query_shape = batch, seq_q, heads, call.head_dim
        self.output_shape = call.laid_out(call.shape_output())
        self.causal, self.left, self.right = call.rules.causal, call.rules.window_left, call.rules.window_right
        self.rows = Tensor(np.arange(-seq_q, 0, dtype=np.int32).reshape(1, 1, -1, 1))
        self.columns = Tensor(np.arange(seq_k, dtype=np.int32).reshape(1, 1, 1, -1))
        self.first_block, self.last_block = (Tensor([block], mstype.int32) for block in (0, call.paged.blocks - 1))
        self.own_slopes = None
        self.heads, self.slopes, self.sinks = heads, call.place("alibi_slopes"), call.place("sinks")
        given: dict[str, Any] = {}
        if call.bias == "alibi":
            self.own_slopes = Tensor(np.array(alibi_slopes(call), np.float32))
            given = {
                "bias_shape": (batch, heads, seq_q, seq_k),
                "bias_dtype": "float32",
                "bias_grad": False,
                "slopes_shape": None,
            }
        rules = AttentionRules(scale=call.rules.scale, softcap=call.rules.softcap)
        mask: dict[str, Any] = {"mask_shape": (batch, 1, seq_q, seq_k), "mask_dtype": "bool"}
        self.attention = backend.build(
            replace(call, storage=None, rules=rules, layout="BNSD", dtype="float32", **mask, **given)
        )

    def construct(self, query, key_cache, value_cache, block_tables, context_lens, inputs):
        length = ops.reshape(context_lens, (-1, 1, 1, 1))
        position = length + self.rows
        hidden = self.columns > position if self.causal else self.columns >= length + self.rows * 0
        given = (hidden_by_window(hidden, position, self.columns, self.left, self.right),)
        if self.own_slopes is not None:
            slopes = self.own_slopes if self.slopes is None else inputs[self.slopes]
            given = given + (alibi_bias(slopes, self.heads, position, self.columns),)
        if self.sinks is not None:
            given = given + (inputs[self.sinks],)
        query = ops.swapaxes(ops.reshape(ops.cast(query, mstype.float32), self.query_shape), 1, 2)
        # Entries past the end of a sequence may be anything.
        tables = ops.minimum(ops.maximum(block_tables, self.first_block), self.last_block)
        key, value = self.gathered(key_cache, tables), self.gathered(value_cache, tables)
        output, _ = self.attention(query, key, value, given)
        return ops.cast(ops.reshape(ops.swapaxes(output, 1, 2), self.output_shape), self.dtype)

    def gathered(self, cache, tables):
        """Return the gathered cache, (batch, kv_heads, keys, width)."""
        blocks = ops.gather(ops.cast(cache, mstype.float32), tables, 0)
        keys = ops.reshape(blocks, (blocks.shape[0], -1) + blocks.shape[3:])
        return ops.swapaxes(keys, 1, 2)
