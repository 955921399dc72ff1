"""Attention against a paged cache, and its update, as MindSpore primitives."""

from __future__ import annotations

import mindspore as ms
from mindspore import Tensor, nn, ops

from flash_attention.backends.cpu import library
from flash_attention.backends.cpu.operators import entry_point
from flash_attention.backends.derivatives import refuse_gradient
from flash_attention.parameters import Called
from flash_attention.problem.paged import PagedProblem


class PagedAttention(nn.Cell):
    """One paged problem; see Backend.build_paged for the meaning of the tensors."""

    def __init__(self, problem: PagedProblem):
        super().__init__()
        rules, rates = library.paged_configuration(problem)
        self.rules, self.rates = Tensor(rules), Tensor(rates)
        self.absent = Tensor([0], ms.uint8)
        self.sinks, self.slopes = problem.whole.place("sinks"), problem.whole.place("alibi_slopes")
        shape, dtype = problem.shape_output(), getattr(ms, problem.whole.dtype)

        def bprop(query, keys, values, tables, lengths, sinks, rules, rates, out, dout):
            refuse_gradient("paged_attention")
            return query, keys, values, tables, lengths, sinks, rules, rates

        known = {"out_shape": list(shape), "out_dtype": dtype}
        self.attention = entry_point("FlashAttentionPaged", (shape, dtype), bprop, **known)

    def construct(self, query, key_cache, value_cache, block_tables, context_lens, inputs):
        sinks, rates = self.absent, self.rates
        if self.sinks is not None:
            sinks = inputs[self.sinks]
        if self.slopes is not None:
            rates = ops.concat((rates, ops.reshape(inputs[self.slopes], (-1,))))
        return self.attention(query, key_cache, value_cache, block_tables, context_lens, sinks, self.rules, rates)


class CacheAppend(Called):
    """Appends tokens to the sequences of a `KVCache` in place; `append_cell` gives the meaning of the tensors."""

    def __init__(self, batch: int, max_length: int, padding_side: str):
        super().__init__()
        self.strict, self.lenient = (
            Tensor(library.numbers(max_length, refuses, padding_side == "left")) for refuses in (True, False)
        )
        self.append = _in_place("FlashAttentionCacheAppend", batch)

    def construct(self, key, value, key_cache, value_cache, block_tables, lengths, tokens, strict):
        rules = self.strict if strict else self.lenient
        return self.append(key, value, key_cache, value_cache, block_tables, lengths, tokens, rules)


class CacheReorder(Called):
    """Reorders the sequences of a `KVCache` in place; `reorder_cell` gives the meaning of the tensors."""

    def __init__(self, batch: int, max_length: int):
        super().__init__()
        self.rules = Tensor(library.numbers(max_length))
        self.reorder = _in_place("FlashAttentionCacheReorder", batch)

    def construct(self, key_cache, value_cache, block_tables, lengths, indices, strict):
        return self.reorder(key_cache, value_cache, block_tables, lengths, indices, self.rules)


class CacheUpdate(Called):
    """Writes tokens into caches in place; `reshape_and_cache` gives the meaning of the tensors."""

    def __init__(self):
        super().__init__()
        self.update = _in_place("FlashAttentionReshapeAndCache", 1)

    def construct(self, key, value, key_cache, value_cache, slot_mapping):
        return self.update(key, value, key_cache, value_cache, slot_mapping)


def _in_place(function: str, size: int) -> ops.Custom:
    """A primitive that changes its inputs and gives int32 (size,)."""
    primitive = entry_point(function, size, out_shape=[size], out_dtype=ms.int32)
    # A graph keeps such an operation, and its place among the reads of the caches.
    primitive.add_prim_attr("side_effect_mem", True)
    return primitive
