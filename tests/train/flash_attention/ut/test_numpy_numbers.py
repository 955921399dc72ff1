"""Integers of NumPy where a call takes Python's: the same result in either mode."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import KVCache, flash_attention_varlen, paged_attention, paged_caches, rotary_embedding
from flash_attention.compat.flash_attn import flash_attn_with_kvcache
from flash_attention.compat.mindspore_ops.operators import flash_attention_score
from mindspore import Tensor

from tests.train.flash_attention.support.layer_inputs import draw

ROWS, TOKENS, ANGLES = draw(8, 2, 16), draw(2, 1, 2, 16), draw(9, 8)


def _cache(integer):
    """Attention by a KVCache whose sizes and indices are such integers."""
    sizes = {"batch": 2, "max_length": 8, "kv_heads": 2, "head_dim": 16, "value_head_dim": 16}
    sizes |= {"block_size": 4, "num_blocks": 4}
    cache = KVCache(**{name: integer(size) for name, size in sizes.items()}, dtype=TOKENS.dtype, paged=True)
    cache.reorder((integer(1), integer(0)))
    cache.reset([integer(1)])
    return cache(TOKENS, TOKENS, TOKENS)


def _paged(integer):
    """Attention over pages."""
    caches = paged_caches(integer(2), integer(4), integer(2), integer(16), integer(10), dtype=TOKENS.dtype)
    tables, lengths = Tensor([[0], [1]], ms.int32), Tensor([3, 4], ms.int32)
    return paged_attention(draw(2, 2, 16), *caches, tables, lengths, value_head_dim=integer(10))


def _ends(integer):
    """Cumulative lengths."""
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
