"""Comparisons that MindSpore gets right for constants of a graph too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindspore import nn, ops

if TYPE_CHECKING:
    from flash_attention.sharding.shard import Shard


class Differs(nn.Cell):
    """Boolean: where two tensors differ. MindSpore 2.0 computes NotEqual of constants wrongly."""

    def __init__(self):
        super().__init__()
        self.equal, self.negate = ops.Equal(), ops.LogicalNot()

    def construct(self, x, y):
        return self.negate(self.equal(x, y))

    def shard(self, shard: Shard, axes: tuple, others: tuple) -> None:
        """Strategies for operands of these axes, the first of which are those of the result."""
        shard.glue(self.equal, axes, others)
        shard.glue(self.negate, axes)
