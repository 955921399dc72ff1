"""Random moves of data between memories."""

from __future__ import annotations

import numpy as np
from tikemu import tik

from tests.emulator.support.random_values import BLOCKS, DTYPES, Values, elements


class MoveStatements:
    """Definitions of tensors, and moves from, to and between them."""

    def __init__(self, values: Values) -> None:
        self.values = values
        self.tik = values.tik

    def define(self, dtype: str | None = None) -> None:
        """A tensor of the Unified Buffer, filled from global memory or with zeros."""
        values = self.values
        dtype = dtype or values.pick(DTYPES)
        count = elements(dtype)
        tensor = self.tik.Tensor(dtype, (count,), tik.scope_ubuf, values.name("t"))
        values.tensors.append((dtype, tensor))
        if values.chance(0.7):
            source = values.inputs[dtype][values.block * count if values.chance(0.7) else 0 :]
            self.tik.data_move(tensor, source, 0, 1, BLOCKS, 0, 0)
        else:
            lanes = 256 // np.dtype(dtype).itemsize
            self.tik.vec_dup(lanes, tensor, 0, BLOCKS // 8, 8)

    def move(self) -> None:
        """Bursts into a tensor, out of it, or to another one."""
        values = self.values
        dtype = values.pick(DTYPES)
        bursts, length, gaps = values.upto(1, 3), values.upto(1, 6), [values.upto(0, 4), values.upto(0, 4)]
        spans = [bursts * length + (bursts - 1) * gap for gap in gaps]
        held = values.operand(dtype, max(spans))
        start = values.block * elements(dtype) + values.offset(dtype, BLOCKS - max(spans))
        kind = values.upto(0, 2)
        if kind == 0:
            self.tik.data_move(held, values.inputs[dtype][start:], 0, bursts, length, *gaps)
        elif kind == 1:
            self.tik.data_move(values.outputs[dtype][start:], held, 0, bursts, length, *gaps)
        else:
            other = values.operand(dtype, max(spans), values.whole(held))
            self.tik.data_move(other, held, 0, bursts, length, *gaps)

    def through_l1(self) -> None:
        """Global memory to L1, and a part of that to a tensor."""
        values = self.values
        dtype = values.pick(DTYPES)
        count = elements(dtype)
        buffer = self.tik.Tensor(dtype, (count,), tik.scope_cbuf, values.name("l1_"))
        self.tik.data_move(buffer, values.inputs[dtype][values.block * count :], 0, 1, BLOCKS, 0, 0)
        length = values.upto(1, 20)
        part = buffer[values.offset(dtype, BLOCKS - length) :]
        self.tik.data_move(values.operand(dtype, length), part, 0, 1, length, 0, 0)

    def finish(self) -> None:
        """Stores one tensor of every dtype."""
        values = self.values
        for dtype in DTYPES:
            tensor = values.tensor(dtype)
            self.tik.data_move(values.outputs[dtype][values.block * elements(dtype)], tensor, 0, 1, BLOCKS, 0, 0)
