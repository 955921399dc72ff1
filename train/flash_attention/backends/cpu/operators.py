"""The kernel as MindSpore primitives: one ops.Custom forward, one backward behind its bprop."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from flash_attention.backends.cpu import library
from flash_attention.backends.derivatives import Differentiable, refuse_second_derivative
from flash_attention.problem import AttentionProblem
from flash_attention.sharding.shard import ROWS, TENSOR, Shard
from flash_attention.sharding.strategy import TENSOR_AXES

SINK_AXES = ("mp",)


class _Call(nn.Cell):
    """What the calls of a problem have in common.

    Optional inputs reach the primitives as a stand-in instead of None, which not every MindSpore version can
    differentiate around; the kernel knows from its configuration what counts.
    """

    def __init__(self, problem: AttentionProblem):
        super().__init__()
        rules, rates = library.configuration(problem)
        self.rules, self.rates = Tensor(rules), Tensor(rates)
        self.absent = Tensor(np.zeros(1, np.uint8))
        self.biased = problem.bias_shape is not None or problem.slopes_shape is not None

    def bias(self, alibi):
        return alibi if self.biased else self.absent


class Attention(_Call):
    """One problem; see Backend.build for the meaning of the tensors."""

    def __init__(self, problem: AttentionProblem, shard: Shard | None = None):
        super().__init__(problem)
        self.masked = problem.mask_shape is not None
        self.given = problem.dropout_threshold > 0 and problem.keep_bits
        self.drawn = problem.dropout_threshold > 0 and not problem.keep_bits
        self.sunk, self.prefixed, self.segmented = problem.sinks, problem.prefix, problem.segments
        backward = _backward(problem, shard)
        forward = _Forward(problem, shard, backward)
        self.attention = Differentiable(forward, _Backward(problem, backward), "cpu", primitive=True)

    def construct(
        self,
        query,
        key,
        value,
        mask,
        alibi,
        keep_bits,
        seed,
        sinks=None,
        prefix=None,
        segment_ids=None,
        kv_segment_ids=None,
    ):
        mask = mask if self.masked else self.absent
        keep_bits = keep_bits if self.given else self.absent
        seed = seed if self.drawn else self.absent
        sinks = sinks if self.sunk else self.absent
        prefix = prefix if self.prefixed else self.absent
        segments, kv_segments = (segment_ids, kv_segment_ids) if self.segmented else (self.absent, self.absent)
        return self.attention(
            query,
            key,
            value,
            mask,
            self.bias(alibi),
            keep_bits,
            seed,
            sinks,
            prefix,
            segments,
            kv_segments,
        )


class _Forward(nn.Cell):
    """The forward primitive, which has the backward primitive as its derivative."""

    def __init__(self, problem: AttentionProblem, shard: Shard | None, backward: ops.Custom):
        super().__init__()
        rules, rates = library.configuration(problem)
        self.rules, self.rates = Tensor(rules), Tensor(rates)
        self.primitive = _forward(problem, shard, backward)

    def construct(self, query, key, value, others):
        return self.primitive(query, key, value, *others, self.rules, self.rates)


class _Backward(nn.Cell):
    """The backward primitive for where MindSpore does not call the derivative of the forward one.

    `others` are mask, bias, keep_bits, seed, sinks, prefix, segments and kv_segments.
    """

    def __init__(self, problem: AttentionProblem, backward: ops.Custom):
        super().__init__()
        rules, rates = library.configuration(problem)
        self.rules, self.rates = Tensor(rules), Tensor(rates)
        self.primitive = backward
        self.biased, self.sunk = library.wants_bias_gradient(problem), problem.sinks
        self.zeros_like = ops.ZerosLike()

    def construct(self, query, key, value, others, output, logsumexp, d_output, d_logsumexp):
        results = self.primitive(
            query, key, value, *others, output, logsumexp, d_output, d_logsumexp, self.rules, self.rates
        )
        d_others = ()
        for tensor in others:
            d_others = d_others + (self.zeros_like(tensor),)
        if self.biased:
            d_others = d_others[:1] + (results[3],) + d_others[2:]
        if self.sunk:
            d_others = d_others[:4] + (results[-1],) + d_others[5:]
        return results[0], results[1], results[2], d_others


class Gradients(_Call):
    """The backward pass of one problem by itself; see Backend.build_backward."""

    def __init__(self, problem: AttentionProblem):
        super().__init__(problem)
        self.prefixed, self.segmented = problem.prefix, problem.segments
        self.backward = _backward(problem)

    def construct(self, query, key, value, alibi, output, logsumexp, d_output, prefix, segment_ids, kv_segment_ids):
        absent, bias, none = self.absent, self.bias(alibi), ops.zeros_like(logsumexp)
        prefix = prefix if self.prefixed else absent
        segments, kv_segments = (segment_ids, kv_segment_ids) if self.segmented else (absent, absent)
        sides = absent, bias, absent, absent, absent, prefix, segments, kv_segments
        gradients = self.backward(query, key, value, *sides, output, logsumexp, d_output, none, self.rules, self.rates)
        return gradients[0], gradients[1], gradients[2]


def _backward(problem: AttentionProblem, shard: Shard | None = None) -> ops.Custom:
    query, key, value = _like_query(problem), _like_key(problem), _like_value(problem)
    name = "FlashAttentionBackward"
    gradients: tuple = (query, key, value)
    if library.wants_bias_gradient(problem):
        bias_axes = shard and shard.bias_axes
        name, gradients = name + "Bias", (*gradients, (problem.bias_shape, problem.bias_dtype, bias_axes))
    if problem.sinks:
        name, gradients = name + "Sinks", (*gradients, ((problem.heads,), "float32", SINK_AXES))
    optional, rules = _optional_axes(problem, shard)
    axes = TENSOR_AXES[problem.layout]

    def bprop(
        query, key, value, mask, bias, keep_bits, seed, sinks, prefix, segments, kv_segments,
        output, lse, d_output, d_lse, rules, rates, out, dout,
    ):  # fmt: skip
        refuse_second_derivative("cpu")
        sides = mask, bias, keep_bits, seed, sinks, prefix, segments, kv_segments
        # A graph of MindSpore 2.0 takes no starred tuple here.
        return (query, key, value) + sides + (output, lse, d_output, d_lse, rules, rates)

    input_axes = (*[axes] * 3, *optional, axes, ROWS, axes, ROWS, *rules)
    return custom_primitive(name, problem, gradients, bprop, shard, input_axes)


def _forward(problem: AttentionProblem, shard: Shard | None, backward: ops.Custom) -> ops.Custom:
    bias_gradient = library.wants_bias_gradient(problem)
    zeros_like = ops.ZerosLike()
    sunk, sinks_gradient = problem.sinks, 4 if bias_gradient else 3

    def bprop(
        query, key, value, mask, bias, keep_bits, seed, sinks, prefix, segments, kv_segments, rules, rates, out, dout
    ):
        gradients = backward(
            query, key, value, mask, bias, keep_bits, seed, sinks, prefix, segments, kv_segments,
            out[0], out[1], dout[0], dout[1], rules, rates,
        )  # fmt: skip
        return (
            gradients[0],
            gradients[1],
            gradients[2],
            zeros_like(mask),
            gradients[3] if bias_gradient else zeros_like(bias),
            zeros_like(keep_bits),
            zeros_like(seed),
            gradients[sinks_gradient] if sunk else zeros_like(sinks),
            zeros_like(prefix),
            zeros_like(segments),
            zeros_like(kv_segments),
            zeros_like(rules),
            zeros_like(rates),
        )

    outputs = _like_output(problem), (problem.shape_lse(), "float32", ROWS)
    optional, rules = _optional_axes(problem, shard)
    axes = (*[TENSOR_AXES[problem.layout]] * 3, *optional, *rules)
    return custom_primitive(f"FlashAttentionForward{problem.layout}", problem, outputs, bprop, shard, axes)


def _like_query(problem: AttentionProblem) -> tuple:
    """Shape, dtype and axes of query and of its gradient."""
    return problem.laid_out(problem.shape_query()), problem.dtype, TENSOR_AXES[problem.layout]


def _like_key(problem: AttentionProblem) -> tuple:
    """Shape, dtype and axes of key and of its gradient."""
    return problem.laid_out(problem.shape_key()), problem.dtype, TENSOR_AXES[problem.layout]


def _like_value(problem: AttentionProblem) -> tuple:
    """Shape, dtype and axes of value and of its gradient."""
    return problem.laid_out(problem.shape_value()), problem.dtype, TENSOR_AXES[problem.layout]


def _like_output(problem: AttentionProblem) -> tuple:
    """Shape, dtype and axes of the output and of its gradient."""
    return problem.laid_out(problem.shape_output()), problem.dtype, TENSOR_AXES[problem.layout]


def _optional_axes(problem: AttentionProblem, shard: Shard | None) -> tuple:
    """Axes of the optional inputs, which a device holds whole where they are constants, and of the rules."""
    whole = (None,)
    mask, bias = (shard.mask_axes, shard.bias_axes) if shard else (None, None)
    segments = ("dp", None) if problem.segments else whole
    optional = (
        mask or whole,
        bias or whole,
        TENSOR if problem.keep_bits else whole,
        whole,
        SINK_AXES if problem.sinks else whole,
        ("dp",) if problem.prefix else whole,
        segments,
        segments,
    )
    return optional, (whole, whole)


def custom_primitive(
    function: str, problem: AttentionProblem, outputs: tuple, bprop, shard: Shard | None = None, input_axes: tuple = ()
) -> ops.Custom:
    """The primitive of an entry point of csrc; outputs are (shape, dtype, axes) each."""
    shapes, dtypes, axes = zip(*outputs)
    known = {"out_shape": tuple(map(list, shapes)), "out_dtype": tuple(getattr(ms, dtype) for dtype in dtypes)}
    if problem.dynamic:
        known = {}  # MindSpore asks the library
    elif shard is not None:
        known["out_shape"] = shard.infer_shapes(_like_query(problem)[0], list(zip(shapes, axes)))
    custom = ops.Custom(f"{library.LIBRARY}:{function}", func_type="aot", bprop=bprop, **known)
    if problem.dynamic:
        custom.add_prim_attr("reg_op_name", function)
        custom.add_prim_attr("multi_output", True)
    # PYNATIVE takes primitives of the same function and attributes for one and the same, whatever their outputs.
    custom.add_prim_attr("flash_attention_outputs", str(list(zip(shapes, dtypes))))
    return custom if shard is None else shard.attach(custom, list(input_axes), list(axes))
