"""Built-in operators, one NumPy function each, on plain arrays.

A function is called with the kernel (for its attributes and output shapes) and with its inputs. An input is an array,
None if it is left out, or a list if it is several tensors. The function returns its outputs, and need not care about
the dtype and format in which they are stored. Tables go by the name of CANN's entry; tables for the AI CPU go by the
name of MindSpore's operator.
"""

from __future__ import annotations

from typing import Any, Callable

from .. import channels
from . import (
    activations,
    convolution,
    elementwise,
    indexing,
    layout,
    losses,
    matmul,
    normalisation,
    optimizer,
    padding,
    random,
    reduce,
    scattering,
    status,
)

Operator = Callable[..., Any]

_FAMILIES = (
    *(activations, convolution, elementwise, indexing, layout, losses, matmul, normalisation, optimizer, padding),
    *(random, reduce, scattering, status),
)
_ON_AI_CPU = (channels, activations, elementwise, indexing, layout, losses, padding, random, reduce, scattering)

#: Operators of the AI cores, by CANN's entry.
TABLE: dict[str, Operator] = {name: function for family in _FAMILIES for name, function in family.TABLE.items()}
#: Operators of the AI CPU, by type.
AICPU: dict[str, Operator] = {name: function for family in _ON_AI_CPU for name, function in family.AICPU.items()}
