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
LENGTHS = np.array([77, 130], np.int32)
HALF = draw(4, seed=5, dtype=np.float16)
#: By name: inputs, inputs that say the same, other rules, and the difference of the results that rounding leaves.
SAME = {
    "a tuple": ({"prefix": (77, 130)}, {"prefix": Tensor(LENGTHS)}, {"causal": True}, 0),
    "a list": ({"prefix": [77, 130]}, {"prefix": Tensor(LENGTHS)}, {"causal": True}, 0),
    "no sinks": ({"sinks": Tensor(np.full(4, -np.inf, np.float32))}, {}, {"causal": True}, 1e-6),
    "half sinks": ({"sinks": HALF}, {"sinks": HALF.astype(ms.float32)}, {}, 0),
}


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", SAME)
def test_the_same_in_other_terms(name, backend):
    *both, rules, error = SAME[name]
    dtype = ms.float16 if name == "half sinks" else ms.float32
    found = []
    for given in both:

        def loss(query, key, value, given=given):
            output, logsumexp = flash_attention(query, key, value, return_lse=True, backend=backend, **given, **rules)
            return (output**2).sum(), output, logsumexp

        tensors = (tensor.astype(dtype) for tensor in (QUERY, KEY, VALUE))
        (_, *outputs), gradients = ops.value_and_grad(loss, (0, 1, 2), has_aux=True)(*tensors)
        found.append([tensor.asnumpy() for tensor in (*outputs, *gradients)])
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=0 if error == 0 else 1e-7, atol=error)


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
