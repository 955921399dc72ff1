"""Packed sequences as MindSpore primitives: the kernel's tasks of all sequences together."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops

from flash_attention.backends.cpu import library
from flash_attention.backends.cpu.operators import backward_name, custom_primitive, derivative, differentiable
from flash_attention.bridge.gradients import refuse_second_derivative
from flash_attention.problem.optional import OPTIONAL
from flash_attention.problem.packed import PackedProblem


class PackedAttention(nn.Cell):
    """One packed problem; see Backend.build_packed for the meaning of the tensors."""

    def __init__(self, problem: PackedProblem):
        super().__init__()
        self.lengths_q, self.lengths_k = _constant(problem.lengths_q), _constant(problem.lengths_k)
        backward = _backward(problem)
        forward = _forward(problem, backward)
        self.attention = differentiable(problem.rows, library.packed_configuration(problem), forward, backward, 2)

    def construct(self, query, key, value, lengths_q, lengths_k, inputs):
        lengths_q = lengths_q if self.lengths_q is None else self.lengths_q
        lengths_k = lengths_k if self.lengths_k is None else self.lengths_k
        return self.attention(query, key, value, inputs + (lengths_q, lengths_k))


def _constant(lengths: tuple | None) -> Tensor | None:
    return None if lengths is None else Tensor(np.array(lengths, np.int64))


def _of_rows(problem: PackedProblem, *shapes: tuple) -> list:
    """Shape, dtype and axes of tensors: the rows of one batch element, without the batch axis."""
    rows = problem.rows
    return [(rows.laid_out(shape)[1:], rows.dtype, None) for shape in shapes]


def _backward(problem: PackedProblem) -> ops.Custom:
    rows = problem.rows

    def no_second(
        query, key, value, mask, bias, keep, seed, sinks, prefix, segments, kv_segments,
        output, lse, d_output, d_lse, len_q, len_k, rules, rates, out, dout,
    ):  # fmt: skip
        refuse_second_derivative("cpu")
        inputs = mask, bias, keep, seed, sinks, prefix, segments, kv_segments
        # A graph of MindSpore 2.0 takes no starred tuple here.
        return (query, key, value) + inputs + (output, lse, d_output, d_lse, len_q, len_k, rules, rates)

    results = _of_rows(problem, rows.shape_query(), rows.shape_key(), rows.shape_value())
    for one in OPTIONAL:
        if one.name in library.gradients(rows):
            results.append((one.shape(rows), one.cast or rows.bias_dtype, None))
    return custom_primitive(backward_name("Packed", rows), problem, tuple(results), no_second)


def _forward(problem: PackedProblem, backward: ops.Custom) -> ops.Custom:
    rows, differentiate = problem.rows, derivative(problem.rows, backward)

    def bprop(
        query, key, value, mask, bias, keep, seed, sinks, prefix, segments, kv_segments,
        lengths_q, lengths_k, rules, rates, out, dout,
    ):  # fmt: skip
        inputs = mask, bias, keep, seed, sinks, prefix, segments, kv_segments
        return differentiate((query, key, value), inputs, (lengths_q, lengths_k, rules, rates), out, dout)

    outputs = (*_of_rows(problem, rows.shape_output()), ((rows.heads, rows.seq_q), "float32", None))
    return custom_primitive("FlashAttentionForwardPacked", problem, outputs, bprop)
