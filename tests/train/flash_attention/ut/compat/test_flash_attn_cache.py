"""flash_attn_with_kvcache against float64 NumPy, for some of the parameters that its own tests go through."""

import numpy as np
import pytest
from flash_attention.compat import flash_attn
from mindspore import Parameter, Tensor, nn

from tests.train.flash_attention.support.flash_attn_truth import CLOSE, exact, random, shown, slopes_of, turned
from tests.train.flash_attention.support.modes import in_mode


class Decode(nn.Cell):
    """A cache as Parameters, and a call that may append to it."""

    def __init__(self, k_cache, v_cache, **rules):
        super().__init__()
        self.k_cache = Parameter(Tensor(k_cache), name="k_cache", requires_grad=False)
        self.v_cache = Parameter(Tensor(v_cache), name="v_cache", requires_grad=False)
        self.rules = rules

    def construct(self, q, k, v, cos, sin, cache_seqlens, cache_batch_idx, cache_leftpad, block_table, alibi_slopes):
        return flash_attn.flash_attn_with_kvcache(
            q, self.k_cache, self.v_cache, k, v, cos, sin, cache_seqlens, cache_batch_idx, cache_leftpad, block_table,
            alibi_slopes=alibi_slopes, **self.rules,
        )  # fmt: skip


# seq_q, new keys, page or 0, causal, window, rotary_dim, interleaved, leftpad, batch index, slopes, logsumexp
CACHES = (
    (1, 1, 0, False, (-1, -1), 16, True, False, False, "none", False),
    (3, 3, 16, True, (-1, -1), 32, False, False, False, "batch", False),
    (5, 2, 0, True, (12, -1), 0, True, False, True, "heads", False),
    (4, 0, 8, False, (-1, -1), 0, True, False, False, "none", True),
    (3, 3, 0, False, (-1, -1), 16, False, True, True, "batch", True),
    (4, 4, 16, False, (9, 1), 32, True, False, False, "heads", False),
    (1, 1, 0, True, (-1, -1), 16, True, True, False, "none", False),
    (3, 2, 0, False, (-1, -1), 0, True, False, False, "none", False),
)
IN_GRAPHS = (1, 2, 4, 7)  # at the end and elsewhere, in pages and rows


@pytest.mark.parametrize(
    "mode, case",
    [("pynative", case) for case in range(len(CACHES))] + [("graph", case) for case in IN_GRAPHS],
)
def test_cache(mode, case):
    seq_q, new, page, causal, window, rotary_dim, interleaved, padded, indexed, kind, with_lse = CACHES[case]
    batch, heads, kv_heads, dim, most = 2, 4, 2, 32, 48
    lengths = np.array([37, 19], np.int32)
    pages, size = (batch * most // page, page) if page else (batch + indexed, most)
    caches = [random(pages, size, kv_heads, dim, seed=n) for n in (1, 2)]
    table = np.random.default_rng(0).permutation(pages).astype(np.int32).reshape(batch, -1) if page else None
    index = np.array([2, 0], np.int32) if indexed else None
    leftpad = np.array([5, 0], np.int32) if padded else None
    q, k, v = (
        random(batch, seq_q, heads, dim, seed=3),
        *(random(batch, max(new, 1), kv_heads, dim, seed=n) for n in (4, 5)),
    )
    angles = np.arange(64)[:, None] * 50.0 ** -(np.arange(0, max(rotary_dim, 2), 2) / 32)
    cos, sin = (function(angles).astype(np.float16) for function in (np.cos, np.sin))
    given, slopes = slopes_of(kind, batch, heads)
    rules = {"causal": causal, "window_size": window, "rotary_interleaved": interleaved, "return_softmax_lse": with_lse}
    net = Decode(*caches, num_splits=3, **rules)
    tables = [cos, sin] if rotary_dim else [None, None]
    arrays = [q, *((k, v) if new else (None, None)), *tables, lengths, index, leftpad, table]
    with in_mode(mode):
        result = net(*(None if array is None else Tensor(array) for array in arrays), given)
    output, logsumexp = result if with_lse else (result, None)
    held = [net.k_cache.asnumpy().copy(), net.v_cache.asnumpy().copy()]
    for item, length in enumerate(lengths):
        row = slice(None) if page else [item if index is None else index[item]]
        rows = table[item] if page else row
        before = [cache[rows].reshape(-1, kv_heads, dim) for cache in caches]
        after = [cache[rows].reshape(-1, kv_heads, dim) for cache in held]
        start = 0 if leftpad is None else leftpad[item]
        own_q, own_k = q[item], k[item]
        if rotary_dim:
            own_k = turned(own_k, cos, sin, np.arange(new) + length, interleaved)
            steps = np.arange(seq_q) if causal or max(window) >= 0 else np.zeros(seq_q, int)
            own_q = turned(own_q, cos, sin, steps + length, interleaved).astype(np.float16)
        if new:
            np.testing.assert_allclose(after[0][length : length + new], own_k, rtol=1e-3, atol=1e-3)
            np.testing.assert_array_equal(after[1][length : length + new], v[item])
        end = length + new
        for old, now in zip(before, after):
            np.testing.assert_array_equal(np.delete(now, slice(length, end), 0), np.delete(old, slice(length, end), 0))
        visible = shown(seq_q, end, causal, window, start)
        expected = exact(own_q, after[0][:end], after[1][:end], visible, slopes=slopes[item])
        np.testing.assert_allclose(output.asnumpy()[item], expected[0], **CLOSE)
        if with_lse:
            np.testing.assert_allclose(logsumexp.asnumpy()[item], expected[1], rtol=1e-3, atol=1e-3)


def test_cache_lengths_by_number():
    q, cache = Tensor(random(2, 1, 4, 32)), Tensor(random(2, 24, 4, 32, seed=1))
    of_all = flash_attn.flash_attn_with_kvcache(q, cache, cache)
    assert np.array_equal(
        of_all.asnumpy(), flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=24).asnumpy()
    )
    fewer = flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=Tensor(np.full(2, 9, np.int32)))
    assert np.array_equal(
        fewer.asnumpy(), flash_attn.flash_attn_with_kvcache(q, cache, cache, cache_seqlens=9).asnumpy()
    )
    assert not np.array_equal(fewer.asnumpy(), of_all.asnumpy())
