"""The FlashAttention cell: signature, rules, modes of MindSpore, gradients, dropout from step to step."""

import inspect

import mindspore as ms
import numpy as np
import pytest
from flash_attention import BlockMask, FlashAttention, attention_backend, reference
from flash_attention.call import Call
from mindspore import Tensor, nn

from tests.train.flash_attention.support.cells import Gradients
from tests.train.flash_attention.support.layer_inputs import draw, inputs, near, truth
from tests.train.flash_attention.support.layouts import laid_out
from tests.train.flash_attention.support.modes import MODES_AND_BACKENDS
from tests.train.flash_attention.support.versions import dtype_named

BACKENDS = ("math", "cpu")
TRIANGLE = np.triu(np.ones((1, 128, 128), np.float16), 1)


def test_the_positional_signature_is_the_one_users_have():
    parameters = list(inspect.signature(FlashAttention.__init__).parameters.values())[1:]
    positional = [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    assert positional == [
        ("head_dim", inspect.Parameter.empty),
        ("dropout_rate", 0.0),
        ("prev_block_num", 65536),
        ("next_block_num", 65536),
        ("tiling_stgy_name", "sparse"),
        ("dp", 1),
        ("mp", 1),
        ("have_attention_mask_batch", True),
        ("alibi", False),
    ]
    parameters = list(inspect.signature(FlashAttention.construct).parameters.values())[1:]
    construct = [(p.name, p.default) for p in parameters if p.kind is p.POSITIONAL_OR_KEYWORD]
    names = ["query", "key", "value", "attention_mask", "alibi_mask", "sinks", "prefix", "segment_ids"]
    assert [name for name, _ in construct] == [*names, "kv_segment_ids", "alibi_slopes", "block_mask"]
    assert all(default is None for _, default in construct[3:])


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"head_dim": 0}, ValueError, "head_dim: got 0, allowed is an integer from 1 to 576"),
        ({"input_layout": "TH"}, ValueError, "batch: needed with input_layout TH"),
        ({"batch": 2}, ValueError, "batch: got 2 with input_layout BNSD, allowed only with TH"),
    ],
)
def test_bad_rules_are_refused_when_the_layer_is_made(arguments, error, message):
    with pytest.raises(error, match=message):
        FlashAttention(**{"head_dim": 32, **arguments})


@pytest.mark.parametrize(("mode", "backend"), MODES_AND_BACKENDS, indirect=["mode"])
def test_every_mask_shape_hides_the_same(backend, mode):
    query, key, value = inputs(seq_q=56)
    causal = np.triu(np.ones((56, 56)), 1)
    expected = truth(query, key, value, causal=True).output
    layer = FlashAttention(32, backend=backend)
    masks = [causal, causal[None], np.broadcast_to(causal, (2, 56, 56)), np.broadcast_to(causal, (2, 1, 56, 56))]
    for mask in masks:
        near(layer(query, key, value, Tensor(mask.astype(np.float16))), expected)
    for dtype in (np.float32, np.uint8, np.bool_):
        near(layer(query, key, value, Tensor(causal.astype(dtype))), expected)
    near(layer(query, key, value, Tensor(TRIANGLE)), expected)
    near(layer(query, key, value, Tensor(TRIANGLE[0])), expected)
    near(FlashAttention(32, causal=True, backend=backend)(query, key, value), expected)


@pytest.mark.parametrize(("mode", "backend"), MODES_AND_BACKENDS, indirect=["mode"])
def test_a_row_for_each_item_of_the_batch(backend, mode):
    layer, padding = FlashAttention(32, backend=backend), np.zeros((2, 1, 56), np.uint8)
    padding[1, :, 20:] = 1
    for seq_q in (56, 1):
        query, key, value = inputs(seq_q=56)
        query = query[:, :, :seq_q]
        rank_3, rank_4 = (layer(query, key, value, Tensor(mask)).asnumpy() for mask in (padding, padding[:, None]))
        np.testing.assert_array_equal(rank_3, rank_4)
        near(Tensor(rank_3), truth(query, key, value, mask=padding[:, None]).output)


@pytest.mark.spread
@pytest.mark.parametrize(("mode", "backend"), MODES_AND_BACKENDS, indirect=["mode"])
@pytest.mark.parametrize("layout", ("BNSD", "BSND", "BSH", "SBH", "TH"))
def test_every_layout(layout, backend, mode):
    query, key, value = inputs()
    d_output = draw(*query.shape, seed=3)
    exact = truth(query, key, value, causal=True, d_output=d_output)
    batch = query.shape[0] if layout == "TH" else None
    layer = FlashAttention(32, causal=True, input_layout=layout, batch=batch, backend=backend)
    converted = [Tensor(laid_out(tensor.asnumpy(), layout)) for tensor in (query, key, value, d_output)]
    output = layer(*converted[:3])
    assert output.shape == converted[0].shape
    near(output, laid_out(exact.output, layout))
    for gradient, expected in zip(Gradients(layer)(*converted), (exact.d_query, exact.d_key, exact.d_value)):
        near(gradient, laid_out(expected, layout))


@pytest.mark.parametrize(("mode", "backend"), MODES_AND_BACKENDS, indirect=["mode"])
@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float32"))
def test_output_and_gradients_have_the_dtype_of_the_inputs(dtype, backend, mode):
    dtype = dtype_named(dtype)
    tensors = [tensor.astype(dtype) for tensor in inputs()]
    layer = FlashAttention(32, backend=backend)
    output = layer(*tensors)
    assert output.dtype == dtype
    assert [gradient.dtype for gradient in Gradients(layer)(*tensors, output)] == [output.dtype] * 3


OPERATORS = [pytest.param(mode, "emulator", marks=pytest.mark.system) for mode in ("graph", "pynative")]


@pytest.mark.parametrize(("mode", "backend"), [*MODES_AND_BACKENDS, *OPERATORS], indirect=["mode"])
@pytest.mark.parametrize("mask_dtype", (np.float16, np.bool_, np.uint8))
def test_all_gradients_with_a_mask_among_the_inputs(mask_dtype, backend, mode):
    dtype, error = (np.float16, 8e-3) if backend == "emulator" else (np.float32, 2e-5)
    query, key, value = inputs(dtype=dtype)
    mask = (np.random.default_rng(1).random((2, 40, 56)) < 0.3).astype(mask_dtype)
    d_output = draw(*query.shape, seed=3, dtype=dtype)
    exact = truth(query, key, value, mask=mask[:, None], d_output=d_output)
    gradients = Gradients(FlashAttention(32, backend=backend))(query, key, value, Tensor(mask), d_output)
    assert len(gradients) == 4
    for gradient, expected in zip(gradients, (exact.d_query, exact.d_key, exact.d_value)):
        near(gradient, expected, error)
    assert gradients[3].shape == mask.shape
    assert not gradients[3].asnumpy().any()


@pytest.mark.spread(since=(2, 8))
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradient_of_a_given_alibi_mask_and_its_refusal(backend, mode):
    query, key, value = inputs()
    alibi = draw(2, 4, 1, 56, seed=4)
    d_output = draw(*query.shape, seed=3)
    call = Call(2, 4, 40, 56, 32, 2, "float32", bias_shape=(2, 4, 1, 56), bias_dtype="float32")
    arrays = (tensor.asnumpy() for tensor in (query, key, value))
    exact = reference.truth(call, *arrays, bias=alibi.asnumpy(), d_output=d_output.asnumpy())
    asked = Gradients(FlashAttention(32, alibi=True, backend=backend))(query, key, value, None, alibi, d_output)
    assert len(asked) == 4
    near(asked[0], exact.d_query)
    near(asked[3], exact.d_bias, 1e-4)
    layer = FlashAttention(32, alibi=True, alibi_grad=False, backend=backend)
    spared = Gradients(layer)(query, key, value, None, alibi, d_output)
    near(spared[0], exact.d_query)
    assert not spared[3].asnumpy().any()


@pytest.mark.spread(since=(2, 8))
@pytest.mark.parametrize("backend", BACKENDS)
def test_bad_inputs_are_refused_before_anything_runs(backend, mode):
    query, key, value = inputs()
    layer = FlashAttention(32, backend=backend)
    alibi = draw(2, 4, 1, 56)
    for arguments, error, message in (
        ((query[0], key, value), ValueError, "query: got rank 3"),
        ((query, key.astype(ms.float16), value), TypeError, "key: got dtype float16"),
        ((query, key, value, Tensor(np.ones((2, 56, 40), np.uint8))), ValueError, "attention_mask: got shape"),
        ((query, key, value, None, alibi), ValueError, "alibi_mask: given to a layer with alibi=False"),
        (tuple(draw(2, 2, 8, 16) for _ in range(3)), ValueError, "query: got head_dim 16 .* layer's head_dim 32"),
    ):
        with pytest.raises(error, match=message):
            layer(*arguments)
    near(layer(query, key, value), truth(query, key, value).output)


def test_the_backend_is_chosen_by_name_context_or_environment(monkeypatch):
    """The tik backend refuses on a CPU: its error shows that it was chosen."""
    query, key, value = inputs()
    with pytest.raises(RuntimeError, match="backend 'tik' cannot run this call"):
        FlashAttention(32, backend="tik")(query, key, value)
    with attention_backend("tik"), pytest.raises(RuntimeError, match="backend 'tik' cannot run"):
        FlashAttention(32)(query, key, value)
    monkeypatch.setenv("FLASH_ATTENTION_BACKEND", "tik")
    with pytest.raises(RuntimeError, match="backend 'tik' cannot run"):
        FlashAttention(32)(query, key, value)
    with attention_backend("math"):
        near(FlashAttention(32)(query, key, value), truth(query, key, value).output)


@pytest.mark.spread(since=(2, 8))
@pytest.mark.parametrize("backend", BACKENDS)
def test_lengths_may_change_from_call_to_call(backend, mode):
    layer = FlashAttention(32, causal=True, backend=backend)
    for seq in (7, 130, 7):
        query, key, value = inputs(seq_q=seq, seq_k=seq)
        near(layer(query, key, value), truth(query, key, value, causal=True).output)


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_that_are_not_contiguous(backend, mode):
    tensors = [draw(2, 40, 4, 64, seed=index) for index in range(3)]

    def view(tensor):
        return tensor.transpose(0, 2, 1, 3)[..., 32:]

    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.attention = FlashAttention(32, backend=backend)

        def construct(self, query, key, value):
            return self.attention(view(query), view(key), view(value))

    copies = [Tensor(np.ascontiguousarray(t.asnumpy().transpose(0, 2, 1, 3)[..., 32:])) for t in tensors]
    near(Net()(*tensors), truth(*copies).output)


@pytest.mark.parametrize("backend", BACKENDS)
def test_several_layers_with_different_rules_in_one_network(backend, mode):
    class Net(nn.Cell):
        def __init__(self):
            super().__init__()
            self.first = FlashAttention(32, causal=True, backend=backend)
            self.second = FlashAttention(32, window_size=(3, 3), backend=backend)
            self.third = FlashAttention(32, alibi=True, backend=backend)

        def construct(self, query, key, value):
            return self.first(query, key, value), self.second(query, key, value), self.third(query, key, value)

    query, key, value = inputs()
    outputs = Net()(query, key, value)
    for output, rules in zip(outputs, ({"causal": True}, {"window_left": 3, "window_right": 3}, {"alibi": True})):
        near(output, truth(query, key, value, **rules).output)


def test_repr_and_attributes():
    settings = {
        **{"head_dim": 64, "dropout_rate": 0.1, "prev_block_num": 8, "next_block_num": 0},
        **{"tiling_stgy_name": "sparse_64", "dp": 2, "mp": 4, "have_attention_mask_batch": False, "alibi": True},
        **{
            "backend": "math",
            "scale": 0.5,
            "softcap": 30.0,
            "input_layout": "TH",
            "batch": 3,
            "window_size": (7, -1),
            "causal": True,
        },
        **{"causal_alignment": "bottom_right", "value_head_dim": 32, "alibi_grad": False, "seed": 11},
        "block_mask": BlockMask([[1]]),
    }
    signature = inspect.signature(FlashAttention.__init__).parameters
    assert list(settings) == [name for name in signature if name != "self"]
    layer = FlashAttention(**settings)
    for name, value in settings.items():
        assert getattr(layer, name) == value
        assert f"{name}={value!r}" in repr(layer)
    assert "seed" not in FlashAttention(64, 0.1).extend_repr()


def test_the_number_of_heads_in_second_place_leads_to_the_layer_that_takes_it():
    with pytest.raises(ValueError, match=r"dropout_rate: got 8, .* number of heads, .* flash_attention.install\(\)"):
        FlashAttention(64, 8)
    with pytest.raises(ValueError, match="dropout_rate: got 1.5, allowed is 0 <= dropout_rate < 1$"):
        FlashAttention(64, 1.5)
