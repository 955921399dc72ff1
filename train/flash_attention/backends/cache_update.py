"""Writing tokens into a cache in place: by the native kernel on a CPU, else by MindSpore's scatter."""

from __future__ import annotations

import functools

import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.registry import get_backend
from flash_attention.problem.inputs import TensorSpec


class ScatterUpdate(nn.Cell):
    """The plain statement of `reshape_and_cache`; the caches are Parameters."""

    def __init__(self, key_cache: TensorSpec, value_cache: TensorSpec):
        super().__init__()
        self.block_size = key_cache.shape[1]
        self.rows = key_cache.shape[2:], value_cache.shape[2:]
        self.done = Tensor([0], mstype.int32)

    def construct(self, key, value, key_cache, value_cache, slot_mapping):
        slots = ops.reshape(slot_mapping, (-1,))
        # A token that is left out repeats the first that is not; where none is, slot 0 keeps what it has.
        first = ops.argmax(ops.cast(slots >= 0, mstype.int32), 0)
        chosen = ops.select(
            slots >= 0, ops.cast(ops.arange(slots.shape[0]), mstype.int32), ops.cast(first, mstype.int32)
        )
        slots = ops.gather(slots, chosen, 0)
        none = slots < 0
        slots = ops.maximum(slots, 0)
        places = ops.stack((slots // self.block_size, slots % self.block_size), -1)
        for tokens, cache, row in ((key, key_cache, self.rows[0]), (value, value_cache, self.rows[1])):
            rows = ops.gather(ops.reshape(tokens, (-1,) + row), chosen, 0)
            rows = ops.select(ops.reshape(none, (-1, 1, 1)), ops.gather_nd(cache, places), rows)
            ops.scatter_nd_update(cache, places, rows)
        return self.done


@functools.lru_cache(maxsize=64)
def update_cell(key_cache: TensorSpec, value_cache: TensorSpec) -> nn.Cell:
    """The Cell that writes into caches of these shapes on this device."""
    if ms.get_context("device_target") == "CPU" and get_backend("cpu").unavailable() is None:
        from flash_attention.backends.cpu.paged import CacheUpdate

        return CacheUpdate()
    return ScatterUpdate(key_cache, value_cache)
