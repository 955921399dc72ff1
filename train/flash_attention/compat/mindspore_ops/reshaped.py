"""Reshape tensors of any dtype, as compiled graphs on a CPU do not reshape bfloat16."""

from __future__ import annotations

from mindspore import dtype as mstype
from mindspore import ops

from flash_attention.bridge.tensors import compiling


def reshaped(tensor, shape):
    """Return the tensor in another shape, by way of float32 if a graph needs it."""
    dtype = tensor.dtype
    if dtype == mstype.float32 or dtype == mstype.float16 or not compiling():
        return ops.reshape(tensor, shape)
    return ops.cast(ops.reshape(ops.cast(tensor, mstype.float32), shape), dtype)
