"""Rotary position embedding as MindSpore primitives."""

from __future__ import annotations

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

from flash_attention.backends.cpu import library
from flash_attention.backends.cpu.operators import entry_point
from flash_attention.bridge.parameters import EntryCell
from flash_attention.call.inputs import TensorSpec


class Rotary(EntryCell):
    """One kind of call; `flash_attention.rotary_embedding` gives the meaning of the tensors.

    Args:
        x, cos, sin: specs of the tensors.
        offset: the offset of all sequences; None: the call gives offsets.
    """

    def __init__(
        self, x: TensorSpec, cos: TensorSpec, sin: TensorSpec, offset: int | None, interleaved: bool, layout: str
    ):
        super().__init__()
        self.config = Tensor(library.numbers(interleaved, layout == "BNSD", offset is None, offset or 0))
        self.given = offset is None
        self.absent = Tensor(np.zeros(1, np.int32))
        self.turn = _turn(x, cos, sin)

    def construct(self, x, cos, sin, offsets):
        if not self.given:
            offsets = self.absent
        return self.turn(x, cos, sin, offsets, self.config)


def _turn(x: TensorSpec, cos: TensorSpec, sin: TensorSpec) -> ops.Custom:
    """Return the primitive that turns. Its derivatives turn back, and sum up for the tables. Their derivatives are the
    same three.
    """
    zeros_like = ops.ZerosLike()

    def of_turn(x, cos, sin, offsets, config, out, dout):
        d_cos, d_sin = tables(x, dout, offsets, config)
        return back(dout, cos, sin, offsets, config), d_cos, d_sin, zeros_like(offsets), zeros_like(config)

    def of_back(x, cos, sin, offsets, config, out, dout):
        d_cos, d_sin = tables(dout, x, offsets, config)
        return turn(dout, cos, sin, offsets, config), d_cos, d_sin, zeros_like(offsets), zeros_like(config)

    def of_tables(x, upstream, offsets, config, out, dout):
        d_x = back(upstream, dout[0], dout[1], offsets, config)
        d_upstream = turn(x, dout[0], dout[1], offsets, config)
        return d_x, d_upstream, zeros_like(offsets), zeros_like(config)

    kind = x, cos, sin
    turn = _primitive("FlashAttentionRotary", kind, of_turn, x)
    back = _primitive("FlashAttentionRotaryBack", kind, of_back, x)
    tables = _primitive("FlashAttentionRotaryTables", kind, of_tables, cos, sin)
    return turn


def _primitive(function: str, kind: tuple, bprop, *outputs: TensorSpec) -> ops.Custom:
    shapes, dtypes = [list(one.shape) for one in outputs], [getattr(ms, one.dtype) for one in outputs]
    shape, dtype = (shapes[0], dtypes[0]) if len(outputs) == 1 else (tuple(shapes), tuple(dtypes))
    return entry_point(function, kind, bprop, out_shape=shape, out_dtype=dtype)
