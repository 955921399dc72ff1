"""Attention without a single score: an empty batch, no heads, no queries or no keys."""

from __future__ import annotations

from mindspore import dtype as mstype
from mindspore import nn, ops

from flash_attention.backends.base import Backend
from flash_attention.bridge.constants import filled
from flash_attention.call import Call


class EmptyCalls(Backend):
    """Stand for the backend that would run a call if it had a score."""

    def __init__(self, name: str):
        self.name = name

    def refuse(self, call: Call) -> None:
        return None

    def layout(self, call: Call, sharded: bool = False) -> str:
        return call.layout

    def build(self, call: Call, shard=None) -> nn.Cell:
        return EmptyAttention(call)


class EmptyAttention(nn.Cell):
    """Give zeros, and the logsumexp of rows that see nothing, as every backend would.

    Takes the inputs of the cell of `Backend.build`. No gradient flows through it but the one of the sinks.
    """

    def __init__(self, call: Call):
        super().__init__()
        self.output, self.dtype = call.laid_out(call.shape_output()), getattr(mstype, call.dtype)
        self.rows = call.shape_lse()[1:] if call.kind == "varlen" else call.shape_lse()
        if call.kind == "paged" and not call.return_lse:
            self.rows = None
        self.sinks = call.place("sinks")

    def construct(self, *tensors):
        output = ops.cast(filled(self.output, 0), self.dtype)
        if self.rows is None:
            return output
        logsumexp = filled(self.rows, -float("inf"))
        if self.sinks is not None:
            logsumexp = filled(self.rows, 0) + ops.reshape(tensors[-1][self.sinks], (-1, 1))
        return output, logsumexp
