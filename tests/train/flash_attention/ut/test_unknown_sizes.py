"""Graphs for any number of tokens: caches and packed sequences give what PYNATIVE gives, compiled once."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import KVCache, flash_attention_varlen, paged_attention, paged_caches, reshape_and_cache
from flash_attention.bridge.versions import OLD
from flash_attention.compat.flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from mindspore import Parameter, Tensor, nn, ops

from tests.train.flash_attention.support.arrays import random
from tests.train.flash_attention.support.modes import in_mode

HEADS, KV_HEADS, DIM = 4, 2, 24


class Paged(nn.Cell):
    """Write tokens into a cache of pages, and attend to it."""

    def __init__(self):
        super().__init__()
        self.keys, self.values = paged_caches(8, 4, KV_HEADS, DIM, dtype=ms.float32)

    def construct(self, query, key, value, slots, tables, lengths):
        reshape_and_cache(key, value, self.keys, self.values, slots)
        return paged_attention(query, self.keys, self.values, tables, lengths, value_head_dim=DIM)


class FlashAttn(nn.Cell):
    """Append to a row for each sequence."""

    def __init__(self, **rules):
        super().__init__()
        self.keys, self.values = (
            Parameter(Tensor(np.zeros((3, 8, KV_HEADS, DIM), np.float32)), name=name) for name in ("keys", "values")
        )
        self.rules = rules

    def construct(self, q, k, v, lengths):
        return flash_attn_with_kvcache(q, self.keys, self.values, k, v, cache_seqlens=lengths, **self.rules)


class Cached(nn.Cell):
    """Call a cache."""

    def __init__(self, **options):
        super().__init__()
        self.cache = KVCache(2, 16, KV_HEADS, DIM, dtype=ms.float32, **options)

    def construct(self, query, key, value, tokens):
        return self.cache(query, key, value, tokens)


class Packed(nn.Cell):
    """Packed sequences."""

    def __init__(self, **rules):
        super().__init__()
        self.rules = rules

    def construct(self, query, key, value, ends_q, ends_k, slopes):
        return flash_attention_varlen(query, key, value, ends_q, ends_k, alibi_slopes=slopes, **self.rules)


class FlashAttnPacked(nn.Cell):
    """Packed sequences by flash_attn's function."""

    def construct(self, query, key, value, ends_q, ends_k):
        return flash_attn_varlen_func(query, key, value, ends_q, ends_k, 9, 9, causal=True)


def integers(*numbers):
    """Return an int32 Tensor."""
    return Tensor(np.array(numbers, np.int32))


def tokens(*sizes):
    """Query, key and value."""
    return [Tensor(random(*sizes, heads, DIM, seed=seed)) for seed, heads in ((1, HEADS), (2, KV_HEADS), (3, KV_HEADS))]


PAGED = [
    (Tensor(random(2, HEADS, DIM)), *tokens(3)[1:], integers(0, 1, 17), integers([0, 1], [4, 5]), integers(2, 5)),
    (Tensor(random(1, HEADS, DIM)), *tokens(1)[1:], integers(2), integers([0, 6, 7]), integers(3)),
]
ROWS = [(*tokens(2, 3), integers(0, 1)), (*tokens(2, 1), integers(3, 4))]
COUNTED = [(*tokens(2, 3), integers(3, 2)), (*tokens(2, 1), integers(0, 1)), (*tokens(2, 2), integers(2, 2))]
ALL = [(*tokens(2, size), None) for size in (3, 1, 2)]
ENDS = [
    (*tokens(7), integers(3, 7), integers(2, 7), Tensor(random(2, HEADS))),
    (*tokens(9), integers(0, 1, 1, 9), integers(0, 2, 8, 9), Tensor(random(3, HEADS))),
]
CASES = {
    "paged": (Paged, {}, PAGED),
    "rows": (FlashAttn, {}, ROWS),
    "logsumexp": (FlashAttn, {"return_softmax_lse": True, "causal": True}, ROWS),
    "cache": (Cached, {}, ALL),
    "counts": (Cached, {"padding_side": "left", "paged": True, "block_size": 4}, COUNTED),
    "packed": (Packed, {"causal": True, "causal_alignment": "bottom_right", "return_lse": True}, ENDS),
    "flash_attn packed": (FlashAttnPacked, {}, [call[:5] for call in ENDS]),
}


def dynamic(calls):
    """Return the inputs of several calls with None for the sizes in which they differ."""
    described = []
    for tensors in zip(*calls):
        if tensors[0] is None:
            described.append(None)
            continue
        sizes = [set(size) for size in zip(*(tensor.shape for tensor in tensors))]
        shape = [size.pop() if len(size) == 1 else None for size in sizes]
        described.append(Tensor(shape=shape, dtype=tensors[0].dtype) if None in shape else tensors[0])
    return described


def arrays(result):
    """Return a result, or a tuple of results, as arrays."""
    return [one.asnumpy() for one in (result if isinstance(result, tuple) else (result,))]


@pytest.mark.skipif(OLD, reason="MindSpore 2.0 asks no library for shapes")
@pytest.mark.parametrize("case", CASES)
def test_any_number_of_tokens(case):
    kind, options, calls = CASES[case]
    with in_mode("pynative"):
        net = kind(**options)
        expected = [arrays(net(*call)) for call in calls]
    with in_mode("graph"):
        net = kind(**options)
        net.set_inputs(*dynamic(calls))
        for call, wanted in zip(calls, expected):
            for one, other in zip(arrays(net(*call)), wanted):
                np.testing.assert_allclose(one, other, atol=2e-6)
    assert len(net.compile_cache) == 1


@pytest.mark.skipif(OLD, reason="MindSpore 2.0 asks no library for shapes")
def test_gradients_of_any_number_of_packed_tokens():
    attend = Packed(causal=True)

    def loss(query, key, value, ends_q, ends_k, slopes):
        return (attend(query, key, value, ends_q, ends_k, slopes) ** 2).sum()

    class Gradients(nn.Cell):
        def __init__(self):
            super().__init__()
            self.gradients = ops.grad(loss, (0, 1, 2))

        def construct(self, query, key, value, ends_q, ends_k, slopes):
            return self.gradients(query, key, value, ends_q, ends_k, slopes)

    with in_mode("pynative"):
        expected = [arrays(Gradients()(*call)) for call in ENDS]
    with in_mode("graph"):
        net = Gradients()
        net.set_inputs(*dynamic(ENDS))
        for call, wanted in zip(ENDS, expected):
            for one, other in zip(arrays(net(*call)), wanted):
                np.testing.assert_allclose(one, other, atol=1e-5)


@pytest.mark.asynchronous
@pytest.mark.parametrize("case", CASES if OLD else ())
def test_refused_by_name_where_sizes_must_be_known(case):
    kind, options, calls = CASES[case]
    with in_mode("graph"):
        net = kind(**options)
        net.set_inputs(*dynamic(calls))
        with pytest.raises((ValueError, RuntimeError), match="dynamic shapes"):
            net(*calls[0])
