"""Reshape and fill tensors of any dtype: on a CPU, compiled graphs do not reshape bfloat16, and nothing fills it."""

from __future__ import annotations

import mindspore as ms
from mindspore import ops

from flash_attention.backends.registry import forced_backend
from flash_attention.bridge.tensors import compiling, widened


def reshaped(tensor, shape):
    """Return the tensor in another shape, by way of float32 if a graph needs it."""
    if not compiling():
        return ops.reshape(tensor, shape)
    return ops.cast(ops.reshape(widened(tensor), shape), tensor.dtype)


def reads_hidden() -> bool:
    """Return True if NaN in hidden keys may reach the output: in the TIK kernels."""
    return ms.get_context("device_target") != "CPU" or forced_backend() == "emulator"


def filled_where(tensor, places, number):
    """Return the tensor with a number at all places, booleans that broadcast to it."""
    return ops.cast(ops.masked_fill(widened(tensor), places, number), tensor.dtype)
