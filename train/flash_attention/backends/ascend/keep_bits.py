"""Dropout decisions on a device: MindSpore's own bit generator, since the Vector unit cannot draw Philox cheaply."""

from __future__ import annotations

import math

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore.ops.operations import DropoutGenMask

from flash_attention.problem import AttentionProblem

_UNIT = 128  # DropoutGenMask gives bits by the 128


class GeneratedKeepBits(nn.Cell):
    """uint8 (B, H, Sq, ceil(Sk / 8)), each bit set with the probability to keep.

    The bits follow MindSpore's seeds (`mindspore.set_seed`), not the seed of the call: on a device the same layer drops
    other scores than on a CPU, at the same rate.
    """

    def __init__(self, problem: AttentionProblem):
        super().__init__()
        self.shape = problem.shape_keep_bits()
        self.bytes = math.prod(self.shape)
        self.bits = (-(-self.bytes * 8 // _UNIT) * _UNIT,)
        self.keep = Tensor(np.array(1.0 - problem.dropout_threshold / 65536, np.float16))
        self.generate = DropoutGenMask()

    def construct(self, seed):
        return ops.reshape(self.generate(self.bits, self.keep)[: self.bytes], self.shape)
