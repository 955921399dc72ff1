"""Pass a layer's request for sharding to the graph that is being compiled."""

from __future__ import annotations

from typing import NamedTuple

from mindspore import nn


class ShardRequest(NamedTuple):
    """Say how to split a call, in plain constants, because a graph passes it on."""

    dp: int
    mp: int
    mask_batch: bool = True  # have_attention_mask_batch
    mask: tuple = ()  # strategies of attention_mask and alibi_mask that `FlashAttention.shard` was given
    alibi: tuple = ()


class RequestedSharding(nn.Cell):
    """A request as a cell: None in PYNATIVE, which calls it, and the request in a graph, which has its `construct`."""

    def __init__(self, request: ShardRequest):
        super().__init__()
        self.request = request

    def __call__(self):
        return None

    def construct(self):
        return self.request
