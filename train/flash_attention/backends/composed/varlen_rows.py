"""Compute packed sequences as one call of all rows. Serves lengths that a compiled graph cannot read."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.base import Backend
from flash_attention.backends.composed.positional import HiddenByRules
from flash_attention.backends.composed.varlen_loop import heads_first
from flash_attention.bridge.constants import numbered
from flash_attention.bridge.tensors import refuse
from flash_attention.call import Call, alibi_slopes
from flash_attention.call.rules import PLAIN_RULES


class VarlenRows(nn.Cell):
    """Compute attention of all rows, with a mask that keeps the sequences apart. ALiBi adds biases.

    It costs queries times keys of all sequences, in time and memory. Lengths that are not allowed give NaN, and so do
    prefixes.
    """

    def __init__(self, backend: Backend, call: Call):
        super().__init__()
        self.heads, self.kv_heads, self.dtype = call.heads, call.kv_heads, getattr(mstype, call.dtype)
        self.head_dim, self.value_dim = call.head_dim, call.value_dim
        self.output_shape = call.laid_out(call.shape_output())
        self.constants = tuple(
            None if ends is None else Tensor(np.array(ends, np.int32))
            for ends in (call.varlen.ends_q, call.varlen.ends_k)
        )
        self.bottom_right = call.rules.causal_alignment == "bottom_right"
        self.hidden, self.drops = HiddenByRules(call.rules), call.dropout_threshold > 0
        self.places = tuple(map(call.place, ("bias", "sinks", "prefix", "alibi_slopes")))
        self.alibi = call.bias == "alibi"
        self.slopes = Tensor(np.array(alibi_slopes(call), np.float32).reshape(1, -1)) if self.alibi else None
        alone = replace(
            call,
            storage=None,
            rules=replace(PLAIN_RULES, scale=call.rules.scale, softcap=call.rules.softcap),
            layout="BNSD",
            dtype="float32",
            mask_shape=(1, 1, call.seq_q, call.seq_k),
            mask_dtype="bool",
            bias_dtype=call.bias_dtype and "float32",
            prefix=False,
            training=False,
            keep_bits=False,
            slopes_shape=None,
        )
        if self.alibi:
            scores = 1, call.heads, call.seq_q, call.seq_k
            alone = replace(alone, bias_shape=scores, bias_dtype="float32", bias_grad=False)
        self.attention = backend.build(alone)

    def construct(self, query, key, value, lengths_q, lengths_k, inputs):
        if self.drops:
            refuse(
                "dropout_rate: got dropout beside cu_seqlens_q, cu_seqlens_k in a Tensor in a compiled graph, which "
                "backend 'math' does not have; allowed there are lengths in tuples, PYNATIVE, and backend 'cpu'"
            )
        bias, sinks, prefix, slopes = self.places
        own, own_first, count_q, bad_q = self.read(lengths_q, self.constants[0], query.shape[0])
        other, other_first, count_k, bad_k = self.read(lengths_k, self.constants[1], key.shape[0])
        sequence, start, end = self.located(own, own_first, query.shape[0])
        other_sequence, other_start, _ = self.located(other, other_first, key.shape[0])
        position = numbered(query.shape[0]) - start
        at = ops.minimum(sequence + other_first, other.shape[0] - 2)
        keys = ops.gather(other, at + 1, 0) - ops.gather(other, at, 0)
        if self.bottom_right:
            position = position + keys - (end - start)
        position = ops.reshape(position, (1, 1, -1, 1))
        column = ops.reshape(numbered(key.shape[0]) - other_start, (1, 1, 1, -1))
        hidden = self.hidden(position, column)
        if prefix is not None:
            seen = ops.gather(inputs[prefix], ops.minimum(sequence, inputs[prefix].shape[0] - 1), 0)
            hidden = ops.logical_and(hidden, column >= ops.reshape(seen, (1, 1, -1, 1)))
            bad_q = bad_q + self.count(ops.logical_or(seen < 0, seen > keys))
        apart = ops.reshape(sequence, (1, 1, -1, 1)) - ops.reshape(other_sequence, (1, 1, 1, -1))
        hidden = ops.logical_or(hidden, ops.abs(apart) > 0)
        given = (hidden,)
        if self.alibi:
            of_rows = self.slopes if slopes is None else inputs[slopes]
            of_rows = ops.reshape(of_rows, (-1, self.heads))
            of_rows = ops.gather(of_rows, ops.minimum(sequence, of_rows.shape[0] - 1), 0)
            distance = ops.cast(ops.abs(position - column), mstype.float32)
            given = given + (-ops.reshape(ops.swapaxes(of_rows, 0, 1), (1, self.heads, -1, 1)) * distance,)
        elif bias is not None:
            given = given + (ops.cast(inputs[bias], mstype.float32),)
        if sinks is not None:
            given = given + (inputs[sinks],)
        output, logsumexp = self.attention(
            heads_first(query, self.heads, self.head_dim),
            heads_first(key, self.kv_heads, self.head_dim),
            heads_first(value, self.kv_heads, self.value_dim),
            given,
        )
        wrong = ops.cast(bad_q + bad_k + ops.abs(count_q - count_k), mstype.float32) > 0
        output = ops.masked_fill(output, ops.reshape(wrong, (1, 1, 1, 1)), float("nan"))
        output = ops.reshape(ops.swapaxes(output, 1, 2), self.output_shape)
        return ops.cast(output, self.dtype), logsumexp[0]

    def read(self, lengths, constant, rows):
        """Return the ends behind a 0, and three counts: leading zeros before, sequences, wrong lengths."""
        ends = ops.cast(lengths, mstype.int32) if constant is None else constant
        first = ops.cast(ops.equal(ends[:1], 0), mstype.int32)
        ends = ops.concat((numbered(1), ends), 0)
        falls = self.count(ends[1:] < ends[:-1])
        return ends, first, ends.shape[0] - 1 - first, falls + ops.abs(ends[-1:] - rows)

    def count(self, wrong):
        """Return how many elements are True."""
        return ops.cast(ops.cast(wrong, mstype.float32).sum(), mstype.int32)

    def located(self, ends, first, rows):
        """Return the sequence of each row, and where it starts and ends."""
        behind = ops.reshape(numbered(rows), (-1, 1)) >= ops.reshape(ends[1:], (1, -1))
        place = ops.cast(ops.cast(behind, mstype.float32).sum(1), mstype.int32)
        inside = ops.minimum(place, ends.shape[0] - 2)
        return place - first, ops.gather(ends, inside, 0), ops.gather(ends, inside + 1, 0)
