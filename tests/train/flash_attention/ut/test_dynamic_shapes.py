"""Graphs for any sizes: they give what the sizes themselves give, compiled once."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import (
    FlashAttention,
    KVCache,
    attention_backend,
    explain,
    flash_attention_varlen,
    scaled_dot_product_attention,
)
from flash_attention.backends.registry import get_backend
from flash_attention.bridge.versions import OLD
from flash_attention.call import Call
from flash_attention.call.inputs import UNKNOWN
from flash_attention.compat.flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from mindspore import Parameter, Tensor, nn, ops

from tests.train.flash_attention.support.arrays import random
from tests.train.flash_attention.support.layer_inputs import draw
from tests.train.flash_attention.support.modes import in_mode
from tests.train.flash_attention.support.paged import Decoder

HEADS, KV_HEADS, DIM = 4, 2, 24


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
    "paged": (Decoder, {"caches": [np.zeros((8, 4, KV_HEADS, DIM), np.float32)] * 2, "backend": "cpu"}, PAGED),
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


BACKENDS = [name for name in ("math", "cpu") if get_backend(name).dynamic]
SLOW_MATH = [pytest.param(name, marks=[pytest.mark.slow] * (name == "math")) for name in BACKENDS]
SIZES = ((2, 70, 90), (1, 1, 200), (3, 200, 9))
#: Layouts have a graph for all sizes in backends/test_layouts.py.
RULES = (
    {"causal": True, "causal_alignment": "bottom_right"},
    {"window_size": (5, 9), "causal_alignment": "bottom_right"},
    {"prev_block_num": 1, "next_block_num": 0, "tiling_stgy_name": "sparse_64", "causal_alignment": "bottom_right"},
    {"alibi": True, "causal_alignment": "bottom_right"},
    {"dropout_rate": 0.3, "seed": 3},
)
#: Graphs of math take seconds: every day one has the tiles of a strategy and dropout, and the others are slow.
TOGETHER = {**RULES[2], **RULES[4]}


@pytest.fixture(autouse=True)
def graph_mode():
    """Set graph mode during the test."""
    ms.set_context(mode=ms.GRAPH_MODE)


def unknown(*shape, dtype=ms.float32):
    """Return a tensor that stands for unknown extents."""
    return Tensor(shape=shape, dtype=dtype)


def sides(batch, seq_q, seq_k):
    """Query, key and value."""
    return draw(batch, 4, seq_q, 8), draw(batch, 2, seq_k, 8, seed=1), draw(batch, 2, seq_k, 8, seed=2)


def unknown_sides():
    """Return the placeholders of query, key and value in a graph for all sizes."""
    return unknown(None, 4, None, 8), unknown(None, 2, None, 8), unknown(None, 2, None, 8)


class WeightedGradients(nn.Cell):
    """Gradients of sum(attention * weight) for all four inputs; the fourth is the attention itself."""

    class Loss(nn.Cell):
        def __init__(self, attention):
            super().__init__()
            self.attention = attention

        def construct(self, query, key, value, weight):
            return (self.attention(query, key, value) * weight).sum()

    def __init__(self, attention):
        super().__init__()
        self.loss = self.Loss(attention)
        self.gradients = ops.GradOperation(get_all=True)

    def construct(self, query, key, value, weight):
        return self.gradients(self.loss)(query, key, value, weight)


def assert_same(dynamic, static, arguments, atol=1e-6):
    """Compare the compiled cell with the other, which is not compiled, for these shapes."""
    results = dynamic(*arguments)
    with in_mode("pynative"):
        expected = static(*arguments)
    if isinstance(expected, Tensor):
        results, expected = (results,), (expected,)
    for got, wanted in zip(results, expected):
        np.testing.assert_allclose(got.asnumpy(), wanted.asnumpy(), atol=atol)


@pytest.mark.parametrize(
    ("backend", "rules"),
    (
        ("math", TOGETHER),
        *(pytest.param("math", rules, marks=pytest.mark.slow) for rules in RULES),
        *(("cpu", rules) for rules in RULES if "cpu" in BACKENDS),
    ),
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_one_graph_for_all_sizes(rules, backend):
    dynamic, static = (WeightedGradients(FlashAttention(8, backend=backend, **rules)).set_train() for _ in range(2))
    dynamic.set_inputs(*unknown_sides(), unknown(None, 4, None, 8))
    for batch, seq_q, seq_k in SIZES:
        weight = draw(batch, 4, seq_q, 8, seed=3)
        assert_same(dynamic, static, (*sides(batch, seq_q, seq_k), weight), atol=1e-5)


@pytest.mark.spread
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("rank", (2, 3, 4))
def test_masks_of_unknown_size(rank, backend):
    dynamic, static = (FlashAttention(8, backend=backend) for _ in range(2))
    mask_shape = {2: (None, None), 3: (None, None, None), 4: (None, 1, None, None)}[rank]
    dynamic.set_inputs(*unknown_sides(), unknown(*mask_shape, dtype=ms.uint8))
    for batch, seq_q, seq_k in SIZES:
        shape = {2: (seq_q, seq_k), 3: (batch, seq_q, seq_k), 4: (batch, 1, seq_q, seq_k)}[rank]
        mask = Tensor((np.random.default_rng(0).random(shape) < 0.3).astype(np.uint8))
        assert_same(dynamic, static, (*sides(batch, seq_q, seq_k), mask))


@pytest.mark.parametrize("backend", SLOW_MATH)
def test_a_compact_mask_of_known_shape(backend):
    triangle = Tensor(np.triu(np.ones((1, 128, 128), np.uint8), 1))
    dynamic, static = (FlashAttention(8, backend=backend) for _ in range(2))
    dynamic.set_inputs(*unknown_sides(), triangle)
    for batch, seq_q, seq_k in (*SIZES, (1, 128, 128)):
        assert_same(dynamic, static, (*sides(batch, seq_q, seq_k), triangle))


@pytest.mark.parametrize("backend", SLOW_MATH)
def test_scaled_dot_product_attention(backend):
    class Net(nn.Cell):
        def construct(self, query, key, value, mask):
            return scaled_dot_product_attention(query, key, value, mask, enable_gqa=True)

    dynamic, static = Net(), Net()
    dynamic.set_inputs(*unknown_sides(), unknown(None, None, dtype=ms.bool_))
    with attention_backend(backend):
        for batch, seq_q, seq_k in SIZES:
            mask = Tensor(np.random.default_rng(0).random((seq_q, seq_k)) < 0.7)
            assert_same(dynamic, static, (*sides(batch, seq_q, seq_k), mask))


def test_backends_that_take_no_dynamic_shapes_say_so(monkeypatch):
    from flash_attention.backends import math

    call = Call(batch=UNKNOWN, heads=2, seq_q=UNKNOWN, seq_k=8, head_dim=8, dtype="float32")
    assert explain(call)["math"] == "ok"
    monkeypatch.setattr(math.BACKEND, "dynamic", (), raising=False)
    assert "takes no dynamic shapes in a graph" in explain(call)["math"]
