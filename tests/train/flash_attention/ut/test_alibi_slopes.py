"""The caller's slopes for ALiBi: they add a bias to every score, and this bias has a float64 truth."""

from dataclasses import replace

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention, flash_attention, flash_attention_varlen, paged_attention
from flash_attention.call import AttentionRules, Call, alibi_slopes
from flash_attention.call.inputs import TensorSpec
from flash_attention.reference import Attention
from mindspore import Tensor

from tests.train.flash_attention.support.arrays import random
from tests.train.flash_attention.support.cases import check_call
from tests.train.flash_attention.support.cells import Gradients, Sloped
from tests.train.flash_attention.support.layer_inputs import half
from tests.train.flash_attention.support.modes import MODES_AND_BACKENDS, in_mode

BATCH, HEADS, KV_HEADS, SEQ_Q, SEQ_K, DIM = 2, 4, 2, 37, 70, 24
RULES = {
    "full": {},
    "causal": {"causal": True, "causal_alignment": "bottom_right"},
    "window": {"window_size": (30, 9), "softcap": 4.0, "causal_alignment": "bottom_right"},
}


def slopes(per_item: bool, items=BATCH) -> np.ndarray:
    """Return slopes unlike the standard slopes, one of them below zero."""
    values = np.random.default_rng(5).uniform(0.01, 0.6, (items, HEADS)).astype(np.float32)
    values[0, 1] = -0.03
    return values if per_item else values[0]


def problem_of(rules: dict, **sizes) -> Call:
    """Return the same call with a bias for every score."""
    shape = {"batch": BATCH, "heads": HEADS, "kv_heads": KV_HEADS, "seq_q": SEQ_Q, "seq_k": SEQ_K, **sizes}
    scores = shape["batch"], HEADS, shape["seq_q"], shape["seq_k"]
    return Call(
        **shape,
        head_dim=DIM,
        dtype="float32",
        rules=AttentionRules.from_arguments(**rules),
        bias_shape=scores,
        bias_dtype="float32",
    )


def bias_of(problem: Call, falls: np.ndarray) -> np.ndarray:
    """Return the bias of the slopes in float64."""
    distance = np.abs(np.arange(problem.seq_q)[:, None] + problem.offset - np.arange(problem.seq_k))
    return -np.broadcast_to(falls, (problem.batch, HEADS)).astype(np.float64)[..., None, None] * distance


@pytest.mark.parametrize("per_item", (False, True), ids=("heads", "batch_heads"))
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("mode, backend", MODES_AND_BACKENDS, indirect=["mode"])
def test_truth(mode, backend, rules, per_item):
    if mode == "graph" and (rules != "window") != per_item:
        pytest.skip("a graph for each rule is enough")
    problem, falls = problem_of(RULES[rules]), slopes(per_item)
    shapes = problem.shape_query(), problem.shape_key(), problem.shape_value()
    arrays = [random(*shape, seed=index) for index, shape in enumerate(shapes)]
    upstream = {
        "d_output": random(*problem.shape_output(), seed=8),
        "d_logsumexp": random(*problem.shape_lse(), seed=9),
    }
    net = Sloped(flash_attention, return_lse=True, backend=backend, **RULES[rules])
    inputs = [Tensor(array) for array in (*arrays, falls)]
    *gradients, d_slopes = Gradients(net)(*inputs, tuple(map(Tensor, upstream.values())))
    actual = Attention(*(tensor.asnumpy() for tensor in (*net(*inputs), *gradients)))
    check_call(problem, arrays, actual, bias=bias_of(problem, falls), **upstream)
    assert not d_slopes.asnumpy().any()


def test_layer_takes_other_dtypes_and_standard_slopes(mode):
    layer = FlashAttention(DIM, alibi=True, causal=True, backend="cpu")
    query, key = Tensor(random(BATCH, HEADS, SEQ_Q, DIM)), Tensor(random(BATCH, KV_HEADS, SEQ_Q, DIM, seed=1))
    standard = np.array(alibi_slopes(problem_of({})), np.float16)
    given = layer(query, key, key, alibi_slopes=Tensor(standard))
    assert np.array_equal(given.asnumpy(), layer(query, key, key).asnumpy())
    with pytest.raises(ValueError, match="alibi_slopes: given to a layer with alibi=False"):
        FlashAttention(DIM)(query, key, key, None, None, None, None, None, None, Tensor(standard))


def test_errors_and_refusals():
    query = Tensor(random(BATCH, HEADS, SEQ_Q, DIM).astype(np.float16))
    with pytest.raises(ValueError, match=r"alibi_slopes: got shape \(3, 4\), allowed are .* here \(4,\) or \(2, 4\)"):
        flash_attention(query, query, query, alibi_slopes=Tensor(slopes(True, items=3)))
    with pytest.raises(TypeError, match="alibi_slopes: got dtype int32"):
        flash_attention(query, query, query, alibi_slopes=Tensor(np.ones(HEADS, np.int32)))
    with pytest.raises(TypeError, match="alibi_slopes: got list, allowed is a Tensor"):
        paged_attention(query, query, query, query, query, alibi_slopes=[1.0])
    bias = Tensor(np.zeros((1, HEADS, 1, SEQ_Q), np.float16))
    with pytest.raises(ValueError, match="alibi_slopes: given together with a bias"):
        flash_attention(query, query, query, None, bias, alibi_slopes=Tensor(slopes(False)))
    ends, rows = (SEQ_Q,), Tensor(random(SEQ_Q, HEADS, DIM))
    with pytest.raises(ValueError, match=r"allowed are \(heads,\) and \(sequences, heads\), here \(4,\) or \(1, 4\)"):
        flash_attention_varlen(rows, rows, rows, ends, ends, alibi_slopes=Tensor(slopes(True)))


OF_OPERATORS = {
    "forward": (33, "BNSD", False),
    "decode_per_item": (2, "BNSD", True),
    "forward_per_item": (33, "BNSD", True),
    "tokens_per_item": (33, "BSND", True),
}


@pytest.mark.daily(
    "pynative-forward-both sides",
    "pynative-decode_per_item-causal",
    "*-forward_per_item-causal",
    "pynative-tokens_per_item-both sides",
)
@pytest.mark.parametrize("causal", (False, True), ids=("both sides", "causal"))
@pytest.mark.parametrize("name", OF_OPERATORS)
def test_tik_operators_take_slopes_that_are_data(name, causal, mode):
    queries, layout, per_item = OF_OPERATORS[name]
    rules = {"causal": causal, "causal_alignment": "bottom_right", "input_layout": layout}
    shapes = (2, 4, queries, 32), (2, 2, 150, 32), (2, 2, 150, 32), (2, 4, queries, 32)
    if layout == "BSND":
        shapes = tuple((batch, seq, heads, size) for batch, heads, seq, size in shapes)
    query, key, value, d_output = (half(*shape, seed=seed) for seed, shape in enumerate(shapes))
    net, plain = (Sloped(flash_attention, backend=backend, **rules) for backend in ("emulator", "math"))
    for seed in (4, 5):  # other slopes in the same graph
        falls = Tensor(np.random.default_rng(seed).uniform(-0.1, 1.5, (2, 4) if per_item else 4).astype(np.float32))
        results = []
        for cell, dtype in ((net, ms.float16), (plain, ms.float32)):
            given = *(tensor.astype(dtype) for tensor in (query, key, value)), falls
            with in_mode(mode if cell is net else "pynative"):
                gradient = Gradients(cell)(*given, d_output.astype(dtype))
                results.append([tensor.astype(ms.float32).asnumpy() for tensor in (cell(*given), *gradient)])
        for index, (ours, right) in enumerate(zip(*results)):
            np.testing.assert_allclose(ours, right, atol=8e-3, err_msg=f"result {index}")
        assert not results[0][4].any()


@pytest.mark.daily("pynative-heads", "graph-items_heads")
@pytest.mark.parametrize("per_item", (False, True), ids=("heads", "items_heads"))
def test_tik_operators_take_slopes_in_pages(per_item, mode):
    caches = half(9, 16, 2, 32, seed=1), half(9, 16, 2, 32, seed=2)
    tables = Tensor(np.array([[4, 1, 6], [2, 5, 8]], np.int32)), Tensor(np.array([41, 23], np.int32))
    given = half(2, 3, 4, 32, seed=3), *caches, *tables
    nets = [Sloped(paged_attention, backend=backend) for backend in ("emulator", "cpu")]
    for turn in range(2):
        falls = Tensor(slopes(per_item) * np.float32(1 + turn))
        ours, plain = (net(*given, falls).asnumpy() for net in nets)
        np.testing.assert_allclose(ours, plain, atol=2e-3)


def test_fused_makes_a_shift_of_them():
    from flash_attention.backends.fused import BACKEND, _RealShift, fused_arguments

    falls = slopes(True)
    problem = replace(problem_of({}), dtype="float16", bias_shape=None, bias_dtype=None, slopes_shape=falls.shape)
    assert BACKEND.refuse(problem) is None
    tensors = Tensor(np.zeros(problem.shape_query())), Tensor(np.zeros(problem.shape_key()))
    shift = _RealShift(problem, fused_arguments(problem))(*tensors, (Tensor(falls),))
    exact = bias_of(problem, falls) / problem.scale
    np.testing.assert_allclose(shift.asnumpy(), exact, rtol=2.0**-11, atol=1e-6)


def test_counts_of_packed_sequences():
    from flash_attention.call.varlen import varlen_call

    tensors = [TensorSpec((60, HEADS, DIM), "float32")] * 3
    lengths = TensorSpec((5,), "int32")
    for items in (4, 5):
        slopes = TensorSpec((items, HEADS), "float32")
        given = varlen_call(*tensors, lengths, lengths, alibi_slopes=slopes)
        assert given.varlen.count == items
