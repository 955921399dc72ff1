"""Random moves of data between memories."""

from __future__ import annotations

import numpy as np
from tikemu import tik

from tests.emulator.support.random_values import BLOCKS, DTYPES, Values, elements


class MoveStatements(Values):
    """Definitions of tensors, and moves from, to and between them."""

    def define(self, dtype: str | None = None) -> None:
        """Fill a tensor of the Unified Buffer from global memory or with zeros."""
        dtype = dtype or self.pick(DTYPES)
        count = elements(dtype)
        tensor = self.tik.Tensor(dtype, (count,), tik.scope_ubuf, self.name("t"))
        self.tensors.append((dtype, tensor))
        if self.chance(0.7):
            source = self.inputs[dtype][self.block * count if self.chance(0.7) else 0 :]
            self.tik.data_move(tensor, source, 0, 1, BLOCKS, 0, 0)
        else:
            lanes = 256 // np.dtype(dtype).itemsize
            self.tik.vec_dup(lanes, tensor, 0, BLOCKS // 8, 8)

    def move(self) -> None:
        """Move bursts into a tensor, out of it, or to another one."""
        dtype = self.pick(DTYPES)
        bursts, length, gaps = self.upto(1, 3), self.upto(1, 6), [self.upto(0, 4), self.upto(0, 4)]
        spans = [bursts * length + (bursts - 1) * gap for gap in gaps]
        held = self.operand(dtype, max(spans))
        start = self.block * elements(dtype) + self.offset(dtype, BLOCKS - max(spans))
        kind = self.upto(0, 2)
        if kind == 0:
            self.tik.data_move(held, self.inputs[dtype][start:], 0, bursts, length, *gaps)
        elif kind == 1:
            self.tik.data_move(self.outputs[dtype][start:], held, 0, bursts, length, *gaps)
        else:
            other = self.operand(dtype, max(spans), self.whole(held))
            self.tik.data_move(other, held, 0, bursts, length, *gaps)

    def through_l1(self) -> None:
        """Move global memory to L1, and a part of that to a tensor."""
        dtype = self.pick(DTYPES)
        count = elements(dtype)
        buffer = self.tik.Tensor(dtype, (count,), tik.scope_cbuf, self.name("l1_"))
        self.tik.data_move(buffer, self.inputs[dtype][self.block * count :], 0, 1, BLOCKS, 0, 0)
        length = self.upto(1, 20)
        part = buffer[self.offset(dtype, BLOCKS - length) :]
        self.tik.data_move(self.operand(dtype, length), part, 0, 1, length, 0, 0)

    def finish(self) -> None:
        """Store one tensor of every dtype."""
        for dtype in DTYPES:
            tensor = self.tensor(dtype)
            self.tik.data_move(self.outputs[dtype][self.block * elements(dtype)], tensor, 0, 1, BLOCKS, 0, 0)
