"""Mixed precision (`to_float`, `mindspore.amp`) of the layer.

MindSpore casts inputs of operations in PYNATIVE, and inputs of Cells in graphs (`to_float`, levels O2 and O3). Level O1
and white lists rewrite code, which leaves this package's code alone. Level "auto" casts inputs of operations by name.
The layer then casts its inputs as a MatMul would.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TypeVar

from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore._c_expression import MixedPrecisionType

from flash_attention.bridge.constants import filled

try:
    from mindspore._c_expression.amp import get_curr_amp_strategy
except ImportError:  # a MindSpore without level "auto"
    get_curr_amp_strategy = None

_CASTS_BY_NAME, _PRODUCT = get_curr_amp_strategy is not None, ops.MatMul()
_Layer = TypeVar("_Layer", bound=type)
_PACKAGE = Path(__file__).resolve().parents[1]


def keeps_its_code(layer: _Layer) -> _Layer:
    """Mark a class of layers: amp level O1 leaves its cells as they are.

    O1 (`mindspore.rewrite`) writes copies of the class, its decorators included, and of its attributes' classes into a
    module of its own. It replaces the cell by `copy(cell)`; copies of base classes are only inherited from. The module
    also puts the folders of the classes in front of `sys.path`. There our folders would hide other modules. The cell's
    `MixedPrecisionCast` is told the dtype if the white list has the layer, or a product of matrices.
    """
    if layer.__module__.partition(".")[0] != _PACKAGE.name:
        sys.path[:] = [path for path in sys.path if _PACKAGE not in (Path(path), *Path(path).parents)]
        make = layer.__new__

        def of_copy(cls, *cell):
            for one in cell:
                one.cast.rewritten = _dtype_of_rewriting(one) or one.cast.rewritten
            return cell[0] if cls is layer else make(cls, *cell)

        layer.__new__ = of_copy  # type: ignore
    return layer


def _dtype_of_rewriting(cell: nn.Cell):
    """Return the dtype to which the rewriting under way casts this cell, or None."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "_auto_mixed_precision_rewrite":
        frame = frame.f_back  # type: ignore
    if frame is None or any(getattr(cell, flag, False) for flag in ("fp16", "fp32", "bf16")):
        return None
    white, black = (frame.f_locals[name] for name in ("white_list", "black_list"))
    classes = type(cell).__mro__
    if white is not None:
        named = any(one in white for one in (*classes, ops.MatMul, ops.BatchMatMul))
    else:
        named = not any(one in black for one in classes)
    return frame.f_locals["dtype"] if named else None


class MixedPrecisionCast(nn.Cell):
    """Cast a tensor as mixed precision of a cell around this one wants it. It is to be an attribute of that cell."""

    def __init__(self):
        super().__init__()
        self.rewritten = None  # the dtype of level O1 or a white list, which also casts results to float32

    def __call__(self, tensor):
        if not isinstance(tensor, Tensor):
            return tensor
        requested = self.get_mixed_precision_type()
        if requested != MixedPrecisionType.NOTSET:
            names = {"FP16": "float16", "FP32": "float32", "BF16": "bfloat16"}
            return ops.cast(tensor, getattr(mstype, names[requested.name]))
        if self.rewritten is not None:
            return ops.cast(tensor, self.rewritten)
        if get_curr_amp_strategy is not None and get_curr_amp_strategy() is not None:
            return self.as_product(tensor)
        return tensor

    def construct(self, tensor):
        # MindSpore has cast the inputs of the outer cell for `to_float` already.
        if tensor is None:
            return tensor
        if self.rewritten is not None:
            return ops.cast(tensor, self.rewritten)
        return self.as_product(tensor) if _CASTS_BY_NAME else tensor

    def as_product(self, tensor):
        """Cast a float32 tensor as level "auto" casts the inputs of a MatMul."""
        if not isinstance(tensor, Tensor):  # refused later
            return tensor
        one = filled((1, 1), 1.0)
        dtype = _PRODUCT(one, one).dtype
        return ops.cast(tensor, dtype) if tensor.dtype == mstype.float32 and dtype != mstype.float32 else tensor

    def back(self, output):
        """Return the layer's output in float32 if its inputs were cast by rewriting."""
        return output if self.rewritten is None else ops.cast(output, mstype.float32)


def fix_dtypes(cell: nn.Cell) -> nn.Cell:
    """Set the operations inside `cell` to their given dtypes. Mixed precision of outer cells does not reach them."""
    cell.mixed_precision_type = MixedPrecisionType.NOTSET
    return cell
