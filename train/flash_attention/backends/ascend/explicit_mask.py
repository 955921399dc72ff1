"""Prefixes and segment ids for the TIK operators: an explicit mask, made on the device by MindSpore's own operations.

They are data of the call, and tiles of keys are chosen when a kernel is built: so no tile is skipped for them, and the
mask takes 2 bytes a score and batch item (and head, where the caller's mask varies by head).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.comparison import Differs
from flash_attention.problem import AttentionProblem
from flash_attention.sharding.shard import Shard

_ALL = (None, None, None, None)
_BATCH = ("dp", None, None, None)


def with_mask(shard: Shard | None, problem: AttentionProblem) -> Shard | None:
    """A shard whose mask is that of the kernels."""
    if shard is None or not (problem.prefix or problem.segments):
        return shard
    heads = None if shard.mask_axes is None else shard.mask_axes[1]
    return replace(shard, mask_axes=("dp", heads, None, None))


class ExplicitMask(nn.Cell):
    """float16 (B, H or 1, Sq, Sk), 1 where the mask of the call, the prefix or the segments hide a score.

    Args:
        problem: has a prefix or segments.
        shard: of the call, with the axes of its own mask.
    """

    def __init__(self, problem: AttentionProblem, shard: Shard | None):
        super().__init__()
        self.prefixed, self.segmented = problem.prefix, problem.segments
        self.masked = problem.mask_shape is not None
        self.out_of_band = Tensor(~problem.band.dense()[None, None])
        self.columns = Tensor(np.arange(problem.seq_k, dtype=np.int32).reshape(1, 1, 1, -1))
        self.behind, self.late = ops.GreaterEqual(), ops.LogicalAnd()
        self.differ, self.negative, self.apart = Differs(), ops.Less(), ops.LogicalOr()
        self.either, self.hides, self.given = ops.LogicalOr(), Differs(), ops.LogicalOr()
        if shard is not None:
            shard.glue(self.behind, _ALL, _BATCH)
            shard.glue(self.late, _ALL, _BATCH)
            self.differ.shard(shard, _BATCH, _BATCH)
            shard.glue(self.negative, _BATCH, ())
            shard.glue(self.apart, _BATCH, _BATCH)
            shard.glue(self.either, _BATCH, _BATCH)
            if self.masked:
                self.hides.shard(shard, shard.mask_axes, ())
                shard.glue(self.given, shard.mask_axes, _BATCH)

    def construct(self, mask, prefix, segment_ids, kv_segment_ids):
        hidden = None
        if self.prefixed:
            hidden = self.late(self.out_of_band, self.behind(self.columns, ops.reshape(prefix, (-1, 1, 1, 1))))
        if self.segmented:
            batch, seq_q = segment_ids.shape
            own = ops.reshape(segment_ids, (batch, 1, seq_q, 1))
            other = ops.reshape(kv_segment_ids, (batch, 1, 1, kv_segment_ids.shape[1]))
            apart = self.apart(self.differ(own, other), self.negative(own, 0))
            hidden = apart if hidden is None else self.either(hidden, apart)
        if self.masked:
            hidden = self.given(self.hides(ops.cast(mask, mstype.float16), 0.0), hidden)
        return ops.cast(hidden, mstype.float16)
