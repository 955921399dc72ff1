"""The kernel as MindSpore primitives: one ops.Custom forward, one backward behind its bprop."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

from flash_attention.backends.cpu import library
from flash_attention.bridge.custom import Custom
from flash_attention.bridge.gradients import Differentiable, refuse_second_derivative
from flash_attention.call import LAYOUTS, Call
from flash_attention.call.optional import OPTIONAL
from flash_attention.call.storage import Varlen
from flash_attention.sharding.shard import ROWS, Shard


def attention(call: Call, shard: Shard | None = None) -> nn.Cell:
    """Return the Cell of a dense or packed call. Backend.build says what the tensors mean."""
    packed, configuration = call.kind == "varlen", library.configuration(call)
    backward = _backward(call, shard, packed)
    run = Differentiable(
        _Forward(call, configuration, _forward(call, shard, packed, backward)),
        lambda: _Backward(call, configuration, backward),
        "cpu",
        len(call.inputs) + (2 if packed else 0),
        primitive=True,
    )
    return _Packed(call, run) if packed else run


class _Packed(nn.Cell):
    """Hand on the lengths of packed sequences behind the call's inputs."""

    def __init__(self, call: Call, run: nn.Cell):
        super().__init__()
        ends = call.varlen.ends_q, call.varlen.ends_k
        self.run = run
        self.lengths_q, self.lengths_k = (None if one is None else Tensor(np.array(one, np.int64)) for one in ends)

    def construct(self, query, key, value, lengths_q, lengths_k, inputs):
        lengths_q = lengths_q if self.lengths_q is None else self.lengths_q
        lengths_k = lengths_k if self.lengths_k is None else self.lengths_k
        return self.run(query, key, value, inputs + (lengths_q, lengths_k))


class _Primitive(nn.Cell):
    """A primitive with the configuration of a call.

    A stand-in takes the place of an optional input that is None, because not every MindSpore version can differentiate
    around None. The kernel knows from its configuration which inputs count.
    """

    def __init__(self, call: Call, configuration: tuple, primitive: ops.Custom):
        super().__init__()
        rules, rates = configuration
        self.rules, self.rates, self.primitive = Tensor(rules), Tensor(rates), primitive
        self.absent = Tensor(np.zeros(1, np.uint8))
        self.places = tuple(0 if place is None else 1 + place for place in library.places(call))
        self.count = len(call.inputs)

    def filled(self, inputs):
        """Return the tensors of library.INPUTS. No loop adds to a tuple here: a graph compiles each step of it."""
        given = (self.absent,) + inputs
        mask, bias, keep, seed, sinks, prefix, segments, kv_segments, blocks = self.places
        first = given[mask], given[bias], given[keep], given[seed], given[sinks]
        return first + (given[prefix], given[segments], given[kv_segments], given[blocks])


class _Forward(_Primitive):
    def construct(self, query, key, value, *inputs):
        more = inputs[self.count :]
        return self.primitive(query, key, value, *self.filled(inputs), *more, self.rules, self.rates)


class _Backward(_Primitive):
    """Call the derivative of the forward primitive where MindSpore does not."""

    def __init__(self, call: Call, configuration: tuple, primitive: ops.Custom):
        super().__init__(call, configuration, primitive)
        self.derivative = (_derivative(call, primitive),)  # an attribute that is a function counts as a method
        self.taken = tuple(3 + self.places.index(1 + place) for place in range(self.count))

    def construct(self, query, key, value, output, logsumexp, d_output, d_logsumexp, *inputs):
        more = inputs[self.count :]
        results = (output, logsumexp), (d_output, d_logsumexp)
        last = more + (self.rules, self.rates)
        found = self.derivative[0]((query, key, value), self.filled(inputs), last, *results)
        gradients = found[:3]
        for place in self.taken:
            gradients = gradients + (found[place],)
        return gradients + found[-len(last) : -2]


def _backward(call: Call, shard: Shard | None, packed: bool) -> ops.Custom:
    gradients = list(_tensors(call)[:3])
    for one in OPTIONAL:
        if one.name in library.gradients(call):
            dtype = call.bias_dtype if one.name == "bias" else one.cast
            gradients.append((one.shape(call), dtype, _axes(one.name, call, shard)))

    def bprop(
        query, key, value, mask, bias, keep_bits, seed, sinks, prefix, segments, kv_segments, blocks,
        output, lse, d_output, d_lse, rules, rates, out, dout,
    ):  # fmt: skip
        refuse_second_derivative("cpu")
        inputs = mask, bias, keep_bits, seed, sinks, prefix, segments, kv_segments, blocks
        # No starred tuple, see flash_attention.bridge.
        return (query, key, value) + inputs + (output, lse, d_output, d_lse, rules, rates)

    def bprop_packed(
        query, key, value, mask, bias, keep_bits, seed, sinks, prefix, segments, kv_segments, blocks,
        output, lse, d_output, d_lse, lengths_q, lengths_k, rules, rates, out, dout,
    ):  # fmt: skip
        refuse_second_derivative("cpu")
        inputs = mask, bias, keep_bits, seed, sinks, prefix, segments, kv_segments, blocks
        return (query, key, value) + inputs + (output, lse, d_output, d_lse, lengths_q, lengths_k, rules, rates)

    output = LAYOUTS[call.layout].sharding
    axes = (*_input_axes(call, shard), output, ROWS, output, ROWS, (None,), (None,))
    # The entry point for the gradients that the call wants.
    name = "".join(
        ("FlashAttentionBackward", "Packed" if packed else "", *map(str.capitalize, library.gradients(call)))
    )
    return _primitive(name, call, gradients, bprop_packed if packed else bprop, shard, axes)


def _forward(call: Call, shard: Shard | None, packed: bool, backward: ops.Custom) -> ops.Custom:
    differentiate = _derivative(call, backward)

    def bprop(
        query, key, value, mask, bias, keep_bits, seed, sinks, prefix, segments, kv_segments, blocks,
        rules, rates, out, dout,
    ):  # fmt: skip
        inputs = mask, bias, keep_bits, seed, sinks, prefix, segments, kv_segments, blocks
        return differentiate((query, key, value), inputs, (rules, rates), out, dout)

    def bprop_packed(
        query, key, value, mask, bias, keep_bits, seed, sinks, prefix, segments, kv_segments, blocks,
        lengths_q, lengths_k, rules, rates, out, dout,
    ):  # fmt: skip
        inputs = mask, bias, keep_bits, seed, sinks, prefix, segments, kv_segments, blocks
        return differentiate((query, key, value), inputs, (lengths_q, lengths_k, rules, rates), out, dout)

    outputs = [_tensors(call)[3], ((call.heads, call.seq_q) if packed else call.shape_lse(), "float32", ROWS)]
    axes = (*_input_axes(call, shard), (None,), (None,))
    name = f"FlashAttentionForward{'Packed' if packed else call.layout}"
    return _primitive(name, call, outputs, bprop_packed if packed else bprop, shard, axes)


def _derivative(call: Call, backward: ops.Custom):
    """Return the function that computes the bprop of a forward primitive. `last` are the inputs behind the optional
    ones.
    """
    names = library.gradients(call)
    d_bias, d_sinks = (3 + names.index(name) if name in names else 0 for name in ("bias", "sinks"))
    zeros_like = ops.ZerosLike()

    def of(tensor, results, place):
        return results[place] if place > 0 else zeros_like(tensor)

    def differentiate(tensors, inputs, last, out, dout):
        results = backward(*(tensors + inputs + (out[0], out[1], dout[0], dout[1]) + last))
        mask, bias, keep, seed, sinks, prefix, segments, kv_segments, blocks = inputs  # as in `filled`
        first = zeros_like(mask), of(bias, results, d_bias), zeros_like(keep), zeros_like(seed)
        second = of(sinks, results, d_sinks), zeros_like(prefix), zeros_like(segments)
        third = zeros_like(kv_segments), zeros_like(blocks)
        gradients = (results[0], results[1], results[2]) + first + second + third
        for tensor in last:
            gradients = gradients + (zeros_like(tensor),)
        return gradients

    return differentiate


def _tensors(call: Call) -> tuple:
    """Shape, dtype and axes of query, key, value and output, and so of their gradients."""
    axes = LAYOUTS[call.layout].sharding
    shapes = call.shape_query(), call.shape_key(), call.shape_value(), call.shape_output()
    return tuple((call.laid_out(shape), call.dtype, axes) for shape in shapes)


def _axes(name: str, call: Call, shard: Shard | None) -> tuple:
    """Return the split of an optional input. A device holds the stand-in for an absent input whole."""
    given = {}
    if shard is not None:
        given = {"mask": shard.mask_axes, "bias": shard.bias_axes, "block_mask": shard.block_axes}
    axes = {one.name: given.get(one.name, one.axes) for one in OPTIONAL if one.has(call)}
    return axes.get(name) or (None,)


def _input_axes(call: Call, shard: Shard | None) -> tuple:
    return (*[LAYOUTS[call.layout].sharding] * 3, *(_axes(name, call, shard) for name in library.INPUTS))


def entry_point(function: str, kind: tuple, bprop=None, **known: Any) -> ops.Custom:
    """Return a primitive of csrc.

    MindSpore takes primitives of equal attributes for one. PYNATIVE gives them the same outputs, and a graph gives them
    the `bprop` of the first. So an attribute names all that outputs and `bprop` depend on.

    Args:
        kind: this all, besides the function. Its text is the same in every process.
        known: the outputs, if they are known.
    """
    custom = Custom(f"{library.LIBRARY}:{function}", func_type="aot", bprop=bprop, **known)
    # PYNATIVE reads the attributes in every call: a digest is short.
    custom.add_prim_attr("flash_attention_kind", hashlib.sha256(repr(kind).encode()).hexdigest())
    return custom


def _primitive(function: str, call: Call, outputs: list, bprop, shard: Shard | None, input_axes: tuple) -> ops.Custom:
    """Return the primitive of a call, packed or not. Outputs are (shape, dtype, axes) each."""
    shapes, dtypes, axes = zip(*outputs)
    known = {"out_shape": tuple(map(list, shapes)), "out_dtype": tuple(getattr(ms, dtype) for dtype in dtypes)}
    if call.dynamic:
        known = {}  # MindSpore asks the library
    elif shard is not None:
        known["out_shape"] = shard.infer_shapes(_tensors(call)[0][0], list(zip(shapes, axes)))
    if call.kind == "varlen":  # the primitive gets the lengths as tensors
        call = replace(call, storage=Varlen(count=call.varlen.count))
    custom = entry_point(function, (call, shard), bprop, **known)
    if call.dynamic:
        custom.add_prim_attr("reg_op_name", function)
        custom.add_prim_attr("multi_output", True)
    return custom if shard is None else shard.attach(custom, list(input_axes), list(axes))
