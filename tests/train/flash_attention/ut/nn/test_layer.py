"""The FlashAttention cell: signature, rules, modes of MindSpore, gradients, dropout from step to step."""

import copy
import inspect

import numpy as np
import pytest
from flash_attention import BlockMask, FlashAttention, flash_attention
from flash_attention.call.layout import CALL_LAYOUTS
from mindspore import Tensor, nn

from tests.train.flash_attention.support.cells import Gradients, with_gradients
from tests.train.flash_attention.support.layer_inputs import draw, inputs, near, truth
from tests.train.flash_attention.support.layouts import laid_out
from tests.train.flash_attention.support.modes import MODES_AND_BACKENDS, in_mode
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


IDS = Tensor(np.sort(np.random.default_rng(3).integers(-1, 3, (2, 56)), 1).astype(np.int32))
PREFIX, TILES = Tensor(np.array([3, 30], np.int32)), np.array([[[[1]], [[0]], [[1]], [[1]]]] * 2)
#: By name: arguments of the layer, and what its call gets beside query, key and value.
CALLS = {
    "causal": ({"causal": True, "scale": 0.3, "softcap": 2.0}, {}),
    "window": ({"window_size": (9, 3), "causal_alignment": "bottom_right"}, {}),
    "blocks": ({"prev_block_num": 0, "next_block_num": 0, "tiling_stgy_name": "sparse_64"}, {}),
    "width of values": ({"value_head_dim": 16}, {}),
    "mask": ({}, {"attention_mask": Tensor(np.random.default_rng(1).random((2, 40, 56)) < 0.3)}),
    "compact mask": ({}, {"attention_mask": Tensor(TRIANGLE)}),
    "computed bias": ({"alibi": True}, {}),
    "bias": ({"alibi": True}, {"alibi_mask": draw(2, 4, 1, 56, seed=4)}),
    "bias without gradient": ({"alibi": True, "alibi_grad": False}, {"alibi_mask": draw(2, 4, 1, 56, seed=4)}),
    "slopes": ({"alibi": True}, {"alibi_slopes": Tensor(np.float32([0.1, 0.2, 0.3, 0.4]))}),
    "sinks": ({"causal": True}, {"sinks": draw(4), "prefix": PREFIX}),
    "segments": ({}, {"segment_ids": IDS[:, :40], "kv_segment_ids": IDS}),
    "own tiles": ({"block_mask": BlockMask(TILES)}, {}),
    "tiles": ({}, {"block_mask": Tensor(TILES.astype(np.uint8))}),
    **{layout: ({"input_layout": layout}, {}) for layout in CALL_LAYOUTS},
}
INPUTS = tuple(inspect.signature(FlashAttention.construct).parameters)[4:]
OF_THE_FUNCTION = {"alibi_mask": "bias", "alibi_grad": "bias_grad"}


class Function(nn.Cell):
    """`flash_attention` with the rules of a layer. Behind query, key and value it takes the layer's inputs in order."""

    def __init__(self, rules):
        super().__init__()
        self.rules = {OF_THE_FUNCTION.get(name, name): value for name, value in rules.items()}

    def construct(self, query, key, value, *given):
        named = {OF_THE_FUNCTION.get(name, name): tensor for name, tensor in zip(INPUTS, given)}
        return flash_attention(query, key, value, head_dim=32, backend="cpu", **named, **self.rules)


@pytest.mark.spread
@pytest.mark.parametrize("name", CALLS)
def test_a_call_has_the_bits_and_gradients_of_the_function(name, mode):
    """A graph of the layer, with other data too, has the bits of the function in PYNATIVE."""
    rules, given = CALLS[name]
    rules = {"batch": 2 if name == "TH" else None, "input_layout": "BNSD", **rules}
    given = [given.get(one) for one in INPUTS[: 1 + max(map(INPUTS.index, given), default=-1)]]
    layer, width = FlashAttention(32, backend="cpu", **rules), rules.get("value_head_dim", 32)
    for factor in (1, -2):
        query, key, value = (one.asnumpy() * np.float32(factor) for one in inputs())
        arrays = query, key, value[..., :width], draw(2, 4, 40, width, seed=3).asnumpy()
        *tensors, d_output = (Tensor(laid_out(one, rules["input_layout"])) for one in arrays)
        found = with_gradients(layer, *tensors, *given, d_output)
        with in_mode("pynative"):
            expected = with_gradients(Function(rules), *tensors, *given, d_output)
        assert len(found) == len(expected)
        for one, other in zip(found, expected):
            np.testing.assert_array_equal(one.asnumpy(), other.asnumpy())
        if not rules.get("alibi_grad", True):
            assert not found[-1].asnumpy().any()


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
@pytest.mark.parametrize("dtype", ("float16", "bfloat16", "float32"))
def test_output_and_gradients_have_the_dtype_of_the_inputs(dtype, backend, mode):
    dtype = dtype_named(dtype)
    tensors = [tensor.astype(dtype) for tensor in inputs()]
    layer = FlashAttention(32, backend=backend)
    output = layer(*tensors)
    assert output.dtype == dtype
    assert [gradient.dtype for gradient in Gradients(layer)(*tensors, output)] == [output.dtype] * 3


def test_what_belongs_to_another_layer_is_refused():
    query, key, value = inputs()
    for rules, arguments, message in (
        ({}, (query, key, value, None, draw(2, 4, 1, 56)), "alibi_mask: given to a layer with alibi=False"),
        ({}, tuple(draw(2, 2, 8, 16) for _ in range(3)), "query: got head_dim 16 .* layer's head_dim 32"),
        ({"input_layout": "TH"}, (), "batch: needed with input_layout TH"),
    ):
        with pytest.raises(ValueError, match=message):
            FlashAttention(32, **rules)(*arguments)


def test_the_layer_may_name_its_backend():
    """The tik backend refuses on a CPU: its error shows that it was chosen."""
    with pytest.raises(RuntimeError, match="backend 'tik' cannot run this call"):
        FlashAttention(32, backend="tik")(*inputs())


@pytest.mark.spread
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
        if name not in ("alibi_grad", "backend", "batch", "input_layout"):  # each call reads these
            setattr(layer, name, copy.deepcopy(value))  # as subclasses do behind super().__init__
            with pytest.raises(AttributeError, match=f"{name}: got .* for a layer that exists"):
                setattr(layer, name, object())
    assert "seed" not in FlashAttention(64, 0.1).extend_repr()

    class Mixed(FlashAttention):
        def __init__(self):
            nn.Cell.__init__(self)
            self.alibi, self.seed = True, 5
            super().__init__(64)

    assert (Mixed().alibi, Mixed().seed) == (False, None)


def test_the_number_of_heads_in_second_place_leads_to_the_layer_that_takes_it():
    with pytest.raises(ValueError, match=r"dropout_rate: got 8, .* number of heads, .* flash_attention.install\(\)"):
        FlashAttention(64, 8)
    with pytest.raises(ValueError, match="dropout_rate: got 1.5, allowed is 0 <= dropout_rate < 1$"):
        FlashAttention(64, 1.5)
