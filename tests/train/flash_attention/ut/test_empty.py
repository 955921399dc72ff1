"""Test tensors without elements: zeros or no output, as in torch and flash_attn. Their gradients are zero."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import (
    FlashAttention,
    KVCache,
    flash_attention,
    flash_attention_varlen,
    paged_attention,
    paged_caches,
    reshape_and_cache,
    scaled_dot_product_attention,
)
from flash_attention.bridge.constants import tensor_of
from flash_attention.bridge.versions import OLD
from flash_attention.compat.ascend910 import FlashAttention as EarlierLayer
from flash_attention.compat.flash_attn import flash_attn_varlen_func, flash_attn_with_kvcache
from flash_attention.compat.flash_attn.bert_padding import pad_input, unpad_input
from flash_attention.compat.mindspore_ops import flash_attention_score
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.cells import Call, Gradients
from tests.train.flash_attention.support.modes import MODES_AND_BACKENDS, in_mode

BACKENDS = (*MODES_AND_BACKENDS, ("pynative", "emulator"), pytest.param("graph", "emulator", marks=pytest.mark.slow))
#: (batch, heads, seq_q, seq_k)
SIZES = {"batch": (0, 2, 3, 4), "heads": (2, 0, 3, 4), "queries": (2, 2, 0, 4), "keys": (2, 2, 3, 0)}
LAYOUTS = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3)}


@pytest.fixture(autouse=True)
def graphs_hold_empty_tensors(request):
    """Skip graphs of MindSpore 2.0, which hold none."""
    if OLD and "pynative" not in request.node.name:
        pytest.skip("a graph of this MindSpore holds no Tensor without elements")


def ones(*shape, dtype=np.float16) -> Tensor:
    """Return a tensor of ones."""
    return tensor_of(np.ones(shape, dtype))


def integers(*shape) -> Tensor:
    """Return int32 zeros."""
    return ones(*shape, dtype=np.int32) * 0


def tensors(batch, heads, seq_q, seq_k, layout="BNSD"):
    """Return query, key and value."""
    sides = ((batch, heads, seq_q, 16), (batch, heads, seq_k, 16), (batch, heads, seq_k, 16))
    return [ones(*(shape[axis] for axis in LAYOUTS[layout])) for shape in sides]


def check(net, inputs, rows, others=()):
    """Check that output and gradients are zeros, and each row that there is sees nothing."""
    output, logsumexp = net(*inputs, *others)
    assert output.shape == inputs[0].shape and output.dtype == inputs[0].dtype
    assert logsumexp.shape == rows and logsumexp.dtype == ms.float32
    assert not output.asnumpy().any() and np.isneginf(logsumexp.asnumpy()).all()
    gradients = Gradients(net)(*inputs, *others, (ops.ones_like(output), ops.ones_like(logsumexp)))
    for tensor, gradient in zip(inputs, gradients):
        assert gradient.shape == tensor.shape and not gradient.asnumpy().any()


@pytest.mark.spread(2)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize(("mode", "backend"), BACKENDS, indirect=["mode"])
def test_a_size_of_zero(mode, backend, size, layout):
    batch, heads, seq_q, seq_k = SIZES[size]
    net = Call(flash_attention, return_lse=True, causal=True, input_layout=layout, backend=backend)
    check(net, tensors(batch, heads, seq_q, seq_k, layout), (batch, heads, seq_q))


@pytest.mark.spread(2)
@pytest.mark.parametrize(
    "lengths", [((0, 0), (0, 0)), ((0,), (0,)), ((), ()), ((0, 0, 0), (0, 1, 4)), ((2, 3), (0, 0, 0))]
)
@pytest.mark.parametrize("as_tensor", [False, True], ids=["tuple", "tensor"])
@pytest.mark.parametrize(("mode", "backend"), BACKENDS, indirect=["mode"])
def test_packed_sequences_without_tokens(mode, backend, as_tensor, lengths):
    queries, keys = (max(ends, default=0) for ends in lengths)
    rules = {"return_lse": True, "backend": backend}
    if as_tensor:
        net, others = Call(flash_attention_varlen, **rules), [tensor_of(np.array(ends, np.int32)) for ends in lengths]
    else:
        net, others = Call(flash_attention_varlen, cu_seqlens_q=lengths[0], cu_seqlens_k=lengths[1], **rules), ()
    check(net, [ones(queries, 2, 16), ones(keys, 2, 16), ones(keys, 2, 16)], (2, queries), others)


def test_without_keys_the_sinks_are_the_logsumexp(mode):
    class Net(nn.Cell):
        def construct(self, query, key, value, sinks):
            return flash_attention(query, key, value, sinks=sinks, return_lse=True)

    query, key, value = tensors(1, 2, 3, 0)
    inputs = query, key, value, Tensor(np.float32([0.5, 2.0]))
    output, logsumexp = Net()(*inputs)
    np.testing.assert_array_equal(logsumexp.asnumpy(), np.float32([[[0.5] * 3, [2.0] * 3]]))
    gradients = Gradients(Net())(*inputs, (output, ops.ones_like(logsumexp)))
    np.testing.assert_array_equal(gradients[3].asnumpy(), np.float32([3, 3]))


@pytest.mark.parametrize("shape", [(0, 16), (0, 3, 16), (0, 2, 3, 16), (2, 0, 2, 3, 16), (2, 2, 0, 16)])
def test_scaled_dot_product_attention(mode, shape):
    if OLD and len(shape) != 4:
        pytest.skip("Reshape of this MindSpore takes no Tensor without elements")
    assert Call(scaled_dot_product_attention)(*[ones(*shape)] * 3).shape == shape


@pytest.mark.parametrize("layer", [FlashAttention, EarlierLayer])
def test_layers(mode, layer):
    mask = ones(0, 3, 4, dtype=np.uint8)
    assert layer(16)(*tensors(0, 2, 3, 4), mask).shape == (0, 2, 3, 16)


def test_mindspores_own_operator(mode):
    query, key, value = tensors(2, 2, 3, 0)
    net = Call(flash_attention_score, head_num=2, input_layout="BNSD")
    np.testing.assert_array_equal(net(query, key, value).asnumpy(), np.zeros((2, 2, 3, 16)))


@pytest.mark.parametrize(
    ("query", "blocks", "table"), [((0, 2, 12), 3, (0, 2)), ((2, 0, 2, 16), 3, (2, 2)), ((2, 2, 16), 0, (2, 1)),
                                   ((2, 2, 16), 3, (2, 0))],
)  # fmt: skip
@pytest.mark.parametrize(("mode", "backend"), BACKENDS, indirect=["mode"])
def test_paged_attention(mode, backend, query, blocks, table):
    net = Call(paged_attention, backend=backend)
    output = net(ones(*query), *[ones(blocks, 16, 2, 16)] * 2, integers(*table), integers(query[0]))
    assert output.shape == query and not output.asnumpy().any()


def test_caches_take_no_token(mode):
    class Update(nn.Cell):
        def __init__(self):
            super().__init__()
            self.keys, self.values = paged_caches(2, 4, 2, 12)

        def construct(self, key, value, slots):
            return reshape_and_cache(key, value, self.keys, self.values, slots)

    assert Update()(ones(0, 2, 12), ones(0, 2, 12), integers(0)).shape == (1,)
    cache = KVCache(2, 8, 2, 12)
    cache(*[ones(2, 3, 2, 12)] * 3)
    assert cache(*[ones(2, 0, 2, 12)] * 3).shape == (2, 0, 2, 12)
    np.testing.assert_array_equal(cache.lengths.asnumpy(), [3, 3])


@pytest.mark.spread(2)
@pytest.mark.parametrize("with_lse", [False, True])
@pytest.mark.parametrize("batch, seq, new", [(0, 1, 1), (2, 0, 1), (2, 1, 0), (2, 0, 0)])
def test_a_cache_of_flash_attn(mode, batch, seq, new, with_lse):
    if OLD and batch == 0:
        pytest.skip("Gather and Reshape of this MindSpore take no Tensor without elements")

    class Step(nn.Cell):
        def __init__(self):
            super().__init__()
            self.keys, self.values = paged_caches(2, 8, 2, 16)

        def construct(self, q, k, v, lengths):
            results = flash_attn_with_kvcache(
                q, self.keys, self.values, k, v, cache_seqlens=lengths, return_softmax_lse=with_lse
            )
            return results[0] if with_lse else results

    token = ones(batch, new, 2, 16)
    assert Step()(ones(batch, seq, 2, 16), token, token, integers(batch)).shape == (batch, seq, 2, 16)


@pytest.mark.parametrize("mode", ["pynative"], indirect=True)
def test_padding_alone(mode):
    hidden, mask = ones(2, 3, 4), integers(2, 3)

    def call(hidden):
        rows, indices, ends, longest, _ = unpad_input(hidden, mask)
        assert rows.shape == (0, 4) and longest == 0
        q = rows.reshape((0, 2, 2))
        output = flash_attn_varlen_func(q, q, q, ends, ends, longest, longest)
        return pad_input(output.reshape((0, 4)) + rows, indices, 2, 3)

    np.testing.assert_array_equal(call(hidden).asnumpy(), np.zeros((2, 3, 4)))
    np.testing.assert_array_equal(ops.grad(lambda hidden: call(hidden).sum())(hidden).asnumpy(), np.zeros((2, 3, 4)))


def test_graphs_of_unknown_sizes_take_zero():
    net = Call(flash_attention, return_lse=True)
    net.set_inputs(*[Tensor(shape=[None, 2, None, 16], dtype=ms.float16)] * 3)
    gradients = Gradients(net)
    unknown = Tensor(shape=[None, 2, None], dtype=ms.float32)
    gradients.set_inputs(
        *[Tensor(shape=[None, 2, None, 16], dtype=ms.float16)] * 3,
        (Tensor(shape=[None, 2, None, 16], dtype=ms.float16), unknown),
    )
    with in_mode("graph"):
        for batch, heads, seq_q, seq_k in (SIZES[name] for name in ("batch", "queries", "keys")):
            check(net, tensors(batch, heads, seq_q, seq_k), (batch, heads, seq_q))
    assert len(net.compile_cache) == 1
