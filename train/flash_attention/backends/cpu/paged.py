"""Attention against a paged cache, and its update, as MindSpore primitives."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops

from flash_attention.backends.cpu import library
from flash_attention.backends.cpu.operators import entry_point
from flash_attention.bridge.gradients import refuse_gradient
from flash_attention.bridge.parameters import EntryCell
from flash_attention.call import Call


class PagedAttention(nn.Cell):
    """One paged call; see Backend.build for the meaning of the tensors."""

    def __init__(self, call: Call):
        super().__init__()
        rules, rates = library.paged_configuration(call)
        self.rules, self.rates = Tensor(rules), Tensor(rates)
        self.absent = Tensor([0], ms.uint8)
        self.sinks, self.slopes = call.place("sinks"), call.place("alibi_slopes")
        self.left_padding = call.paged.left_padding
        shape, dtype = call.laid_out(call.shape_output()), getattr(ms, call.dtype)

        def bprop(query, keys, values, tables, lengths, first_keys, sinks, rules, rates, out, dout):
            refuse_gradient("paged_attention")
            return query, keys, values, tables, lengths, first_keys, sinks, rules, rates

        name = "FlashAttentionPaged"
        if call.return_lse:
            name, shape, dtype = f"{name}Logsumexp", (shape, call.shape_lse()), (dtype, ms.float32)
        self.attention = _primitive(name, (call,), shape, dtype, call.dynamic, bprop)
        # A graph keeps the order of operations with side effects, so this reads what was written before.
        self.attention.add_prim_attr("side_effect_mem", True)

    def construct(self, query, key_cache, value_cache, block_tables, context_lens, inputs):
        lengths, first_keys, sinks, rates = context_lens, self.absent, self.absent, self.rates
        if self.left_padding:
            lengths, first_keys = context_lens
        if self.sinks is not None:
            sinks = inputs[self.sinks]
        if self.slopes is not None:
            rates = ops.concat((rates, ops.reshape(inputs[self.slopes], (-1,))))
        tensors = query, key_cache, value_cache, block_tables, lengths
        return self.attention(*tensors, first_keys, sinks, self.rules, rates)


class CacheAppend(EntryCell):
    """Append tokens to the sequences of a `KVCache` in place. `append_cell` gives the meaning of the tensors."""

    def __init__(self, batch: int, max_length: int, padding_side: str, dynamic: bool):
        super().__init__()
        self.strict, self.lenient = (
            Tensor(library.numbers(max_length, refuses, padding_side == "left")) for refuses in (True, False)
        )
        self.append = _in_place("FlashAttentionCacheAppend", batch, dynamic)

    def construct(self, key, value, key_cache, value_cache, block_tables, lengths, tokens, strict):
        rules = self.strict if strict else self.lenient
        return self.append(key, value, key_cache, value_cache, block_tables, lengths, tokens, rules)


class CacheReorder(EntryCell):
    """Reorder the sequences of a `KVCache` in place. `reorder_cell` gives the meaning of the tensors."""

    def __init__(self, batch: int, max_length: int):
        super().__init__()
        self.rules = Tensor(library.numbers(max_length))
        self.reorder = _in_place("FlashAttentionCacheReorder", batch)

    def construct(self, key_cache, value_cache, block_tables, lengths, indices, strict):
        return self.reorder(key_cache, value_cache, block_tables, lengths, indices, self.rules)


class CacheUpdate(EntryCell):
    """Write tokens into caches in place. `reshape_and_cache` gives the meaning of the tensors."""

    def __init__(self, dynamic: bool):
        super().__init__()
        self.update = _in_place("FlashAttentionReshapeAndCache", 1, dynamic)

    def construct(self, key, value, key_cache, value_cache, slot_mapping):
        return self.update(key, value, key_cache, value_cache, slot_mapping, key_cache, value_cache)


def _in_place(function: str, size: int, dynamic: bool = False) -> ops.Custom:
    """Return a primitive that changes its inputs and gives int32 (size,)."""
    primitive = _primitive(function, (size, dynamic), (size,), ms.int32, dynamic)
    # A graph keeps such an operation, and its place among the reads of the caches.
    primitive.add_prim_attr("side_effect_mem", True)
    return primitive


def _primitive(function: str, kind: tuple, shape: tuple, dtype, dynamic: bool, bprop=None) -> ops.Custom:
    """Return a primitive. MindSpore asks the library for the shapes of its outputs if sizes are unknown."""
    several = isinstance(dtype, tuple)
    known = {} if dynamic else {"out_shape": tuple(map(list, shape)) if several else list(shape), "out_dtype": dtype}
    primitive = entry_point(function, kind, bprop, **known)
    if dynamic:
        primitive.add_prim_attr("reg_op_name", function)
        if several:
            primitive.add_prim_attr("multi_output", True)
    return primitive
