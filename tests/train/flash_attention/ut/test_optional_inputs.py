"""Sinks, prefixes, segment ids and slopes as a user gives them: equal to the same call in other terms."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention, explain, flash_attention
from flash_attention.call import Call, alibi_slopes
from flash_attention.call.inputs import TensorSpec
from mindspore import Tensor, ops

from tests.train.flash_attention.support.arrays import random
from tests.train.flash_attention.support.calls import make_call
from tests.train.flash_attention.support.cells import Sloped
from tests.train.flash_attention.support.layer_inputs import draw, half
from tests.train.flash_attention.support.modes import MODES_AND_BACKENDS, in_mode

BACKENDS = ("math", "cpu")
SEQ = 150


QUERY, KEY, VALUE = draw(2, 4, SEQ, 24), draw(2, 2, SEQ, 24, seed=1), draw(2, 2, SEQ, 24, seed=2)


def results(backend, *given, **options):
    """Return the output, logsumexp and gradients as NumPy arrays."""

    def loss(query, key, value):
        output, logsumexp = flash_attention(query, key, value, *given, return_lse=True, backend=backend, **options)
        return (output**2).sum(), output, logsumexp

    (_, output, logsumexp), gradients = ops.value_and_grad(loss, (0, 1, 2), has_aux=True)(QUERY, KEY, VALUE)
    return [tensor.asnumpy() for tensor in (output, logsumexp, *gradients)]


def assert_equal(actual, expected):
    """Check equality bit by bit, one after the other."""
    for one, other in zip(actual, expected):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("backend", BACKENDS)
def test_segments_give_the_bits_of_the_mask_that_says_the_same(backend):
    ids = np.sort(np.random.default_rng(3).integers(-1, 4, size=(2, SEQ)).astype(np.int32))
    mask = (ids[:, :, None] != ids[:, None, :]) | (ids[:, :, None] < 0)
    expected = results(backend, Tensor(mask), causal=True)
    assert_equal(results(backend, segment_ids=Tensor(ids), causal=True), expected)
    assert_equal(results(backend, segment_ids=Tensor(ids), kv_segment_ids=Tensor(ids), causal=True), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_prefix_of_nothing_is_causal_and_a_mask_says_the_others(backend):
    assert_equal(results(backend, prefix=(0, 0), causal=True), results(backend, causal=True))
    lengths = np.array([77, 130], np.int32)
    row, column = np.arange(SEQ)[:, None], np.arange(SEQ)
    mask = Tensor((column > row) & (column >= lengths[:, None, None]))
    expected = results(backend, mask)
    for prefix in (Tensor(lengths), (77, 130), [77, 130]):
        for one, other in zip(results(backend, prefix=prefix, causal=True), expected):
            np.testing.assert_allclose(one, other, atol=2e-5)


@pytest.mark.parametrize("backend", BACKENDS)
def test_sinks_of_minus_infinity_are_none(backend):
    nothing = Tensor(np.full(4, -np.inf, np.float32))
    for one, other in zip(results(backend, sinks=nothing, causal=True), results(backend, causal=True)):
        np.testing.assert_allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_sinks_are_taken_as_they_are(backend):
    sinks = draw(4, seed=5, dtype=np.float16)
    query, key, value = (tensor.astype(ms.float16) for tensor in (QUERY, KEY, VALUE))
    by_half = flash_attention(query, key, value, sinks=sinks, backend=backend)
    by_single = flash_attention(query, key, value, sinks=sinks.astype(ms.float32), backend=backend)
    np.testing.assert_array_equal(by_half.asnumpy(), by_single.asnumpy())


@pytest.mark.parametrize(("mode", "backend"), MODES_AND_BACKENDS, indirect=["mode"])
def test_a_prefix_beyond_the_keys_is_refused(mode, backend):
    with pytest.raises(ValueError, match=f"prefix: got {SEQ + 1}, allowed is an integer from 0 to {SEQ}"):
        flash_attention(QUERY, KEY, VALUE, prefix=(3, SEQ + 1), causal=True, backend=backend)
    with pytest.raises(ValueError, match="prefix: got -1"):
        flash_attention(QUERY, KEY, VALUE, prefix=(3, -1), causal=True, backend=backend)


@pytest.mark.parametrize(
    ("fields", "name"), [({"softcap": 1e30}, "softcap"), ({"segments": True, "dtype": "float32"}, "float32")]
)
def test_explain_names_what_a_backend_lacks(fields, name):
    pytest.importorskip("tikemu")
    call = make_call(batch=1, heads=2, seq_q=64, seq_k=64, head_dim=64, causal=True, **fields)
    verdicts = explain(call)
    assert verdicts["cpu"] == verdicts["math"] == "ok"
    assert name in verdicts["emulator"]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_document_of_nan_spoils_no_other(backend, bad):
    ids = np.repeat([3, 1], [77, SEQ - 77]).astype(np.int32)[None].repeat(2, axis=0)

    def run(spoiled):
        arrays = [tensor.asnumpy().copy() for tensor in (QUERY, KEY, VALUE)]
        for array in arrays:
            array[:, :, :77] = spoiled
        given = tuple(map(Tensor, arrays))

        def loss(query, key, value):
            output = flash_attention(query, key, value, segment_ids=Tensor(ids), causal=True, backend=backend)
            return (output[:, :, 77:] ** 2).sum(), output

        (_, output), gradients = ops.value_and_grad(loss, (0, 1, 2), has_aux=True)(*given)
        return [tensor.asnumpy()[:, :, 77:] for tensor in (output, *gradients)]

    assert_equal(run(bad), run(0.5))


BATCH, HEADS, KV_HEADS, FEW, DIM = 2, 4, 2, 37, 24


def slopes(*shape) -> Tensor:
    """Return positive slopes."""
    return Tensor(np.abs(random(*shape)))


def test_layer_takes_other_dtypes_and_standard_slopes(mode):
    layer = FlashAttention(DIM, alibi=True, causal=True, backend="cpu")
    query, key = Tensor(random(BATCH, HEADS, FEW, DIM)), Tensor(random(BATCH, KV_HEADS, FEW, DIM, seed=1))
    standard = np.array(alibi_slopes(Call(BATCH, HEADS, FEW, FEW, DIM)), np.float16)
    given = layer(query, key, key, alibi_slopes=Tensor(standard))
    assert np.array_equal(given.asnumpy(), layer(query, key, key).asnumpy())
    with pytest.raises(ValueError, match="alibi_slopes: given to a layer with alibi=False"):
        FlashAttention(DIM)(query, key, key, None, None, None, None, None, None, Tensor(standard))


@pytest.mark.parametrize("backend", ("cpu", "emulator"))
def test_one_graph_for_all_slopes(backend):
    rules = {"causal": True, "causal_alignment": "bottom_right"}
    given = [half(BATCH, heads, seq, 32, seed=seed) for seed, (heads, seq) in enumerate(((4, 33), (2, 150), (2, 150)))]
    net, plain = (Sloped(flash_attention, backend=name, **rules) for name in (backend, "math"))
    for turn in (1, 2):
        falls = slopes(BATCH, HEADS) * turn
        with in_mode("graph"):
            ours = net(*given, falls).asnumpy()
        right = plain(*(tensor.astype(ms.float32) for tensor in given), falls).asnumpy()
        np.testing.assert_allclose(ours, right, atol=8e-3)
    assert len(net.compile_cache) == 1


def test_counts_of_packed_sequences():
    from flash_attention.call.varlen import varlen_call

    tensors = [TensorSpec((60, HEADS, DIM), "float32")] * 3
    lengths = TensorSpec((5,), "int32")
    for items in (4, 5):
        given = varlen_call(*tensors, lengths, lengths, alibi_slopes=TensorSpec((items, HEADS), "float32"))
        assert given.varlen.count == items
