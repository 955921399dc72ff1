"""Mixed precision (`to_float`, `mindspore.amp`) in PYNATIVE, where MindSpore casts inputs of operations only."""

from __future__ import annotations

from mindspore import dtype as mstype
from mindspore import nn, ops
from mindspore._c_expression import MixedPrecisionType


class AsAsked(nn.Cell):
    """Casts a tensor as `to_float` of a cell around this one asks; to be made an attribute of that cell.

    A compiled graph needs nothing: there MindSpore has cast the inputs of the outer cell already.
    """

    def __call__(self, tensor):
        asked = self.get_mixed_precision_type()
        if tensor is None or asked == MixedPrecisionType.NOTSET:
            return tensor
        names = {"FP16": "float16", "FP32": "float32", "BF16": "bfloat16"}
        return ops.cast(tensor, getattr(mstype, names[asked.name]))

    def construct(self, tensor):
        return tensor


def fix_dtypes(cell: nn.Cell) -> nn.Cell:
    """Makes the operations inside `cell` run on the dtypes they are given, whatever is asked of the cells around it."""
    cell.mixed_precision_type = MixedPrecisionType.NOTSET
    return cell
