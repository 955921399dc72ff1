"""Tensors that the shapes decide, as constants of a graph.

In PYNATIVE of MindSpore 2.0 a device has no kernel for an operator whose output shape is data, as that of `ops.zeros`,
`ops.full` and `ops.arange` is.
"""

from __future__ import annotations

import numpy as np
from mindspore import Tensor
from mindspore.ops import constexpr


@constexpr(reuse_result=False)
def filled(shape, number):
    """float32 Tensor of a number; for shapes that are known when a graph is compiled."""
    return Tensor(np.full(shape, number, np.float32))


@constexpr(reuse_result=False)
def numbered(size):
    """int32 (size,): 0, 1, 2, ...; likewise."""
    return Tensor(np.arange(size, dtype=np.int32))
