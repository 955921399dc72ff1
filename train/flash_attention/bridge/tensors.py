"""Describe a call's tensors while a graph compiles and when PYNATIVE runs."""

from __future__ import annotations

import functools
import operator
from collections import deque
from typing import Callable

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.nn.cell import _pynative_executor
from mindspore.ops import constexpr

from flash_attention.bridge.parameters import EntryCell
from flash_attention.bridge.versions import OLD
from flash_attention.call import Call
from flash_attention.call.checks import INT32, check_int
from flash_attention.call.inputs import TensorSpec
from flash_attention.call.layout import UNKNOWN, Layout
from flash_attention.call.names import Names, called
from flash_attention.call.optional import OPTIONAL
from flash_attention.call.rules import RULE_ARGUMENTS, AttentionRules
from flash_attention.dropout.seed import draw_tensor, tracing

# Decorator of what a graph computes from shapes while it compiles. With `check`, MindSpore warns of each extent that is
# unknown; `tensor_spec` takes them.
compile_time = functools.partial(constexpr, reuse_result=False, check=False)


def _types(value):
    """Return the types in a tuple of tuples: 1 equals True, but if one is allowed the other is not."""
    return tuple(map(_types, value)) if isinstance(value, tuple) else type(value)


def remembered(function):
    """Cache a function by `functools.lru_cache`. Arguments without a hash, as a list in a wrong place, go to the
    function, which refuses them.
    """
    cached = functools.lru_cache(maxsize=512)(lambda types, *arguments: function(*arguments))

    @functools.wraps(function)
    def call(*arguments):
        try:
            hash(arguments)
        except TypeError:
            return function(*arguments)
        return cached(_types(arguments), *arguments)

    call.cache_clear = cached.cache_clear
    return call


def spec(tensor):
    """Return (shape, dtype) of a tensor, and None for None. Other objects pass, and `tensor_spec` refuses them."""
    if tensor is None:
        return None
    if isinstance(tensor, Tensor):
        return tensor.shape, tensor.dtype
    return tensor


def tensor_spec(name: str, described) -> TensorSpec:
    """Return the TensorSpec of an argument that `spec` described, checked."""
    if not (isinstance(described, tuple) and len(described) == 2 and isinstance(described[0], tuple)):
        raise TypeError(f"{name}: got {type(described).__name__}, allowed is a Tensor")
    shape = tuple(UNKNOWN if size is None else size for size in described[0])
    # MindNLP gives dtypes another name: "mindspore.float32".
    return TensorSpec(shape, str(described[1]).lower().rpartition(".")[2])


def as_int32(tensor):
    """Return an integer tensor, or None, in the backends' dtype for positions. Numbers beyond its ends become its ends,
    which no check takes for a position.
    """
    if tensor is None or tensor.dtype == mstype.int32:
        return tensor
    return ops.cast(ops.minimum(ops.maximum(tensor, INT32[0]), INT32[1]), mstype.int32)


def as_ids(tensor):
    """Return integer ids in the backends' dtype. An id that it cannot hold becomes negative, which sees nothing."""
    if tensor.dtype == mstype.int32:
        return tensor
    narrow = ops.cast(tensor, mstype.int32)
    return ops.select(ops.equal(ops.cast(narrow, tensor.dtype), tensor), narrow, ops.zeros_like(narrow) - 1)


def constant(tensor):
    """Return a tensor, or None, that takes part in no gradient.

    MindSpore sums the gradients of a tensor that two calls take, zeros too, but has no sum of booleans, and in graphs
    none of int64 (MindSpore 2.0) and bfloat16. In PYNATIVE of MindSpore 2.6 the process ends if an operator of a device
    takes zeros that a compiled function returned twice.
    """
    return tensor if tensor is None or not recorded() else ops.stop_gradient(tensor)


class SelectInputs(nn.Cell):
    """Select the optional inputs that a call has, in the dtypes of backends. Inputs may be None.

    Inputs without a gradient are constants from here on, see `constant`.
    """

    def __init__(self, call: Call):
        super().__init__()
        #: For each input its place among all, whether it has a gradient, and the dtype in which a backend gets it;
        #: None: as it is. A graph of MindSpore 2.0 cannot compare None with a dtype.
        self.places = tuple(
            (
                *(place, one.gradient(call), one.cast and getattr(mstype, one.cast)),
                *(one.cast == "int32", one.name.endswith("segment_ids")),
            )
            for place, one in enumerate(OPTIONAL)
            if one.has(call)
        )

    def construct(self, inputs):
        present = ()
        for place, differentiated, dtype, integers, ids in self.places:
            tensor = inputs[place] if differentiated else constant(inputs[place])
            if ids:
                tensor = as_ids(tensor)
            elif integers:
                tensor = as_int32(tensor)
            elif dtype is not None and tensor.dtype != dtype:
                tensor = ops.cast(tensor, dtype)
            present = present + (tensor,)
        return present


class NumberCheck(nn.Cell):
    """Look at the numbers in small tensors of integers when a call is made. A graph does not.

    MindSpore runs operators later, and hands their errors to the code that waits next. Reading a tensor that an
    operator made, or has read, waits for all operators under way. So the same tensors are not read again once they
    passed. A tensor that Python has just made is read without waiting.

    Args:
        check: a function of the arrays, None among them, that raises; or None.
        names: the caller's names of the arguments, for errors.
    """

    def __init__(self, check: Callable | None, names: Names = ()):
        super().__init__()
        self.check = (check,)  # wrapped: an attribute of a Cell that is a function counts as its method
        self.names = names
        self.passed: deque = deque(maxlen=16)  # the layers of a network share them; several batches may alternate

    def __call__(self, *tensors):
        if self.check[0] is None:
            return
        # A copy: another thread may add to it meanwhile.
        if any(all(map(operator.is_, tensors, earlier)) for earlier in tuple(self.passed)):
            return
        with called(self.names):
            self.check[0](*map(_read_integers, tensors))
        self.passed.append(tensors)

    def construct(self, *tensors):
        return tensors


def _read_integers(tensor):
    if tensor is None or not hasattr(tensor, "get_bytes"):
        return None if tensor is None else tensor.asnumpy()
    dtype = np.int64 if tensor.dtype == mstype.int64 else np.int32
    return np.frombuffer(tensor.get_bytes(), dtype).reshape(tensor.shape)


class WithSelectedInputs(EntryCell):
    """Call a backend's cell with five tensors and the call's optional inputs. The caller gives all optional inputs of a
    call.

    Args:
        run: the cell.
        call: what it runs.
        check: check of the numbers in the last two tensors and the prefix, or None.
    """

    def __init__(self, run: nn.Cell, call: Call, check: NumberCheck | None = None):
        super().__init__()
        self.run, self.present, self.check = run, SelectInputs(call), check
        self.narrows = call.kind == "paged" and call.paged.padding is None  # behind the check of the numbers that came

    def construct(self, a, b, c, d, e, inputs):
        if self.check is not None:
            self.check(d, e, inputs[5])
        if not OLD:  # it sums integers, but cannot differentiate a `@jit` function around lengths that are stopped
            d, e = constant(d), constant(e)
        if self.narrows:
            d, e = as_int32(d), as_int32(e)
        return self.run(a, b, c, d, e, self.present(inputs))


@compile_time
def read_rules(names, *arguments):
    """Read the rules from arguments of the public functions, in the order of RULE_ARGUMENTS."""
    with called(names):
        return _rules(*arguments)


@remembered
def _rules(*arguments) -> AttentionRules:
    return AttentionRules.from_arguments(**dict(zip(RULE_ARGUMENTS, arguments)))


@compile_time
def rules_of(constants):
    """Return the rules of these `AttentionRules.constants`. A graph passes on constants, and not every object."""
    return _rules_of(*constants)


_rules_of = functools.lru_cache(maxsize=512)(AttentionRules)


class ChangeLayout(nn.Cell):
    """Bring a tensor of one layout into another one.

    Args:
        heads, head_dim: of the tensor; heads -1: whatever it has.
        batch: needed if a layout does not show it.
        widens: goes through float32 for bfloat16, for which compiled graphs on a CPU have none of the operations.
    """

    def __init__(self, given: Layout, wanted: Layout, heads: int, head_dim: int, batch: int = -1, widens: bool = False):
        super().__init__()
        self.apart, self.width = (heads, head_dim), heads * head_dim if heads > 0 else -1
        self.batch, self.widens = batch, widens
        self.same = given == wanted
        self.order = given.order(wanted)
        self.given_rank, self.rank = len(given.axes), len(wanted.axes)
        self.transpose = ops.Transpose()

    def construct(self, tensor):
        if self.same:
            return tensor
        dtype = tensor.dtype
        if self.widens:
            tensor = ops.cast(tensor, mstype.float32)
        rank = self.given_rank
        if self.order is not None:
            if rank < 4:
                tensor = self.of_rank(tensor, 4, rank)
            tensor, rank = self.transpose(tensor, self.order), 4
        if rank != self.rank:
            tensor = self.of_rank(tensor, self.rank, rank)
        return ops.cast(tensor, dtype) if self.widens else tensor

    def of_rank(self, tensor, rank, given_rank):
        """Split or merge heads and head_dim, the last axes of a tensor."""
        if rank == 2:
            return ops.reshape(tensor, (-1, self.width))
        first = (self.batch, -1) if given_rank == 2 else tensor.shape[:2]
        return ops.reshape(tensor, first + (self.apart if rank == 4 else (self.width,)))


def read_specs(names: tuple, described: tuple) -> tuple:
    """Return the TensorSpecs of arguments that `spec` described, checked. None stays None."""
    return tuple(None if one is None else tensor_spec(name, one) for name, one in zip(names, described))


@constexpr(reuse_result=False)
def int_tensor(name, numbers, low, high=None):
    """Return a tuple or list of numbers, from `low` to `high`, as an int32 Tensor."""
    for number in numbers:
        check_int(name, number, low, high)
    return Tensor(np.array(numbers, np.int32))


def _by_form(in_graph, in_python):
    """Return a function: `in_graph` when a graph is compiled, `in_python` when Python calls it.

    It is a primitive: a Cell must not be made at import, since MindSpore 2.5 takes no other device from then on.
    """
    primitive = constexpr(reuse_result=False)(in_graph)
    primitive.__class__ = type(in_graph.__name__, (type(primitive),), {"__call__": lambda _, *given: in_python(*given)})
    return primitive


def _compiled():
    return True


compiling = _by_form(_compiled, lambda: False)
# Whether MindSpore may differentiate the operations that follow. PYNATIVE need not run what stops a gradient otherwise.
recorded = _by_form(_compiled, lambda: _pynative_executor.grad_flag())


def _no_seed(names):
    with called(names):
        raise ValueError(
            "dropout_rate: a compiled graph needs a seed beside it, an int64 Tensor of shape (2,) that changes from "
            "step to step; functions of this package take it, and the FlashAttention layer keeps its own"
        )


fresh_seed = _by_form(_no_seed, lambda names: _no_seed(names) if tracing() else draw_tensor())
