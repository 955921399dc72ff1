"""What position alone adds to the scores, as MindSpore operations, for backends composed of them."""

from __future__ import annotations

import numpy as np
from mindspore import Tensor, nn, ops

from flash_attention.problem import AttentionProblem, alibi_slopes


class OutOfBand(nn.Cell):
    """Boolean (1, 1, seq_q, seq_k), True where position hides the key."""

    def __init__(self, problem: AttentionProblem):
        super().__init__()
        bounds = np.array(list(problem.band.rows()), np.int32).reshape(1, 1, problem.seq_q, 2)
        self.lo, self.hi = Tensor(bounds[..., :1].copy()), Tensor(bounds[..., 1:].copy())
        self.column = Tensor(np.arange(problem.seq_k, dtype=np.int32).reshape(1, 1, 1, -1))

    def construct(self):
        return ops.logical_or(self.column < self.lo, self.column >= self.hi)


class ComputedAlibi(nn.Cell):
    """float32 (1, heads, seq_q, seq_k): -slope * |position of the query - key|. Distances are exact below 2**24."""

    def __init__(self, problem: AttentionProblem):
        super().__init__()
        self.slopes = Tensor(-np.array(alibi_slopes(problem), np.float32).reshape(1, -1, 1, 1))
        self.position = Tensor((np.arange(problem.seq_q, dtype=np.float32) + problem.offset).reshape(1, 1, -1, 1))
        self.column = Tensor(np.arange(problem.seq_k, dtype=np.float32).reshape(1, 1, 1, -1))

    def construct(self):
        return self.slopes * ops.abs(self.position - self.column)
