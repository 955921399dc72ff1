"""KVCache: prefill and decoding give what attention of the whole sequences gives."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import KVCache, flash_attention
from mindspore import Tensor

pytestmark = pytest.mark.asynchronous  # what a step leaves to the next must not depend on when operators run

BATCH, HEADS, KV_HEADS, DIM, VALUE_DIM, LENGTH = 2, 4, 2, 24, 16, 40
STEPS = ((0, 30), (30, 31), (31, 35), (35, 36), (36, 40))


def random(heads: int, width: int, seed: int) -> np.ndarray:
    """Normal random keys or values of every position."""
    return np.random.default_rng(seed).standard_normal((BATCH, LENGTH, heads, width)).astype(np.float32)


QUERY, KEY, VALUE = random(HEADS, DIM, 0), random(KV_HEADS, DIM, 1), random(KV_HEADS, VALUE_DIM, 2)


def decoded(cache: KVCache) -> np.ndarray:
    """The outputs of all steps, one behind the other."""
    parts = [[Tensor(tensor[:, a:b]) for tensor in (QUERY, KEY, VALUE)] for a, b in STEPS]
    return np.concatenate([cache(*part).asnumpy() for part in parts], 1)


@pytest.mark.parametrize("options", [{}, {"paged": True, "block_size": 16}], ids=["contiguous", "paged"])
def test_steps_give_the_whole(mode, options):
    cache = KVCache(BATCH, 64, KV_HEADS, DIM, VALUE_DIM, ms.float32, **options)
    first = decoded(cache)
    assert cache.lengths.asnumpy().tolist() == [LENGTH] * BATCH
    if mode == "graph":
        assert len(cache.compile_cache) == len({b - a for a, b in STEPS})
    cache.reset()
    np.testing.assert_array_equal(decoded(cache), first)
    ms.set_context(mode=ms.PYNATIVE_MODE)
    whole = flash_attention(*map(Tensor, (QUERY, KEY, VALUE)), causal=True, input_layout="BSND")
    np.testing.assert_allclose(first, whole.asnumpy(), atol=2e-6)


def test_blocks_are_handed_out_when_they_are_needed():
    cache = KVCache(BATCH, 64, KV_HEADS, DIM, VALUE_DIM, ms.float32, paged=True, block_size=16, num_blocks=6)
    decoded(cache)
    assert cache.block_tables.asnumpy().tolist() == [[0, 1, 4, -1], [2, 3, 5, -1]]


def test_what_does_not_fit_is_refused():
    for options in ({}, {"paged": True, "num_blocks": 5}):
        cache = KVCache(BATCH, 38, KV_HEADS, DIM, VALUE_DIM, ms.float32, **options)
        with pytest.raises((ValueError, RuntimeError), match="max_length|behind the last block"):
            decoded(cache)


def test_print_shows_the_sizes():
    assert KVCache(2, 64, 4, 16).extend_repr() == (
        "batch=2, max_length=64, kv_heads=4, head_dim=16, value_head_dim=16, dtype=Float16, paged=False"
    )
    paged = KVCache(2, 64, 4, 16, 8, dtype=ms.float32, paged=True).extend_repr()
    assert paged.endswith("value_head_dim=8, dtype=Float32, paged=True, block_size=16, num_blocks=8")
