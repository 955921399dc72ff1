"""Graphs compiled once for any batch and any lengths give what the shapes themselves give."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention, attention_backend, explain, scaled_dot_product_attention
from flash_attention.backends.registry import get_backend
from flash_attention.call import Call
from flash_attention.call.inputs import UNKNOWN, TensorSpec
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.layer_inputs import draw
from tests.train.flash_attention.support.modes import in_mode

BACKENDS = [name for name in ("math", "cpu") if get_backend(name).dynamic]
SIZES = ((2, 70, 90), (1, 1, 200), (3, 200, 9))
RULES = (
    {"causal": True, "causal_alignment": "bottom_right"},
    {"window_size": (5, 9), "causal_alignment": "bottom_right"},
    {"prev_block_num": 1, "next_block_num": 0, "tiling_stgy_name": "sparse_64"},
    {"prev_block_num": 1, "next_block_num": 0, "tiling_stgy_name": "sparse_64", "causal_alignment": "bottom_right"},
    {"alibi": True, "causal_alignment": "bottom_right"},
    {"dropout_rate": 0.3, "seed": 3},
    {"input_layout": "BSH", "causal": True},
    {"input_layout": "BSND"},
    {"input_layout": "SBH", "causal": True},
)


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


class Gradients(nn.Cell):
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


def rules_by_backend() -> list:
    """Return every rule on backend cpu, and some rules on backend math. Graphs of math take seconds; the others there
    are slow.
    """
    everyday = RULES[3], RULES[5]
    return [
        pytest.param(backend, rules, marks=[] if backend == "cpu" or rules in everyday else [pytest.mark.slow])
        for backend in BACKENDS
        for rules in RULES
    ]


@pytest.mark.parametrize(
    ("backend", "rules"),
    rules_by_backend(),
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_one_graph_for_all_sizes(rules, backend):
    def shape(heads, seq, batch):
        layout = rules.get("input_layout", "BNSD")
        return {
            "BNSD": (batch, heads, seq, 8),
            "BSND": (batch, seq, heads, 8),
            "BSH": (batch, seq, heads * 8),
            "SBH": (seq, batch, heads * 8),
        }[layout]

    dynamic, static = (Gradients(FlashAttention(8, backend=backend, **rules)).set_train() for _ in range(2))
    dynamic.set_inputs(*(unknown(*shape(heads, None, None)) for heads in (4, 2, 2, 4)))
    for batch, seq_q, seq_k in SIZES:
        sizes = (4, seq_q), (2, seq_k), (2, seq_k), (4, seq_q)
        tensors = [draw(*shape(heads, seq, batch), seed=seed) for seed, (heads, seq) in enumerate(sizes)]
        assert_same(dynamic, static, tensors, atol=1e-5)


@pytest.mark.daily(f"*{BACKENDS[-1]}*")
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


@pytest.mark.daily(f"*{BACKENDS[-1]}*")
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_compact_mask_of_known_shape(backend):
    triangle = Tensor(np.triu(np.ones((1, 128, 128), np.uint8), 1))
    dynamic, static = (FlashAttention(8, backend=backend) for _ in range(2))
    dynamic.set_inputs(*unknown_sides(), triangle)
    for batch, seq_q, seq_k in (*SIZES, (1, 128, 128)):
        assert_same(dynamic, static, (*sides(batch, seq_q, seq_k), triangle))


@pytest.mark.parametrize("backend", BACKENDS)
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


def test_what_has_to_be_known():
    heads, dim = unknown(2, None, 16, 8), unknown(2, 4, 16, None)
    for query in (heads, dim):
        layer = FlashAttention(8, backend="math")
        layer.set_inputs(query, query, query)
        with pytest.raises(ValueError, match="query: got an unknown number of heads or head_dim"):
            layer(*(draw(2, 4, 16, 8) for _ in range(3)))


def test_sizes_that_contradict_each_other_are_refused_all_the_same():
    def describe(*shapes, **others):
        return Call.from_inputs(*(TensorSpec(shape, "float32") for shape in shapes), **others)

    problem = describe((UNKNOWN, 4, 7, 8), (3, 2, UNKNOWN, 8), (UNKNOWN, 2, 9, 8))
    assert (problem.batch, problem.seq_q, problem.seq_k, problem.dynamic) == (3, 7, 9, False)
    with pytest.raises(ValueError, match="value: got shape"):
        describe((UNKNOWN, 4, 7, 8), (UNKNOWN, 2, 8, 8), (UNKNOWN, 2, 9, 8))
    with pytest.raises(ValueError, match=r"attention_mask: got shape \(5, 9\), .* \(7, any\)"):
        describe((UNKNOWN, 4, 7, 8), *[(UNKNOWN, 2, UNKNOWN, 8)] * 2, mask=TensorSpec((5, 9), "uint8"))


def test_backends_that_take_no_dynamic_shapes_say_so(monkeypatch):
    from flash_attention.backends import math

    problem = Call(batch=UNKNOWN, heads=2, seq_q=UNKNOWN, seq_k=8, head_dim=8, dtype="float32")
    assert explain(problem)["math"] == "ok"
    monkeypatch.setattr(math.BACKEND, "dynamic", (), raising=False)
    assert "takes no dynamic shapes in a graph" in explain(problem)["math"]
