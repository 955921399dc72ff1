"""Comparisons that MindSpore gets right for constants of a graph too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mindspore import dtype as mstype
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
        """Set strategies for operands of these axes. The first operand has the axes of the result."""
        shard.glue(self.equal, axes, others)
        shard.glue(self.negate, axes)


class Hides(nn.Cell):
    """Say where a mask hides a key: where it is not 0. No other place says so."""

    def __init__(self):
        super().__init__()
        self.differs = Differs()

    def construct(self, mask):
        if mask.dtype == mstype.bool_:
            return mask
        if mask.dtype == mstype.uint8 or mask.dtype == mstype.float16 or mask.dtype == mstype.float32:
            return self.differs(mask, 0)
        return self.differs(ops.cast(mask, mstype.float32), 0)  # a CPU compares no bfloat16

    def shard(self, shard: Shard, axes: tuple) -> None:
        """Give strategies for a mask of these axes. A cast, which has none, is made on a CPU only."""
        self.differs.shard(shard, axes, ())
