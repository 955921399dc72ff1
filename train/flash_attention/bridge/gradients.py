"""Give attention its derivative, and refuse second derivatives.

A Cell with a `bprop`, or a primitive with one, is the usual way. MindSpore gets both wrong in places, mostly without a
word, as tests/train/flash_attention/st/mindspore_faults shows without this package. MindSpore 2.7 to 2.10:

* `@jit` functions that PYNATIVE differentiates: the `bprop` of a Cell that is called several times receives as `out`
  what another of its calls returned.

MindSpore 2.0:

* PYNATIVE: in every later call, the `bprop` of a Cell receives as `out` the result of its first call. Operations behind
  such a Cell do not know its result as the result of an operation. They do know the result of a reshape.
* PYNATIVE, once a constant of the differentiated function is another tensor than before: operations run as if their
  shapes were unknown. `Custom` primitives do not support that. In a compiled graph they run with known shapes.
* `@jit` functions that PYNATIVE differentiates: the `bprop` of a Cell is lost. The `bprop` of a primitive gets zeros
  for all values from the forward pass.
"""

from __future__ import annotations

import functools
import itertools
from typing import Callable

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.ops import constexpr

from flash_attention.bridge.parameters import result
from flash_attention.bridge.tensors import compiling
from flash_attention.bridge.versions import OLD, VERSION

if OLD:
    from mindspore.nn.cell import _pynative_executor


@constexpr(reuse_result=False)
def refuse_second_derivative(backend: str):
    """Raise an error, in the `bprop` of a Cell that computes first derivatives."""
    Tensor(0).asnumpy()  # waits for operations under way, or the exception may crash PYNATIVE (MindSpore 2.10)
    raise NotImplementedError(
        f"attention: backend {backend!r} has neither second derivatives here nor forward mode (jvp, jacfwd), which "
        "MindSpore computes by them; allowed is backend 'math', for second derivatives in a compiled graph (GRAPH mode "
        "or mindspore.jit)"
    )


@constexpr(reuse_result=False)
def refuse_gradient(function: str):
    """Raise an error, in the `bprop` of a Cell that has no gradient."""
    Tensor(0).asnumpy()  # as in refuse_second_derivative
    raise NotImplementedError(f"{function}: it has no gradient, it is for inference; allowed is flash_attention")


class Differentiable(nn.Cell):
    """Attention with its first derivatives, in the form that this MindSpore gets right.

        output, logsumexp = cell(query, key, value, others)

    `others` is a tuple of `count` tensors of any meaning, at most nine.

    Args:
        forward: a Cell, forward(query, key, value, *others) -> (output, logsumexp).
        backward: makes a Cell when a gradient is asked for, cell(query, key, value, output, logsumexp, d_output,
            d_logsumexp, *others) -> (d_query, d_key, d_value, *d_others). It raises if there is none.
        backend: its name in the message that refuses second derivatives.
        count: of the others.
        primitive: whether forward is a primitive with a `bprop` of its own, which then serves wherever that is right.
    """

    def __init__(
        self, forward: nn.Cell, backward: Callable[[], nn.Cell], backend: str, count: int, primitive: bool = False
    ):
        super().__init__()
        self.forward, self.described, self.primitive = forward, f"backend {backend!r}", primitive
        made = _when_compiled(backward)
        self.whole, self.parts = _Whole(made, backend, count, forward), _Parts(made, backend, count)
        self.results = NotDifferentiated(forward) if OLD else None
        # A `bprop` takes no tuple in graphs of 2.0 and in PYNATIVE, and no variable number of inputs.
        self.padding = (Tensor([0.0]),) * (9 - count)

    def __call__(self, query, key, value, others):
        # PYNATIVE calls a cell and so lands here; a compiled graph contains `construct` instead.
        if OLD and _pynative_executor.grad_flag():
            results = self.results(query, key, value, *others)
            output, logsumexp = self.parts(query, key, value, *others, *self.padding, *results)
            return _known(output), _known(logsumexp)
        if OLD or self.primitive:
            return self.forward(query, key, value, *others)
        return self.whole(query, key, value, *others, *self.padding)

    def construct(self, query, key, value, others):
        refuse_old_jit(self.described)
        if self.primitive:
            return self.forward(query, key, value, *others)
        if not _in_jit():
            return self.whole(query, key, value, *(others + self.padding))
        stopped_inputs = _all_stopped((query, key, value) + others)
        results = _all_stopped(self.forward(*stopped_inputs))
        return self.parts(query, key, value, *(others + self.padding + results))


@constexpr(reuse_result=False)
def _in_jit() -> bool:
    """Return True if a `@jit` function that PYNATIVE may differentiate is being compiled."""
    return ms.get_context("mode") == ms.PYNATIVE_MODE and (not OLD or _pynative_executor.grad_flag())


class UnlessRecorded(nn.Cell):
    """Run a cell of primitives with a `bprop`, or composed operations in its place. MindSpore 2.0 differentiates such
    primitives wrongly in PYNATIVE and its @jit functions. There another cell takes the same inputs, of rotary
    embedding, and has operations with derivatives of their own.
    """

    def __init__(self, cell: nn.Cell, composed: nn.Cell):
        super().__init__()
        self.cell, self.composed = cell, composed

    def __call__(self, x, cos, sin, offsets):
        # As in Differentiable.
        if OLD and _pynative_executor.grad_flag():
            return self.composed(x, cos, sin, offsets)
        return self.cell(x, cos, sin, offsets)

    def construct(self, x, cos, sin, offsets):
        if OLD and _in_jit():
            return self.composed(x, cos, sin, offsets)
        return self.cell(x, cos, sin, offsets)


def refuse_old_jit(what: str):
    """Raise an error if MindSpore 2.0 compiles a `@jit` function that PYNATIVE differentiates."""
    if OLD and compiling() and _in_jit():
        _refuse_jit(what)


@constexpr(reuse_result=False)
def _refuse_jit(what: str):
    raise RuntimeError(
        f"@jit: {what} in a function that PYNATIVE differentiates, which MindSpore 2.0 does wrongly; "
        "allowed are GRAPH mode, the gradient taken inside the @jit function, and no @jit"
    )


_NUMBERS = itertools.count()


def _when_compiled(make: Callable[[], nn.Cell]) -> ops.Primitive:
    """Return a primitive without inputs. It gives a Cell that calls the Cell of `make`, which is made once."""

    @functools.cache
    def made() -> nn.Cell:
        Tensor(0).asnumpy()  # as in refuse_second_derivative
        return _OfTuple(make())

    # MindSpore takes primitives of equal attributes for one.
    return constexpr(reuse_result=False)(made).add_prim_attr("number", next(_NUMBERS))


class _OfTuple(nn.Cell):
    """Call a Cell with the members of a tuple.

    MindSpore 2.10 calls no Cell of variable inputs that is made inside a `bprop` ("no manager for this func graph").
    """

    def __init__(self, run: nn.Cell):
        super().__init__()
        self.run = run

    def construct(self, given):
        return self.run(*given)


class _Gradients(nn.Cell):
    """Hold the backward pass of a Cell with nine other inputs. The first `count` belong to the call."""

    def __init__(self, backward: ops.Primitive, backend: str, count: int):
        super().__init__()
        self.backward, self.count = backward, count
        self.first_derivatives = FirstDerivatives(backend)


class _Whole(_Gradients):
    """Differentiate the usual way: results and inputs belong to the Cell's own call."""

    def __init__(self, backward: ops.Primitive, backend: str, count: int, forward: nn.Cell):
        super().__init__(backward, backend, count)
        self.forward = forward

    def construct(self, query, key, value, a, b, c, d, e, f, g, h, i):
        others = (a, b, c, d, e, f, g, h, i)
        return self.forward(query, key, value, *others[: self.count])

    def bprop(self, query, key, value, a, b, c, d, e, f, g, h, i, out, dout):
        others = (a, b, c, d, e, f, g, h, i)
        backward = self.backward()
        gradients = backward((query, key, value, out[0], out[1], dout[0], dout[1]) + others[: self.count])
        first = self.first_derivatives(gradients[0], gradients[1], gradients[2], query, key, value)
        return first + gradients[3:] + zeros_like(others[self.count :])


class _Parts(_Gradients):
    """Hand on results, and give the inputs behind them their gradient. The backward pass takes nothing from `out`."""

    def construct(self, query, key, value, a, b, c, d, e, f, g, h, i, output, logsumexp):
        return output, logsumexp

    def bprop(self, query, key, value, a, b, c, d, e, f, g, h, i, output, logsumexp, out, dout):
        others = (a, b, c, d, e, f, g, h, i)
        backward = self.backward()
        gradients = backward((query, key, value, output, logsumexp, dout[0], dout[1]) + others[: self.count])
        d_query, d_key, d_value = _as_rows(gradients[0]), _as_rows(gradients[1]), _as_rows(gradients[2])
        first = self.first_derivatives(d_query, d_key, d_value, query, key, value)
        return first + gradients[3:] + zeros_like(others[self.count :] + (output, logsumexp))


class NotDifferentiated(nn.Cell):
    """A Cell of tensors, or a primitive, that is not differentiated.

    In PYNATIVE of MindSpore 2.0 it runs in a graph of its own, in which shapes are known, and gives rows.
    """

    def __init__(self, run):
        super().__init__()
        self.run = run

        @ms.jit
        def compiled(*inputs):
            return run(*inputs)

        self.functions = (compiled,)  # an attribute of a Cell that is a function counts as its method

    def __call__(self, *inputs):
        if not OLD or not _pynative_executor.grad_flag():
            return self.run(*inputs)
        _pynative_executor.set_grad_flag(False)
        try:
            results = self.functions[0](*map(result, inputs))
            results = tuple(map(_as_rows, results)) if isinstance(results, tuple) else _as_rows(results)
        finally:
            _pynative_executor.set_grad_flag(True)
        return tuple(map(_known, results)) if isinstance(results, tuple) else _known(results)

    def construct(self, *inputs):
        return self.run(*inputs)


def _known(tensor):
    """Return the tensor as the result of an operation. MindSpore 2.0 follows such a result from call to call."""
    return ops.reshape(tensor, tensor.shape)


def _all_stopped(tensors):
    """Return the tensors as constants: their derivatives are not wanted."""
    result = ()
    for tensor in tensors:
        result = result + (ops.stop_gradient(tensor),)
    return result


def _as_rows(tensor):
    """Return the tensor without the format in which a device may keep it.

    Operations that MindSpore 2.0 runs as if shapes were unknown read fractals as rows, or refuse them.
    """
    return ops.reshape(ops.reshape(tensor, (-1,)), tensor.shape)


def zeros_like(tensors):
    """Return a tuple of zeros for a tuple of tensors."""
    zeros = ()
    for tensor in tensors:
        zeros = zeros + (ops.zeros_like(tensor),)
    return zeros


class FirstDerivatives(nn.Cell):
    """Hand on the gradients, and refuse to differentiate them once more.

    The gradients handed on depend on the inputs too, because MindSpore takes some gradients for constants.
    """

    def __init__(self, backend: str):
        super().__init__()
        self.backend = backend

    def construct(self, d_query, d_key, d_value, query, key, value):
        return d_query, d_key, d_value

    def bprop(self, d_query, d_key, d_value, query, key, value, out, dout):
        refuse_second_derivative(self.backend)
        return dout[0], dout[1], dout[2], query, key, value


def stopped(tensor):
    """Return the tensor as a constant: its derivative is not wanted.

    MindSpore 2.7 cannot differentiate a Cell that stops something and is recomputed: there it is the tensor itself.
    """
    return tensor if VERSION[1] == 7 else ops.stop_gradient(tensor)


def without_influence(tensor):
    """Return a tensor that influences no result. Its derivative is zero, computed or not.

    MindSpore 2.0 cannot differentiate around what is stopped in a `@jit` function once PYNATIVE runs its operations as
    if their shapes were unknown.
    """
    return tensor if OLD else stopped(tensor)


class FirstDerivativeOnlyInPynative(nn.Cell):
    """Hand on query, key and value, and refuse second derivatives in PYNATIVE.

    There the second derivatives of a product of matrices are zeros (MindSpore 2.10); MindSpore 2.0 refuses by itself.
    """

    def __init__(self, backend: str):
        super().__init__()
        self.guard = None if OLD else _Guard(backend)

    def __call__(self, query, key, value):
        # As in Differentiable.
        return (query, key, value) if self.guard is None else self.guard(query, key, value)

    def construct(self, query, key, value):
        return query, key, value


class _Guard(nn.Cell):
    """Return three tensors as results of operations. MindSpore 2.10 makes a view of an input that a Cell with a `bprop`
    returns itself. Another thread still launches operations meanwhile, and now and then the process aborts.
    """

    def __init__(self, backend: str):
        super().__init__()
        self.first_derivatives = FirstDerivatives(backend)

    def construct(self, query, key, value):
        return _known(query), _known(key), _known(value)

    def bprop(self, query, key, value, out, dout):
        return self.first_derivatives(dout[0], dout[1], dout[2], query, key, value)
