"""Built-in operators, one NumPy function each, on plain arrays.

A function is called with the kernel (for its attributes and output shapes) and with its inputs. An input is an array,
None if it is left out, or a list if it is several tensors. The function returns its outputs, and need not care about
the dtype and format in which they are stored. Tables go by the name of CANN's entry; tables for the AI CPU go by the
name of MindSpore's operator.
"""

from __future__ import annotations

from typing import Any, Callable

from .. import channels
from . import elementwise, indexing, layout, normalisation, optimizer, reduce, state

Operator = Callable[..., Any]

#: Operators of the AI cores, by CANN's entry.
TABLE: dict[str, Operator] = {
    **{**elementwise.TABLE, **indexing.TABLE, **layout.TABLE, **normalisation.TABLE},
    **{**optimizer.TABLE, **reduce.TABLE, **state.TABLE},
}
#: Operators of the AI CPU, by type.
AICPU: dict[str, Operator] = {
    **{**channels.AICPU, **elementwise.AICPU, **indexing.AICPU, **layout.AICPU, **reduce.AICPU, **state.AICPU}
}
