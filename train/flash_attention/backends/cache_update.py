"""Writing tokens into a cache in place: by the native kernel on a CPU, else by MindSpore's scatter."""

from __future__ import annotations

import functools

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.constants import numbered
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
        chosen = ops.select(slots >= 0, numbered(slots.shape[0]), ops.cast(first, mstype.int32))
        slots = ops.gather(slots, chosen, 0)
        none = slots < 0
        slots = ops.maximum(slots, 0)
        places = ops.stack((slots // self.block_size, slots % self.block_size), -1)
        for tokens, cache, row in ((key, key_cache, self.rows[0]), (value, value_cache, self.rows[1])):
            rows = ops.gather(ops.reshape(tokens, (-1,) + row), chosen, 0)
            rows = ops.select(ops.reshape(none, (-1, 1, 1)), ops.gather_nd(cache, places), rows)
            ops.scatter_nd_update(cache, places, rows)
        return self.done


class ScatterAppend(nn.Cell):
    """The plain statement of `append_cell`."""

    def __init__(self, key_cache: TensorSpec, value_cache: TensorSpec, batch: int, max_length: int):
        super().__init__()
        self.blocks, self.block_size = key_cache.shape[:2]
        self.max_length = max_length
        width = -(-max_length // self.block_size)
        self.columns = Tensor(np.arange(width, dtype=np.int32).reshape(1, -1))
        self.check = _RefusalWithoutRoom(max_length, self.blocks)
        self.write = ScatterUpdate(key_cache, value_cache)
        self.greatest = ops.ReduceMax()

    def construct(self, key, value, key_cache, value_cache, block_tables, lengths, used_blocks, strict):
        seq = key.shape[1]
        start, end = ops.expand_dims(lengths, 1), lengths + seq
        kept = ops.minimum(ops.expand_dims(end, 1), self.max_length)
        # Blocks that the sequences need now, numbered in the order of the sequences.
        needed = ops.logical_and(self.columns * self.block_size < kept, block_tables < 0)
        count = ops.cumsum(ops.reshape(ops.cast(needed, mstype.float32), (-1,)), 0)
        number = ops.reshape(ops.cast(count, mstype.int32), block_tables.shape) + used_blocks - 1
        tables = ops.select(needed, number, block_tables + 0)
        used = used_blocks + ops.cast(count[-1:], mstype.int32)
        if strict:
            self.check(end, used, seq)
        position = start + ops.reshape(numbered(seq), (1, -1))
        inside = ops.minimum(position, self.max_length - 1)
        block = ops.gather_elements(tables, 1, inside // self.block_size)
        room = ops.logical_and(position < self.max_length, block < self.blocks)
        slots = ops.select(room, block * self.block_size + inside % self.block_size, inside * 0 - 1)
        # A sequence without a block for its tokens is past its end for good; its table names blocks that are there.
        without = ops.cast(self.greatest(ops.cast(tables, mstype.float32), 1) >= self.blocks, mstype.int32)
        end = end + without * self.max_length
        valid = ops.minimum(ops.maximum(tables, 0), self.blocks - 1)
        tables = tables + ops.expand_dims(without, 1) * (valid - tables)
        # What was read of a Parameter must have been before it is written.
        end, tables, used = ops.depend(end, slots), ops.depend(tables, slots), ops.depend(used, slots)
        self.write(key, value, key_cache, value_cache, slots)
        ops.assign(used_blocks, used)
        ops.assign(block_tables, tables)
        ops.assign(lengths, end)
        return end


class _RefusalWithoutRoom(nn.Cell):
    """Refuses tokens that find no room. Only PYNATIVE can: a graph sees no lengths."""

    def __init__(self, max_length: int, blocks: int):
        super().__init__()
        self.max_length, self.blocks = max_length, blocks

    def __call__(self, end, used, tokens):
        check_room(int(end.asnumpy().max()), tokens, self.max_length)
        if int(used.asnumpy()[0]) > self.blocks:
            raise ValueError(f"key: the tokens need {used.asnumpy()[0]} blocks; num_blocks is {self.blocks}")

    def construct(self, end, used, tokens):
        return end


def check_room(longest: int, tokens: int, max_length: int) -> None:
    """Raises where so many tokens make a sequence too long."""
    if longest > max_length:
        raise ValueError(f"key: got {tokens} tokens, which make a sequence of {longest}; max_length is {max_length}")


@functools.lru_cache(maxsize=64)
def update_cell(key_cache: TensorSpec, value_cache: TensorSpec) -> nn.Cell:
    """The Cell that writes into caches of these shapes on this device."""
    if _native():
        from flash_attention.backends.cpu.paged import CacheUpdate

        return CacheUpdate()
    return ScatterUpdate(key_cache, value_cache)


@functools.lru_cache(maxsize=64)
def append_cell(key_cache: TensorSpec, value_cache: TensorSpec, batch: int, max_length: int) -> nn.Cell:
    """The Cell that appends tokens to sequences in caches of these shapes on this device, in place.

        lengths = cell(key, value, key_cache, value_cache, block_tables, lengths, used_blocks, strict)

    key, value      (batch, seq, kv_heads, width), behind the tokens of each sequence
    block_tables    int32 (batch, most blocks of a sequence), negative where a sequence has no block yet. Those that it
                    needs now are numbered on from used_blocks, in the order of the sequences.
    lengths         int32 (batch,): tokens of each sequence, also those past max_length, which are in no cache
    used_blocks     int32 (1,)
    strict          bool: tokens past max_length are an error. Without it a sequence that finds no block left may count
                    as one that is longer than max_length.

    Caches, block_tables, lengths and used_blocks are Parameters.
    """
    if _native():
        from flash_attention.backends.cpu.paged import CacheAppend

        return CacheAppend(batch, max_length)
    return ScatterAppend(key_cache, value_cache, batch, max_length)


def _native() -> bool:
    return ms.get_context("device_target") == "CPU" and get_backend("cpu").unavailable() is None
