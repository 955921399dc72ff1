"""Integers of NumPy instead of Python's, and Tensors of int64 and int32: the same result in either mode."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import (
    FlashAttention,
    KVCache,
    flash_attention,
    flash_attention_varlen,
    paged_attention,
    paged_caches,
    reshape_and_cache,
    rotary_embedding,
)
from flash_attention.backends.registry import attention_backend
from flash_attention.compat.flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from flash_attention.compat.mindspore_ops.operators import flash_attention_score
from mindspore import Parameter, Tensor, nn, ops

from tests.train.flash_attention.support.layer_inputs import draw

ROWS, TOKENS, ANGLES = draw(8, 2, 16), draw(2, 1, 2, 16), draw(9, 8)


def _cache(integer):
    """Compute attention by a KVCache with such integers as sizes and indices."""
    sizes = {"batch": 2, "max_length": 8, "kv_heads": 2, "head_dim": 16, "value_head_dim": 16}
    sizes |= {"block_size": 4, "num_blocks": 4}
    cache = KVCache(**{name: integer(size) for name, size in sizes.items()}, dtype=TOKENS.dtype, paged=True)
    cache.reorder((integer(1), integer(0)))
    cache.reset([integer(1)])
    return cache(TOKENS, TOKENS, TOKENS)


def _paged(integer):
    """Compute attention over pages."""
    caches = paged_caches(integer(2), integer(4), integer(2), integer(16), integer(10), dtype=TOKENS.dtype)
    tables, lengths = Tensor([[0], [1]], ms.int32), Tensor([3, 4], ms.int32)
    return paged_attention(draw(2, 2, 16), *caches, tables, lengths, value_head_dim=integer(10))


def _ends(integer):
    """Return the cumulative lengths."""
    return [integer(3), integer(8)]


CALLS = {
    "cache": _cache,
    "paged": _paged,
    "rotary": lambda integer: rotary_embedding(TOKENS, ANGLES, ANGLES, offsets=integer(2)),
    "flash_attn": lambda integer: flash_attn_with_kvcache(
        TOKENS, draw(2, 8, 2, 16), draw(2, 8, 2, 16, seed=1), cache_seqlens=integer(3)
    ),
    "score": lambda integer: flash_attention_score(
        *(ROWS, ROWS, ROWS, integer(2)),
        input_layout="TND",
        actual_seq_qlen=_ends(integer),
        actual_seq_kvlen=tuple(_ends(integer)),
    ),
    "prefix": lambda integer: flash_attention_score(
        *(draw(2, 4, 32), draw(2, 4, 32), draw(2, 4, 32), integer(2)),
        attn_mask=Tensor(np.zeros((2, 1, 4, 4), np.uint8)),
        prefix=[integer(1), integer(2)],
        sparse_mode=integer(5),
    ),
    "varlen": lambda integer: flash_attention_varlen(ROWS, ROWS, ROWS, _ends(integer), tuple(_ends(integer))),
}


@pytest.mark.parametrize("kind", CALLS)
def test_numbers_of_numpy(kind, mode):
    found, expected = (CALLS[kind](integer).asnumpy() for integer in (np.int64, int))
    np.testing.assert_array_equal(found, expected)


class _Serving(nn.Cell):
    """One graph calls everything that takes integers in Tensors."""

    def __init__(self, dtype):
        super().__init__()
        self.cache = KVCache(2, 8, 2, 16, dtype=ms.float32)
        self.pages = [Parameter(ops.zeros((3, 4, 2, 16), ms.float32), name=name) for name in ("keys", "values")]
        self.key_pages, self.value_pages = self.pages
        self.one, self.two = Tensor([1, 2], dtype), Tensor([2, 1], dtype)
        self.swapped, self.ends = Tensor([1, 0], dtype), Tensor([0, 3, 8], dtype)
        self.table = Tensor([[2, 0], [1, -1]], dtype)

    def construct(self, tokens, rows):
        both = ops.concat((tokens, tokens * 2), 1)
        found = (ops.cast(self.cache.update(both, both, self.one), ms.float32), self.cache.attend(both, self.one))
        found += (ops.cast(self.cache.reorder(self.swapped), ms.float32), self.cache.attend(both))
        found += (ops.cast(self.cache.reset(self.swapped[:1]), ms.float32),)
        token = reshape_and_cache(both, both, self.key_pages, self.value_pages, self.slots())
        table = ops.depend(self.table, token)
        found += (paged_attention(both, self.key_pages, self.value_pages, table, self.two),)
        found += (rotary_embedding(tokens, rows[:, 0, :8], rows[:, 1, :8], offsets=self.two),)
        pages = self.key_pages, self.value_pages
        found += (flash_attn_with_kvcache(tokens, *pages, cache_seqlens=self.two, block_table=table),)
        found += (
            flash_attn_with_kvcache(
                both, *pages, cache_seqlens=self.two, cache_batch_idx=self.two, cache_leftpad=self.swapped
            ),
        )
        return found + (flash_attn_varlen_func(rows, *pages, self.ends, self.ends, 5, 5, block_table=ops.abs(table)),)

    def slots(self):
        return ops.concat((self.one * 4, self.two - 2), 0)


def test_tensors_of_int64_for_caches_and_positions(mode):
    found, expected = (_Serving(dtype)(TOKENS, ROWS) for dtype in (ms.int64, ms.int32))
    for one, other in zip(found, expected):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())


@pytest.mark.parametrize("backend", ["cpu", "math", "emulator"])
def test_tensors_of_int64_for_rules(backend, mode):
    x, packed, layer = draw(2, 2, 8, 16, dtype=np.float16), draw(8, 2, 16), FlashAttention(16, causal=True)

    def gradients(dtype):
        ids, numbers = Tensor([[0, 0, 0, 1, 1, 1, -1, -1]] * 2, dtype), Tensor([3, 1], dtype)

        def loss(query, packed):
            found = flash_attention(query, query, query, segment_ids=ids, kv_segment_ids=ids).sum()
            found = found + layer(query, query, query, prefix=numbers).sum() * 2
            if backend != "emulator":
                packed = flash_attention_varlen(packed, packed, packed, (3, 8), (3, 8), causal=True, prefix=numbers)
            return found.astype(ms.float32) + packed.sum()

        return ops.grad(loss, (0, 1))(x, packed)

    with attention_backend(backend):
        results = [gradients(dtype) for dtype in (ms.int64, ms.int32)]
    assert np.abs(results[0][0].asnumpy()).max() > 0.1
    for one, other in zip(*results):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())
