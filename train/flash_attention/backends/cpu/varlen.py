"""Packed sequences as MindSpore primitives: the kernel's tasks of all sequences together."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops

from flash_attention.backends.cpu import library
from flash_attention.backends.cpu.operators import backward_name, custom_primitive, derivative, differentiable
from flash_attention.bridge.gradients import refuse_second_derivative
from flash_attention.call import Call
from flash_attention.call.optional import OPTIONAL


class VarlenAttention(nn.Cell):
    """One packed call; see Backend.build for the meaning of the tensors."""

    def __init__(self, call: Call):
        super().__init__()
        self.lengths_q, self.lengths_k = _constant(call.varlen.ends_q), _constant(call.varlen.ends_k)
        backward = _backward(call)
        forward = _forward(call, backward)
        self.attention = differentiable(call, library.configuration(call), forward, backward, 2)

    def construct(self, query, key, value, lengths_q, lengths_k, inputs):
        lengths_q = lengths_q if self.lengths_q is None else self.lengths_q
        lengths_k = lengths_k if self.lengths_k is None else self.lengths_k
        return self.attention(query, key, value, inputs + (lengths_q, lengths_k))


def _constant(lengths: tuple | None) -> Tensor | None:
    return None if lengths is None else Tensor(np.array(lengths, np.int64))


def _packed(call: Call, *shapes: tuple) -> list:
    """Return the shape, dtype and axes of packed tensors."""
    return [(call.laid_out(shape), call.dtype, None) for shape in shapes]


def _backward(call: Call) -> ops.Custom:

    def no_second(
        query, key, value, mask, bias, keep, seed, sinks, prefix, segments, kv_segments, blocks,
        output, lse, d_output, d_lse, len_q, len_k, rules, rates, out, dout,
    ):  # fmt: skip
        refuse_second_derivative("cpu")
        inputs = mask, bias, keep, seed, sinks, prefix, segments, kv_segments, blocks
        # No starred tuple, see flash_attention.bridge.
        return (query, key, value) + inputs + (output, lse, d_output, d_lse, len_q, len_k, rules, rates)

    results = _packed(call, call.shape_query(), call.shape_key(), call.shape_value())
    for one in OPTIONAL:
        if one.name in library.gradients(call):
            results.append((one.shape(call), one.cast or call.bias_dtype, None))
    return custom_primitive(backward_name("Packed", call), call, tuple(results), no_second)


def _forward(call: Call, backward: ops.Custom) -> ops.Custom:
    differentiate = derivative(call, backward)

    def bprop(
        query, key, value, mask, bias, keep, seed, sinks, prefix, segments, kv_segments, blocks,
        lengths_q, lengths_k, rules, rates, out, dout,
    ):  # fmt: skip
        inputs = mask, bias, keep, seed, sinks, prefix, segments, kv_segments, blocks
        return differentiate((query, key, value), inputs, (lengths_q, lengths_k, rules, rates), out, dout)

    outputs = (*_packed(call, call.shape_output()), ((call.heads, call.seq_q), "float32", None))
    return custom_primitive("FlashAttentionForwardPacked", call, outputs, bprop)
