"""The decoding kernels behind flash_attention and paged_attention, on the emulator."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import (
    KVCache,
    attention_backend,
    flash_attention,
    paged_attention,
    paged_caches,
    prepare,
    reshape_and_cache,
)
from flash_attention.backends.tik import decode
from mindspore import Tensor, nn

from tests.train.flash_attention.support.layer_inputs import half

pytest.importorskip("tikemu")
HEADS, KV_HEADS, DIM, BLOCK = 4, 2, 32, 16
SINKS = Tensor(np.array([1.0, -2.0, 0.5, 9.0], np.float32))


def results(query, key, value, sinks, backend: str) -> list:
    """Return the output, logsumexp and the four gradients."""

    def attend(query, key, value, sinks):
        return flash_attention(
            query, key, value, sinks=sinks, causal=True, causal_alignment="bottom_right", softcap=4.0, return_lse=True
        )

    def total(query, key, value, sinks):
        return attend(query, key, value, sinks)[0].astype(ms.float32).sum()

    given = query, key, value, sinks
    with attention_backend(backend):
        return [*attend(*given), *ms.grad(total, (0, 1, 2, 3))(*given)]


def test_few_queries_are_decoded_and_have_gradients():
    query, key, value = half(2, HEADS, 2, DIM), half(2, KV_HEADS, 70, DIM, seed=1), half(2, KV_HEADS, 70, DIM)
    for ours, plain in zip(*(results(query, key, value, SINKS, backend) for backend in ("emulator", "math"))):
        np.testing.assert_allclose(ours.asnumpy(), plain.asnumpy(), atol=3e-3)


@pytest.fixture
def eight_rows(monkeypatch):
    """Plan row blocks of 8 rows, in plans and cells that no other test meets."""
    caches = decode.scheduler.choose, prepare._dense, prepare._paged
    monkeypatch.setattr(decode.tiling, "rows_at_once", lambda problem: 8)
    for cache in caches:
        cache.cache_clear()
    yield
    for cache in caches:
        cache.cache_clear()


@pytest.mark.parametrize("rules", ({"window_size": (9, 0)}, {"causal": False}))
def test_prompts_come_in_parts(rules, eight_rows):
    """The 20 queries are row blocks of 8, 8 and 4. The second sequence has fewer keys than queries."""
    keys, values = half(9, BLOCK, KV_HEADS, DIM, seed=1), half(9, BLOCK, KV_HEADS, DIM, seed=2)
    tables = Tensor(np.array([[4, 1, 6], [2, 5, 8]], np.int32))
    lengths = Tensor(np.array([41, 7], np.int32))
    given = half(2, 20, HEADS, DIM), keys, values, tables, lengths
    ours, plain = (paged_attention(*given, backend=backend, **rules) for backend in ("emulator", "cpu"))
    np.testing.assert_allclose(ours.asnumpy(), plain.asnumpy(), atol=1e-3)


def test_what_the_decoding_kernels_lack_is_named():
    caches, lengths = [half(4, 8, KV_HEADS, DIM)] * 2, Tensor(np.array([5], np.int32))
    tables = Tensor(np.zeros((1, 1), np.int32))
    with pytest.raises(RuntimeError, match="got blocks of 8 keys, the decoding kernels take 16 and more"):
        paged_attention(half(1, HEADS, DIM), *caches, tables, lengths, backend="emulator")
    caches = [half(4, BLOCK, KV_HEADS, 40)] * 2
    with pytest.raises(RuntimeError, match="head_dim 40, allowed are multiples of 16; paged_caches makes"):
        paged_attention(half(1, HEADS, 40), *caches, tables, lengths, backend="emulator")
    query, caches = half(1, 200, HEADS, DIM), [half(20, BLOCK, KV_HEADS, DIM)] * 2
    tables, lengths = Tensor(np.arange(20, dtype=np.int32)[None]), Tensor(np.array([300], np.int32))
    with pytest.raises(RuntimeError, match="got 200 queries without causal, with a window or ALiBi"):
        paged_attention(query, *caches, tables, lengths, causal=False, alibi=True, backend="emulator")


@pytest.mark.spread
@pytest.mark.parametrize("value_dim", (24, 40))
@pytest.mark.parametrize("backend", ("cpu", "math", "emulator"))
def test_heads_of_any_size_in_caches_that_are_rounded_up(value_dim, backend, mode):
    dim, length = 24, 20
    caches = paged_caches(3, BLOCK, KV_HEADS, dim, value_dim)
    assert [cache.shape[3] for cache in caches] == [32, -(-value_dim // 16) * 16]
    query, key = half(1, 2, HEADS, dim), half(length, KV_HEADS, dim, seed=1)
    value = half(length, KV_HEADS, value_dim, seed=2)
    slots, tables = Tensor(np.arange(BLOCK, BLOCK + length, dtype=np.int32)), Tensor(np.array([[1, 2]], np.int32))
    lengths = Tensor(np.array([length], np.int32))

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.keys, self.values = caches

        def construct(self, query, key, value):
            written = reshape_and_cache(key, value, self.keys, self.values, slots)
            output = paged_attention(
                query, self.keys, self.values, tables, lengths, value_head_dim=value_dim, backend=backend
            )
            return output, written

    output = Net()(query, key, value)[0].asnumpy()
    whole = [Tensor(np.ascontiguousarray(array.asnumpy()[None])) for array in (key, value)]
    rules = {"causal": True, "causal_alignment": "bottom_right", "input_layout": "BSND", "backend": "cpu"}
    ms.set_context(mode=ms.PYNATIVE_MODE)
    np.testing.assert_allclose(output, flash_attention(query, *whole, **rules).asnumpy(), atol=2e-3)


def test_a_cache_of_rounded_heads():
    """A KVCache rounds head sizes up inside; its users see the true sizes."""
    cache = KVCache(1, 40, KV_HEADS, 24, 20, paged=True, block_size=BLOCK)
    query, key, value = half(1, 5, HEADS, 24), half(1, 5, KV_HEADS, 24, seed=1), half(1, 5, KV_HEADS, 20, seed=2)
    outputs = []
    for backend in ("emulator", "cpu"):
        cache.reset()
        with attention_backend(backend):
            outputs.append(cache(query, key, value).asnumpy())
    rules = {"causal": True, "input_layout": "BSND", "backend": "cpu"}
    right = flash_attention(query, key, value, **rules).asnumpy()
    for output in outputs:
        assert output.shape == (1, 5, HEADS, 20)
        np.testing.assert_allclose(output, right, atol=2e-3)
    with pytest.raises(ValueError, match=r"query: got shape \(1, 5, 4, 20\), allowed is \(1, seq, heads, 24\)"):
        cache.attend(half(1, 5, HEADS, 20))
    with pytest.raises(ValueError, match=r"key: got shape \(1, 5, 2, 20\), allowed is \(1, seq, 2, 24\)"):
        cache.update(value, value)
    given = query, *paged_caches(2, BLOCK, KV_HEADS, 24, 40), Tensor([[0]], ms.int32), Tensor([5], ms.int32)
    with pytest.raises(ValueError, match="value_head_dim: got 24 with a value_cache"):
        paged_attention(*given)
