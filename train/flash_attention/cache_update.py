"""Write tokens into a cache in place: by the native kernel on a CPU, else by MindSpore's scatter."""

from __future__ import annotations

import functools

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.backends.registry import serves_native
from flash_attention.bridge.constants import numbered
from flash_attention.bridge.parameters import EntryCell
from flash_attention.call.inputs import TensorSpec


class ScatterUpdate(EntryCell):
    """State `reshape_and_cache` in plain operations. The caches are Parameters."""

    def __init__(self, key_cache: TensorSpec, value_cache: TensorSpec):
        super().__init__()
        self.block_size = key_cache.shape[1]
        self.rows = key_cache.shape[2:], value_cache.shape[2:]
        self.done = Tensor([0], mstype.int32)

    def construct(self, key, value, key_cache, value_cache, slot_mapping):
        slots = ops.reshape(slot_mapping, (-1,))
        # A token that is left out repeats the first token that is kept. If there is none, slot 0 keeps its content.
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


def slots_of(tables, position, counts, block_size, most):
    """Return the slots of positions in sequences, -1 for a token that has none."""
    inside = ops.minimum(ops.maximum(position, 0), most - 1)
    slots = ops.gather_elements(tables, 1, inside // block_size) * block_size + inside % block_size
    return ops.select(ops.logical_and(counts, position < most), slots, inside * 0 - 1)


class ScatterAppend(EntryCell):
    """State `append_cell` in plain operations."""

    def __init__(self, key_cache: TensorSpec, value_cache: TensorSpec, batch: int, max_length: int, padding_side: str):
        super().__init__()
        self.blocks, self.block_size = key_cache.shape[:2]
        self.max_length, self.padding_first = max_length, padding_side == "left"
        width = -(-max_length // self.block_size)
        self.columns = Tensor(np.arange(width, dtype=np.int32).reshape(1, -1))
        self.free = None if one_block_each(key_cache, batch, max_length) else FreeBlocks(self.blocks)
        self.check = _Refusal(_refuse_tokens)
        self.write = ScatterUpdate(key_cache, value_cache)

    def construct(self, key, value, key_cache, value_cache, block_tables, lengths, tokens, strict):
        seq, most = key.shape[1], self.max_length
        if strict:
            self.check(tokens, lengths, seq, most)
        tokens = ops.minimum(ops.maximum(tokens, 0), seq)
        end = lengths + tokens
        start, count = ops.expand_dims(lengths, 1), ops.expand_dims(tokens, 1)
        tables, without = block_tables + 0, lengths * 0
        if self.free is not None:
            kept = ops.minimum(start + count, most)
            reached = ops.logical_and(self.columns * self.block_size < kept, count > 0)
            tables, without = self.free(tables, ops.logical_and(reached, tables < 0), strict, "key: the tokens")
            # A sequence without a block for its tokens is past its end for good.
            end, tables = end + without * most, _with_blocks(tables, without)
        place = ops.reshape(numbered(seq), (1, -1))
        if self.padding_first:
            place = place - (seq - count)
        position = start + place
        room = ops.logical_and(ops.logical_and(place >= 0, place < count), ops.expand_dims(without, 1) == 0)
        slots = slots_of(tables, position, room, self.block_size, most)
        # All reads of a Parameter must come before its write.
        end, tables = ops.depend(end, slots), ops.depend(tables, slots)
        self.write(key, value, key_cache, value_cache, slots)
        if self.free is not None:
            ops.assign(block_tables, tables)
        ops.assign(lengths, end)
        return end


class ScatterReorder(EntryCell):
    """State `reorder_cell` in plain operations."""

    def __init__(self, key_cache: TensorSpec, value_cache: TensorSpec, batch: int, max_length: int):
        super().__init__()
        self.batch, self.block_size, self.max_length = batch, key_cache.shape[1], max_length
        rows = np.arange(batch, dtype=np.int32)
        self.rows, self.earlier = Tensor(rows), Tensor(rows.reshape(1, -1) < rows.reshape(-1, 1))
        self.columns = Tensor(np.arange(-(-max_length // self.block_size), dtype=np.int32).reshape(1, -1))
        self.free = FreeBlocks(key_cache.shape[0])
        self.check = _Refusal(_refuse_indices)
        self.any, self.first = ops.ReduceMax(keep_dims=True), ops.Argmax(0, mstype.int32)

    def construct(self, key_cache, value_cache, block_tables, lengths, indices, strict):
        if strict:
            self.check(indices, self.batch)
        inside = ops.minimum(ops.maximum(indices, 0), self.batch - 1)
        tables, end = ops.gather(block_tables, inside, 0), ops.gather(lengths, inside, 0)
        # The block into which a sequence writes next, if it has one. Of sequences that share it, the first keeps it.
        place = ops.expand_dims(ops.minimum(end, self.max_length - 1) // self.block_size, 1)
        source = ops.gather_elements(tables, 1, place)
        alike = ops.logical_and(ops.equal(ops.reshape(inside, (-1, 1)), ops.reshape(inside, (1, -1))), self.earlier)
        again = self.any(ops.cast(alike, mstype.float32), 1) > 0
        copied = ops.logical_and(again, source >= 0)
        needed = ops.logical_and(copied, ops.equal(self.columns, place))
        tables, without = self.free(tables, needed, strict, "indices: the sequences")
        # A sequence with a wrong index or without its block is past its end, and its queries get NaN.
        wrong = ops.cast(ops.logical_not(ops.equal(inside, indices)), mstype.int32)
        end = end + (without + wrong) * (2 * self.max_length)
        tables = _with_blocks(tables, without + wrong)
        copied = ops.logical_and(ops.reshape(copied, (-1,)), without == 0)
        target = ops.reshape(ops.gather_elements(tables, 1, place), (-1,))
        # A sequence without a copy repeats the first sequence that has one. If none has, a block is written as it is.
        source = ops.maximum(ops.reshape(source, (-1,)), 0)
        target = ops.select(copied, target, source)
        chosen = ops.select(copied, self.rows, self.first(ops.cast(copied, mstype.float32)) + self.rows * 0)
        source, target = ops.gather(source, chosen, 0), ops.expand_dims(ops.gather(target, chosen, 0), 1)
        end, tables = ops.depend(end, (source, target)), ops.depend(tables, (source, target))
        for cache in (key_cache, value_cache):
            ops.scatter_nd_update(cache, target, ops.gather(cache, source, 0))
        ops.assign(block_tables, tables)
        ops.assign(lengths, end)
        return end


class FreeBlocks(nn.Cell):
    """Hand out blocks that no table names, in the order of entries in need.

        tables, without = cell(tables, needed, strict, what)

    needed is bool, like the tables; `without`, int32 (batch,), is 1 for a sequence that found none, with strict an
    error about `what`.
    """

    def __init__(self, blocks: int):
        super().__init__()
        self.blocks = blocks
        self.numbers = Tensor(np.arange(blocks, dtype=np.float32))
        self.total, self.any = ops.ReduceSum(), ops.ReduceMax()
        self.check = _Refusal(_refuse_blocks)

    def construct(self, tables, needed, strict, what):
        flat = ops.reshape(tables, (-1,))
        wanted = ops.cast(ops.reshape(needed, (-1,)), mstype.float32)
        nowhere = flat * 0 + self.blocks  # the place of entries that count for no block
        # Sums in float32, which every device has.
        named = ops.unsorted_segment_sum(wanted * 0 + 1, ops.select(flat >= 0, flat, nowhere), self.blocks + 1)
        free = named[: self.blocks] == 0
        number = ops.cast(ops.cumsum(ops.cast(free, mstype.float32), 0), mstype.int32) - 1
        number = ops.select(free, number, number * 0 + self.blocks)
        order = ops.cast(ops.unsorted_segment_sum(self.numbers, number, self.blocks + 1), mstype.int32)
        left = ops.cast(self.total(ops.cast(free, mstype.float32)), mstype.int32)
        rank = ops.cast(ops.cumsum(wanted, 0), mstype.int32) - 1
        if strict:
            self.check(what, left, self.total(wanted), self.blocks)
        chosen = ops.logical_and(wanted > 0, rank < left)
        given = ops.gather(order, ops.minimum(ops.maximum(rank, 0), self.blocks), 0)
        result = ops.reshape(ops.select(chosen, given, flat), tables.shape)
        missed = ops.reshape(ops.logical_and(wanted > 0, rank >= left), tables.shape)
        return result, ops.cast(self.any(ops.cast(missed, mstype.float32), 1), mstype.int32)


def _with_blocks(tables, lost):
    """Name block 0 for each missing block of sequences past their end, lost > 0."""
    return ops.select(ops.logical_and(ops.expand_dims(lost, 1) > 0, tables < 0), tables * 0, tables)


class _Refusal(nn.Cell):
    """Call a function that refuses wrong data. Only PYNATIVE can, because a graph sees no data."""

    def __init__(self, refuse):
        super().__init__()
        self.refuse = (refuse,)  # wrapped: an attribute of a Cell that is a function counts as its method

    def __call__(self, *given):
        self.refuse[0](*given)

    def construct(self, *given):
        return given


def _refuse_tokens(tokens, lengths, seq: int, max_length: int) -> None:
    counts = tokens.asnumpy()
    for count, length in zip(counts, lengths.asnumpy()):
        if not 0 <= count <= seq:
            raise ValueError(f"tokens: got {count}, allowed are 0 to {seq}")
        if count > 0:
            check_room(int(length + count), int(count), max_length)


def _refuse_indices(indices, batch: int) -> None:
    for index in indices.asnumpy():
        if not 0 <= index < batch:
            raise ValueError(f"indices: got {index}, allowed are 0 to {batch - 1}")


def _refuse_blocks(what: str, left, wanted, blocks: int) -> None:
    total = blocks - int(left.asnumpy()) + int(wanted.asnumpy())
    if total > blocks:
        raise ValueError(f"{what} need {total} blocks; num_blocks is {blocks}")


def check_room(longest: int, tokens: int, max_length: int) -> None:
    """Raise an error if so many tokens make a sequence too long."""
    if longest > max_length:
        raise ValueError(f"key: got {tokens} tokens, which make a sequence of {longest}; max_length is {max_length}")


def one_block_each(key_cache: TensorSpec, batch: int, max_length: int) -> bool:
    """Return True if every sequence of a cache has its own block from the start."""
    blocks, block_size = key_cache.shape[:2]
    return max_length <= block_size and blocks >= batch


@functools.lru_cache(maxsize=64)
def update_cell(key_cache: TensorSpec, value_cache: TensorSpec, dynamic: bool) -> nn.Cell:
    """Return the Cell that writes into caches of these shapes on this device. `dynamic` if a size of an input is
    unknown.
    """
    if serves_native():
        from flash_attention.backends.cpu.paged import CacheUpdate

        return CacheUpdate(dynamic)
    return ScatterUpdate(key_cache, value_cache)


@functools.lru_cache(maxsize=64)
def append_cell(
    key_cache: TensorSpec, value_cache: TensorSpec, batch: int, max_length: int, padding_side: str, dynamic: bool
) -> nn.Cell:
    """Return the Cell that appends tokens to sequences in caches of these shapes, in place.

        lengths = cell(key, value, key_cache, value_cache, block_tables, lengths, tokens, strict)

    key, value      (batch, seq, kv_heads, width), behind the tokens of each sequence
    block_tables    int32 (batch, most blocks of a sequence), negative if a sequence has no block yet. Sequences get the
                    blocks that they need now in their order, first the first block that no table names. With
                    `one_block_each` the tables name all blocks.
    lengths         int32 (batch,): tokens of each sequence, also those past max_length, which are in no cache
    tokens          int32 (batch,): so many of key and value count; the others are padding, on padding_side
    strict          bool: anything that is not allowed is an error. Without it, a sequence that finds no block left may
                    count as longer than max_length.

    With `dynamic` seq is unknown. Caches, block_tables and lengths are Parameters.
    """
    if serves_native():
        from flash_attention.backends.cpu.paged import CacheAppend

        return CacheAppend(batch, max_length, padding_side, dynamic)
    return ScatterAppend(key_cache, value_cache, batch, max_length, padding_side)


@functools.lru_cache(maxsize=64)
def reorder_cell(key_cache: TensorSpec, value_cache: TensorSpec, batch: int, max_length: int) -> nn.Cell:
    """Return the Cell that continues sequence b from the tokens of sequence indices[b], in place.

        lengths = cell(key_cache, value_cache, block_tables, lengths, indices, strict)

    Sequences share blocks. If several would write into a block, all but the first get a copy, so that only one sequence
    sees a write. indices is int32 (batch,), the other inputs are as in `append_cell`. A sequence whose index is not
    allowed counts as longer than max_length, unless it is an error.
    """
    if serves_native():
        from flash_attention.backends.cpu.paged import CacheReorder

        return CacheReorder(batch, max_length)
    return ScatterReorder(key_cache, value_cache, batch, max_length)
