"""Packed sequences as MindSpore primitives: the kernel's tasks of all sequences together."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.cpu import library
from flash_attention.backends.cpu.operators import custom_primitive
from flash_attention.backends.derivatives import Differentiable, refuse_second_derivative
from flash_attention.problem.packed import PackedProblem


class PackedAttention(nn.Cell):
    """One packed problem; see Backend.build_packed for the meaning of the tensors."""

    def __init__(self, problem: PackedProblem):
        super().__init__()
        self.absent = Tensor(np.zeros(1, np.uint8))
        self.lengths_q, self.lengths_k = _constant(problem.lengths_q), _constant(problem.lengths_k)
        self.drawn = problem.rows.dropout_threshold > 0
        self.sunk, self.prefixed = problem.rows.sinks, problem.rows.prefix
        backward = _backward(problem)
        forward = _Forward(problem, backward)
        self.attention = Differentiable(forward, _Backward(problem, backward), "cpu", primitive=True)

    def construct(self, query, key, value, lengths_q, lengths_k, seed, sinks, prefix):
        absent = self.absent
        lengths_q = lengths_q if self.lengths_q is None else self.lengths_q
        lengths_k = lengths_k if self.lengths_k is None else self.lengths_k
        seed = seed if self.drawn else absent
        sinks = ops.cast(sinks, mstype.float32) if self.sunk else absent
        prefix = prefix if self.prefixed else absent
        return self.attention(query, key, value, seed, sinks, prefix, lengths_q, lengths_k, absent, absent, absent)


def _constant(lengths: tuple | None) -> Tensor | None:
    return None if lengths is None else Tensor(np.array(lengths, np.int64))


class _Primitive(nn.Cell):
    """Forward or backward primitive of a problem."""

    def __init__(self, problem: PackedProblem, primitive: ops.Custom):
        super().__init__()
        rules, rates = library.packed_configuration(problem)
        self.rules, self.rates = Tensor(rules), Tensor(rates)
        self.primitive = primitive

    def inputs(self, query, key, value, others):
        """Those of both primitives that come before and behind the results."""
        seed, sinks, prefix, lengths_q, lengths_k, absent, _, _ = others
        first = (query, key, value, absent, absent, absent, seed, sinks, prefix, absent, absent)
        return first, (lengths_q, lengths_k, self.rules, self.rates)


class _Forward(_Primitive):
    def __init__(self, problem: PackedProblem, backward: ops.Custom):
        super().__init__(problem, _forward(problem, backward))

    def construct(self, query, key, value, others):
        first, last = self.inputs(query, key, value, others)
        return self.primitive(*first, *last)


class _Backward(_Primitive):
    """For where MindSpore does not call the derivative of the forward primitive."""

    def __init__(self, problem: PackedProblem, backward: ops.Custom):
        super().__init__(problem, backward)
        self.sunk = problem.rows.sinks
        self.zeros_like = ops.ZerosLike()

    def construct(self, query, key, value, others, output, logsumexp, d_output, d_logsumexp):
        first, last = self.inputs(query, key, value, others)
        results = self.primitive(*first, output, logsumexp, d_output, d_logsumexp, *last)
        d_others = ()
        for tensor in others:
            d_others = d_others + (self.zeros_like(tensor),)
        if self.sunk:
            d_others = d_others[:1] + (results[3],) + d_others[2:]
        return results[0], results[1], results[2], d_others


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
        sides = mask, bias, keep, seed, sinks, prefix, segments, kv_segments
        # A graph of MindSpore 2.0 takes no starred tuple here.
        return (query, key, value) + sides + (output, lse, d_output, d_lse, len_q, len_k, rules, rates)

    name = "FlashAttentionBackwardPacked"
    results = _of_rows(problem, rows.shape_query(), rows.shape_key(), rows.shape_value())
    if rows.sinks:
        name, results = name + "Sinks", [*results, ((rows.heads,), "float32", None)]
    return custom_primitive(name, rows, tuple(results), no_second)


def _forward(problem: PackedProblem, backward: ops.Custom) -> ops.Custom:
    rows, sunk = problem.rows, problem.rows.sinks
    zeros_like = ops.ZerosLike()

    def bprop(
        query, key, value, mask, bias, keep, seed, sinks, prefix, segments, kv_segments,
        lengths_q, lengths_k, rules, rates, out, dout,
    ):  # fmt: skip
        sides = mask, bias, keep, seed, sinks, prefix, segments, kv_segments
        # As above.
        given = (query, key, value) + sides + (out[0], out[1], dout[0], dout[1], lengths_q, lengths_k, rules, rates)
        gradients = backward(*given)
        d_sinks = gradients[3] if sunk else zeros_like(sinks)
        before = tuple(zeros_like(tensor) for tensor in (mask, bias, keep, seed))
        behind = (prefix, segments, kv_segments, lengths_q, lengths_k, rules, rates)
        behind = tuple(zeros_like(tensor) for tensor in behind)
        return (gradients[0], gradients[1], gradients[2]) + before + (d_sinks,) + behind

    outputs = (*_of_rows(problem, rows.shape_output()), ((rows.heads, rows.seq_q), "float32", None))
    return custom_primitive("FlashAttentionForwardPacked", rows, outputs, bprop)
