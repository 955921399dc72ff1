"""Tensors that the shapes decide, as constants of a graph.

In PYNATIVE of MindSpore 2.0 a device has no kernel for an operator whose output shape is data, as for `ops.zeros`,
`ops.full` and `ops.arange`.
"""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops
from mindspore.ops import constexpr

from flash_attention.bridge.versions import OLD


def tensor_of(array: np.ndarray) -> Tensor:
    """Return the array as a Tensor. MindSpore 2.0 makes a Tensor without elements only by slicing, and in PYNATIVE
    only.
    """
    if array.size > 0 or not OLD:
        return Tensor(array)
    if ms.get_context("mode") == ms.GRAPH_MODE:
        raise ValueError(f"query: got sizes that make a tensor {array.shape}, which no graph of MindSpore 2.0 holds")
    whole = Tensor(np.zeros(np.maximum(array.shape, 1), array.dtype))
    return whole[tuple(slice(0, size) for size in array.shape)]


@constexpr(reuse_result=False)
def filled(shape, number):
    """Return a float32 Tensor filled with a number. Its shape is known when a graph is compiled."""
    return tensor_of(np.full(shape, number, np.float32))


@constexpr(reuse_result=False)
def numbered(size):
    """Return 0, 1, 2, ... as int32 (size,). The size is known when a graph is compiled."""
    return tensor_of(np.arange(size, dtype=np.int32))


def unfolded(constant, tensor):
    """Return a constant of a graph that is no constant any more. `tensor` is any tensor that is none.

    MindSpore 2.0 joins two constant factors of a product to one, and loses the shape of the larger one.
    """
    return ops.depend(constant, tensor)
