"""Packed sequences as MindSpore primitives: the kernel's tasks of all sequences together."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.cpu import library
from flash_attention.backends.cpu.operators import custom_primitive
from flash_attention.backends.derivatives import refuse_second_derivative
from flash_attention.problem.packed import PackedProblem


class PackedAttention(nn.Cell):
    """One packed problem; see Backend.build_packed for the meaning of the tensors."""

    def __init__(self, problem: PackedProblem):
        super().__init__()
        rules, rates = library.packed_configuration(problem)
        self.rules, self.rates = Tensor(rules), Tensor(rates)
        self.absent = Tensor(np.zeros(1, np.uint8))
        self.lengths_q, self.lengths_k = _constant(problem.lengths_q), _constant(problem.lengths_k)
        self.drawn = problem.rows.dropout_threshold > 0
        self.sunk, self.prefixed = problem.rows.sinks, problem.rows.prefix
        self.attention = _forward(problem)

    def construct(self, query, key, value, lengths_q, lengths_k, seed, sinks, prefix):
        absent = self.absent
        lengths_q = lengths_q if self.lengths_q is None else self.lengths_q
        lengths_k = lengths_k if self.lengths_k is None else self.lengths_k
        seed = seed if self.drawn else absent
        sinks = ops.cast(sinks, mstype.float32) if self.sunk else absent
        prefix = prefix if self.prefixed else absent
        return self.attention(
            *(query, key, value, absent, absent, absent, seed, sinks, prefix, absent, absent),
            *(lengths_q, lengths_k, self.rules, self.rates),
        )


def _constant(lengths: tuple | None) -> Tensor | None:
    return None if lengths is None else Tensor(np.array(lengths, np.int64))


def _forward(problem: PackedProblem) -> ops.Custom:
    rows = problem.rows
    # Shape, dtype and axes of each. The rows of one batch element, without the batch axis.
    shapes = rows.shape_query(), rows.shape_key(), rows.shape_value(), rows.shape_output()
    query, key, value, output = ((rows.laid_out(shape)[1:], rows.dtype, None) for shape in shapes)
    zeros_like = ops.ZerosLike()

    def no_second(
        query, key, value, mask, bias, keep, seed, sinks, prefix, segments, kv_segments,
        output, lse, d_output, d_lse, len_q, len_k, rules, rates, out, dout,
    ):  # fmt: skip
        refuse_second_derivative("cpu")
        sides = mask, bias, keep, seed, sinks, prefix, segments, kv_segments
        return (query, key, value, *sides, output, lse, d_output, d_lse, len_q, len_k, rules, rates)

    name, sunk, results = "FlashAttentionBackwardPacked", rows.sinks, [query, key, value]
    if sunk:
        name, results = name + "Sinks", [*results, ((rows.heads,), "float32", None)]
    backward = custom_primitive(name, rows, tuple(results), no_second)

    def bprop(
        query, key, value, mask, bias, keep, seed, sinks, prefix, segments, kv_segments,
        lengths_q, lengths_k, rules, rates, out, dout,
    ):  # fmt: skip
        sides = mask, bias, keep, seed, sinks, prefix, segments, kv_segments
        gradients = backward(
            *(query, key, value, *sides, out[0], out[1], dout[0], dout[1]), *(lengths_q, lengths_k, rules, rates)
        )
        d_sinks = gradients[3] if sunk else zeros_like(sinks)
        before = tuple(zeros_like(tensor) for tensor in (mask, bias, keep, seed))
        behind = (prefix, segments, kv_segments, lengths_q, lengths_k, rules, rates)
        behind = tuple(zeros_like(tensor) for tensor in behind)
        return (gradients[0], gradients[1], gradients[2]) + before + (d_sinks,) + behind

    outputs = output, ((rows.heads, rows.seq_q), "float32", None)
    return custom_primitive("FlashAttentionForwardPacked", rows, outputs, bprop)
