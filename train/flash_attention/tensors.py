"""What a call says of its tensors while a graph compiles, and what differs between a compiled call and PYNATIVE."""

from __future__ import annotations

import functools
import inspect

import numpy as np
from mindspore import Tensor, nn
from mindspore.ops import constexpr

from flash_attention.dropout.seed import draw_tensor, tracing
from flash_attention.problem.checks import check_int
from flash_attention.problem.inputs import UNKNOWN, TensorSpec
from flash_attention.problem.other_names import refuse_unknown

# Decorator of what a graph computes from shapes while it compiles. With `check`, MindSpore warns of each extent that is
# unknown; `tensor_spec` takes them.
compile_time = functools.partial(constexpr, reuse_result=False, check=False)


def spec(tensor):
    """(shape, dtype) of a tensor, None of None; whatever else stays for `tensor_spec` to complain about."""
    if tensor is None:
        return None
    if isinstance(tensor, Tensor):
        return tensor.shape, tensor.dtype
    return tensor


def tensor_spec(name: str, described) -> TensorSpec:
    """What `spec` made of an argument, checked."""
    if not (isinstance(described, tuple) and len(described) == 2 and isinstance(described[0], tuple)):
        raise TypeError(f"{name}: got {type(described).__name__}, allowed is a Tensor")
    shape = tuple(UNKNOWN if size is None else size for size in described[0])
    # MindNLP gives dtypes another name: "mindspore.float32".
    return TensorSpec(shape, str(described[1]).lower().rpartition(".")[2])


@constexpr(reuse_result=False)
def prefix_tensor(prefix):
    """Lengths of prefixes in a tuple or list as an int32 Tensor."""
    for length in prefix:
        check_int("prefix", length, 0)
    return Tensor(np.array(prefix, np.int32))


class _Compiling(nn.Cell):
    """Whether the call is compiled into a graph."""

    def __call__(self):
        return False

    def construct(self):
        return True


compiling = _Compiling()


class _FreshSeed(nn.Cell):
    """A seed for a call that gives none."""

    def __call__(self):
        return _no_seed() if tracing() else draw_tensor()

    def construct(self):
        return _no_seed()


fresh_seed = _FreshSeed()


@constexpr(reuse_result=False)
def refuse_names(function, names):
    """Raises for keywords that a function of this package does not have."""
    import flash_attention

    refuse_unknown(function, names, inspect.signature(getattr(flash_attention, function)).parameters)


@constexpr(reuse_result=False)
def _no_seed():
    raise ValueError(
        "seed: a compiled graph needs it given when dropout_rate is not 0, as int64 Tensor of shape (2,) that changes "
        "from step to step; or use the FlashAttention layer, which keeps its own"
    )
