"""Mixed precision (`to_float`, `mindspore.amp`) in PYNATIVE: MindSpore casts only inputs of operations there."""

from __future__ import annotations

import sys
from pathlib import Path

from mindspore import dtype as mstype
from mindspore import nn, ops
from mindspore._c_expression import MixedPrecisionType

_PACKAGE = Path(__file__).resolve().parents[1]


def keeps_its_code(layer: type) -> type:
    """Mark a class of layers: amp level O1 leaves its cells as they are.

    O1 (`mindspore.rewrite`) writes copies of the class, its decorators included, and of its attributes' classes into a
    module of its own. It replaces the cell by `copy(cell)`; copies of base classes are only inherited from. The module
    also puts the folders of the classes in front of `sys.path`. There our folders would hide other modules.
    """
    if layer.__module__.partition(".")[0] != _PACKAGE.name:
        sys.path[:] = [path for path in sys.path if _PACKAGE not in (Path(path), *Path(path).parents)]
        make = layer.__new__
        layer.__new__ = lambda cls, *cell: cell[0] if cls is layer else make(cls, *cell)  # type: ignore
    return layer


class MixedPrecisionCast(nn.Cell):
    """Cast a tensor as `to_float` of a cell around this one wants it. It is to be an attribute of that cell.

    A compiled graph needs nothing: there MindSpore has cast the inputs of the outer cell already.
    """

    def __call__(self, tensor):
        requested = self.get_mixed_precision_type()
        if tensor is None or requested == MixedPrecisionType.NOTSET:
            return tensor
        names = {"FP16": "float16", "FP32": "float32", "BF16": "bfloat16"}
        return ops.cast(tensor, getattr(mstype, names[requested.name]))

    def construct(self, tensor):
        return tensor


def fix_dtypes(cell: nn.Cell) -> nn.Cell:
    """Set the operations inside `cell` to their given dtypes. Mixed precision of outer cells does not reach them."""
    cell.mixed_precision_type = MixedPrecisionType.NOTSET
    return cell
