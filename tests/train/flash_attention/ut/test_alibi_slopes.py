"""The caller's slopes for ALiBi beside the shared cases: other dtypes, errors, one graph for all slopes."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention, flash_attention, flash_attention_varlen, paged_attention
from flash_attention.call import Call, alibi_slopes
from flash_attention.call.inputs import TensorSpec
from mindspore import Tensor

from tests.train.flash_attention.support.arrays import random
from tests.train.flash_attention.support.cells import Sloped
from tests.train.flash_attention.support.layer_inputs import half
from tests.train.flash_attention.support.modes import in_mode

BATCH, HEADS, KV_HEADS, SEQ, DIM = 2, 4, 2, 37, 24


def slopes(*shape) -> Tensor:
    """Return positive slopes."""
    return Tensor(np.abs(random(*shape)))


def test_layer_takes_other_dtypes_and_standard_slopes(mode):
    layer = FlashAttention(DIM, alibi=True, causal=True, backend="cpu")
    query, key = Tensor(random(BATCH, HEADS, SEQ, DIM)), Tensor(random(BATCH, KV_HEADS, SEQ, DIM, seed=1))
    standard = np.array(alibi_slopes(Call(BATCH, HEADS, SEQ, SEQ, DIM)), np.float16)
    given = layer(query, key, key, alibi_slopes=Tensor(standard))
    assert np.array_equal(given.asnumpy(), layer(query, key, key).asnumpy())
    with pytest.raises(ValueError, match="alibi_slopes: given to a layer with alibi=False"):
        FlashAttention(DIM)(query, key, key, None, None, None, None, None, None, Tensor(standard))


def test_errors_and_refusals():
    query = half(BATCH, HEADS, SEQ, DIM)
    with pytest.raises(ValueError, match=r"alibi_slopes: got shape \(3, 4\), allowed are .* here \(4,\) or \(2, 4\)"):
        flash_attention(query, query, query, alibi_slopes=slopes(3, HEADS))
    with pytest.raises(TypeError, match="alibi_slopes: got dtype int32"):
        flash_attention(query, query, query, alibi_slopes=Tensor(np.ones(HEADS, np.int32)))
    with pytest.raises(TypeError, match="alibi_slopes: got list, allowed is a Tensor"):
        paged_attention(query, query, query, query, query, alibi_slopes=[1.0])
    bias = Tensor(np.zeros((1, HEADS, 1, SEQ), np.float16))
    with pytest.raises(ValueError, match="alibi_slopes: given together with a bias"):
        flash_attention(query, query, query, None, bias, alibi_slopes=slopes(HEADS))
    ends, rows = (SEQ,), Tensor(random(SEQ, HEADS, DIM))
    with pytest.raises(ValueError, match=r"allowed are \(heads,\) and \(sequences, heads\), here \(4,\) or \(1, 4\)"):
        flash_attention_varlen(rows, rows, rows, ends, ends, alibi_slopes=slopes(2, HEADS))


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
