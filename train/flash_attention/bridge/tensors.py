"""Describe a call's tensors while a graph compiles and when PYNATIVE runs."""

from __future__ import annotations

import functools
import sys

import numpy as np
from mindspore import Tensor, ops
from mindspore import dtype as mstype
from mindspore.nn.cell import _pynative_executor
from mindspore.ops import constexpr

from flash_attention.bridge.seeds import draw_tensor, tracing
from flash_attention.bridge.versions import OLD
from flash_attention.call.checks import INT32, check_int
from flash_attention.call.inputs import TensorSpec
from flash_attention.call.layout import UNKNOWN
from flash_attention.call.names import called

# Decorator of what a graph computes from shapes while it compiles. With `check`, MindSpore warns of each extent that is
# unknown; `tensor_spec` takes them.
compile_time = functools.partial(constexpr, reuse_result=False, check=False)
# `jit(capture_mode="bytecode")` compiles Python, what prepares a call too, and the process may end there. Files that it
# skips run as in PYNATIVE. The rules are there until the first such function is made.
for _name in ("mindspore.graph._utils.pijit_context", "mindspore.common._pijit_context"):
    _skipped = getattr(sys.modules.get(_name), "SKIP_RULES", {})
    if "third_party" in _skipped:
        _skipped["third_party"] += (__name__.partition(".")[0],)
        break


def _types(value):
    """Return the types in a tuple of tuples: 1 equals True, but if one is allowed the other is not."""
    return tuple(map(_types, value)) if isinstance(value, tuple) else type(value)


class Exact(tuple):
    """Compare the types of members too, also inside: 1 equals True, but if one is allowed the other is not."""

    def __eq__(self, other: object) -> bool:
        return super().__eq__(other) and _types(self) == _types(other)

    __hash__ = tuple.__hash__


def cached(function):
    """Cache a function by `functools.lru_cache`, but not for arguments without a hash.

    Such a one, as a window in a list, may change while the cache holds it.
    """
    found = functools.lru_cache(maxsize=512)(function)

    @functools.wraps(function)
    def call(*arguments):
        try:
            return found(*arguments)
        except TypeError:  # of the missing hash, or the function's own, which it raises again
            pass
        return function(*arguments)

    call.cache_clear = found.cache_clear
    return call


def remembered(function):
    """Cache a function by the exact arguments, as `cached` does."""
    of_exact = cached(lambda arguments: function(*arguments))

    @functools.wraps(function)
    def call(*arguments):
        return of_exact(Exact(arguments))

    call.cache_clear = of_exact.cache_clear
    return call


# Arguments that may be something else than a Tensor, which was looked for before.
_BESIDE = {"block_mask": " or a BlockMask", "prefix": " or a tuple of integers"}
if OLD:
    # A graph knows the class of no object that it reads from an attribute or a global variable.
    _BESIDE["block_mask"] += (
        "; in graphs of this MindSpore functions take Tensor(mask.tiles), and the layer a BlockMask when it is made"
    )


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
        unknown = isinstance(described, tuple) and described == (None, None)  # attributes of it in a graph of 2.0
        came = "an object" if unknown else type(described).__name__
        raise TypeError(f"{name}: got {came}, allowed is a Tensor{_BESIDE.get(name, '')}")
    shape = tuple(UNKNOWN if size is None else size for size in described[0])
    # MindNLP gives dtypes another name: "mindspore.float32".
    return TensorSpec(shape, str(described[1]).lower().rpartition(".")[2])


def lengths_spec(name: str, described) -> TensorSpec | tuple | list:
    """Return the TensorSpec of an argument that `spec` described, checked. A tuple or list of lengths stays."""
    lengths = isinstance(described, (tuple, list))
    if lengths and not (len(described) == 2 and isinstance(described[0], tuple)):
        return Exact(described)
    return tensor_spec(name, described)


def widened(tensor):
    """Return bfloat16 in float32: a CPU has few operations for it, and its compiled graphs fewer."""
    if tensor.dtype == mstype.float32 or tensor.dtype == mstype.float16:
        return tensor
    return ops.cast(tensor, mstype.float32)


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


def read_integers(tensor):
    """Return the numbers of an integer tensor, or None, without waiting for others' reads."""
    if tensor is None or not hasattr(tensor, "get_bytes"):
        return None if tensor is None else tensor.asnumpy()
    dtype = np.int64 if tensor.dtype == mstype.int64 else np.int32
    return np.frombuffer(tensor.get_bytes(), dtype).reshape(tensor.shape)


def constant_lengths(tensor):
    """Return lengths as `constant` does. MindSpore 2.0 sums integers, but cannot differentiate a `@jit` function around
    lengths that are stopped.
    """
    return tensor if OLD else constant(tensor)


def address(tensor) -> int | None:
    """Return where a tensor lies. MindSpore 2.0 does not say it: None."""
    return tensor.data_ptr() if hasattr(tensor, "data_ptr") else None


def read_specs(names: tuple, described: tuple) -> tuple:
    """Return the TensorSpecs of arguments that `spec` described, checked. None stays None."""
    return tuple(None if one is None else tensor_spec(name, one) for name, one in zip(names, described))


@constexpr(reuse_result=False)
def int_tensor(name, numbers, low, high=None):
    """Return a tuple or list of numbers, from `low` to `high`, as an int32 Tensor."""
    for number in numbers:
        check_int(name, number, low, high)
    return Tensor(np.array(numbers, np.int32))


@constexpr(reuse_result=False)
def refuse(message):
    """Raise a ValueError, in a graph while it compiles."""
    raise ValueError(message)


def _by_form(in_graph, in_python):
    """Return a function: `in_graph` when a graph is compiled, `in_python` when Python calls it.

    It is a primitive: a Cell must not be made at import, since MindSpore 2.5 takes no other device from then on.
    """
    primitive = constexpr(reuse_result=False)(in_graph)
    primitive.__class__ = type(in_graph.__name__, (type(primitive),), {"__call__": lambda _, *given: in_python(*given)})
    return primitive


def recording() -> bool:
    """Return True if PYNATIVE differentiates the operations that follow."""
    return _pynative_executor.grad_flag()


def _compiled():
    return True


compiling = _by_form(_compiled, lambda: False)
# Whether MindSpore may differentiate the operations that follow. PYNATIVE need not run what stops a gradient otherwise.
recorded = _by_form(_compiled, recording)


def _untraced(what):
    if tracing():
        raise RuntimeError(
            f"{what}: called in a function of jit(capture_mode='trace'), which MindSpore runs twice at first, with its "
            "writes to Parameters; allowed are the other modes of capture, GRAPH mode and PYNATIVE"
        )


# Refuse what counts in a Parameter, in functions that are being traced.
refuse_trace = _by_form(lambda what: True, _untraced)


def _no_seed(names):
    with called(names):
        raise ValueError(
            "dropout_rate: a compiled graph needs a seed beside it, an int64 Tensor of shape (2,) that changes from "
            "step to step; functions of this package take it, and the FlashAttention layer keeps its own"
        )


fresh_seed = _by_form(_no_seed, lambda names: _no_seed(names) if tracing() else draw_tensor())
