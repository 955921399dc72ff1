"""Compare and hide in forms that every MindSpore version computes and differentiates rightly."""

from __future__ import annotations

from typing import Any

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.bridge.versions import OLD

_INFINITY = float("inf")


class Differs(nn.Cell):
    """Tell where two tensors differ, as a boolean. MindSpore 2.0 computes NotEqual of constants wrongly."""

    def __init__(self):
        super().__init__()
        self.equal, self.negate = ops.Equal(), ops.LogicalNot()

    def construct(self, x, y):
        return self.negate(self.equal(x, y))

    def shard(self, shard: Any, axes: tuple, others: tuple) -> None:
        """Set strategies for operands of these axes. The first operand has the axes of the result."""
        shard.glue(self.equal, axes, others)
        shard.glue(self.negate, axes)


class Hides(nn.Cell):
    """Say where a mask hides a key: it is not 0 there. This is the only definition."""

    def __init__(self):
        super().__init__()
        self.differs = Differs()

    def construct(self, mask):
        if mask.dtype == mstype.bool_:
            return mask
        if mask.dtype == mstype.uint8 or mask.dtype == mstype.float16 or mask.dtype == mstype.float32:
            return self.differs(mask, 0)
        return self.differs(ops.cast(mask, mstype.float32), 0)  # a CPU compares no bfloat16

    def shard(self, shard: Any, axes: tuple) -> None:
        """Give strategies for a mask of these axes. A cast, which has none, is made on a CPU only."""
        self.differs.shard(shard, axes, ())


class HideScores(nn.Cell):
    """Set hidden scores to -inf.

    The gradient of masked_fill is 0 * NaN if a row of NaN is hidden (MindSpore 2.0, 2.7). In MindSpore 2.0 the
    gradient of `where` fails for a mask that is an input. With sizes unknown, neither `where` nor `select` compiles.
    """

    def __init__(self, dynamic: bool):
        super().__init__()
        self.nothing = Tensor(-_INFINITY, mstype.float32)
        self.by_where, self.by_select = not OLD, OLD and not dynamic

    def construct(self, scores, hidden):
        if self.by_where:
            return ops.where(hidden, self.nothing, scores)
        if self.by_select:
            zeros = ops.zeros_like(scores)
            everywhere = ops.cast(ops.cast(hidden, mstype.float32) + zeros, mstype.bool_)
            return ops.select(everywhere, zeros - _INFINITY, scores)
        return ops.masked_fill(scores, hidden, -_INFINITY)


class DropHidden(nn.Cell):
    """Set the probabilities of hidden keys to 0.

    In MindSpore 2.0 a mask that is an input of the graph may have one kind of operation behind it, as in `HideScores`.
    The gradients that two kinds give it differ in dtype, and their sum fails.
    """

    def __init__(self, dynamic: bool):
        super().__init__()
        self.by_select = OLD and not dynamic

    def construct(self, probability, hidden):
        if self.by_select:
            zeros = ops.zeros_like(probability)
            everywhere = ops.cast(ops.cast(hidden, mstype.float32) + zeros, mstype.bool_)
            return ops.select(everywhere, zeros, probability)
        return ops.masked_fill(probability, hidden, 0.0)
