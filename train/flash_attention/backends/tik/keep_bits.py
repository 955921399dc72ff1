"""Dropout decisions on a device: MindSpore's own bit generator, since the Vector unit cannot draw Philox cheaply."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn
from mindspore.ops.operations import DropoutGenMask

from flash_attention.bridge.seeds import draw
from flash_attention.kernels.tik import layout
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.sharding.shard import Shard


class GeneratedKeepBits(nn.Cell):
    """Draw keep decisions as the kernels take them, `layout.keep_shape`. Each bit is set with the probability to keep.

    The bits follow MindSpore's seeds (`mindspore.set_seed`), not the seed of the call. On a device the same layer drops
    other scores than on a CPU, at the same rate. Every device of a sharded call draws its own.
    """

    def __init__(self, call: KernelProblem, shard: Shard | None = None):
        super().__init__()
        self.bits = (layout.keep_shape(call)[0] * 8,)  # a multiple of 128, which the generator wants
        self.keep = Tensor(np.array(1.0 - call.call.dropout_threshold / 65536, np.float16))
        seeds = (0, 0)
        if shard is not None:
            first, second = draw()
            seeds = first, second + shard.rank
        # Not recomputed: the backward pass must see the bits of the forward pass.
        self.generate = DropoutGenMask(*seeds).add_prim_attr("recompute", False)

    def construct(self, seed, ends_q=None, ends_k=None):
        return self.generate(self.bits, self.keep)
