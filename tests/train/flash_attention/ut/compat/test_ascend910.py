"""Test the layer as earlier FlashAttention layers for the Ascend 910: import paths and signatures."""

import importlib
import sys

import numpy as np
import pytest
from flash_attention import FlashAttention, compat
from flash_attention.compat import ascend910
from flash_attention.compat.ascend910 import PATHS, read_arguments
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

ACCTRANSFORMER, MINDSPORE = PATHS


@pytest.fixture
def installed():
    """Provide the layers under their import paths, for one test."""
    yield compat.install()
    compat.uninstall()


def inputs(kv_heads=4, dtype=mstype.float16):
    """Return query, key and value, (2, heads, 40, 16)."""
    random = np.random.default_rng(3)
    shapes = [(2, heads, 40, 16) for heads in (4, kv_heads, kv_heads)]
    return [Tensor(random.standard_normal(shape).astype(np.float32)).astype(dtype) for shape in shapes]


def layer_class(path):
    """Return the class that client code gets from an import path."""
    return importlib.import_module(path).FlashAttention


@pytest.mark.parametrize(
    "arguments, keywords, head_num, layer",
    [
        ((), {}, None, {}),
        ((0.1, 7, 0), {}, None, {"dropout_rate": 0.1, "prev_block_num": 7, "next_block_num": 0}),
        ((0.0, 7, 0, "sparse", 2, 4), {}, None, {"tiling_stgy_name": "sparse", "dp": 2, "mp": 4}),
        ((0, 7), {}, None, {"dropout_rate": 0, "prev_block_num": 7}),
        ((0.0, 7, 0, "sparse", 1, 1, False, True), {}, None, {"have_attention_mask_batch": False, "alibi": True}),
        ((8, 0.0, 65536, 0), {"dp": 1, "mp": 2, "high_precision": True}, 8, {"next_block_num": 0, "mp": 2}),
        ((8, 0.1, 7, 0, "sparse", 2, 4, True, False, True, False), {}, 8, {"dp": 2, "mp": 4, "alibi": True}),
        ((8, 0.1, 7, 0, 2, 4, True, False), {}, 8, {"dp": 2, "mp": 4, "have_attention_mask_batch": False}),
        ((), {"head_num": 8, "dropout_rate": 0.1}, 8, {"dropout_rate": 0.1}),
        ((0.1,), {"high_precision": True}, None, {"dropout_rate": 0.1}),
        ((), {"use_mqa": True, "scale": 0.5}, None, {"scale": 0.5}),
    ],
)
def test_each_signature_is_read_by_its_second_argument(arguments, keywords, head_num, layer):
    read = read_arguments(arguments, keywords)
    assert read.head_num == head_num
    assert layer.items() <= read.layer.items()
    assert not {"head_num", "high_precision", "use_mqa"} & set(read.layer)
    assert read.use_mqa == keywords.get("use_mqa", False)


@pytest.mark.parametrize(
    "arguments, keywords, error, message",
    [
        ((True,), {}, TypeError, "second argument: got True"),
        ((0.0, 7, 0, "sparse", 1, 1, True), {"high_precision": True}, TypeError, "by keyword"),
        ((0.0, 7, 0, "sparse", 1, 1, True), {"use_mqa": False}, TypeError, "by keyword"),
        ((8,), {"head_num": 8}, TypeError, "head_num: given by position and by keyword"),
        ((8, 0.1), {"dropout_rate": 0.1}, TypeError, "dropout_rate: given by position and by keyword"),
        ((0.1,) * 20, {}, TypeError, "got 21 positional arguments"),
        ((), {"head_num": 0}, ValueError, "head_num"),
        ((), {"high_precision": 1}, TypeError, "high_precision"),
        ((), {"use_mqa": "no"}, TypeError, "use_mqa"),
    ],
)
def test_what_stays_ambiguous_is_an_error(arguments, keywords, error, message):
    with pytest.raises(error, match=message):
        read_arguments(arguments, keywords)


@pytest.mark.spread
@pytest.mark.parametrize("path", PATHS)
def test_every_path_gives_the_layer_of_this_package(path, installed, mode):
    assert installed[path] == "installed"
    layer = layer_class(path)(16, prev_block_num=65536, next_block_num=0, high_precision=True)
    query, key, value = inputs()
    mask = Tensor(np.triu(np.ones((2, 40, 40), np.uint8), 1))
    expected = FlashAttention(16, causal=True)(query, key, value)
    for given in (mask, mask.astype(mstype.float16)):
        np.testing.assert_array_equal(layer(query, key, value, given).asnumpy(), expected.asnumpy())


class Squares(nn.Cell):
    """The sum of the squares of a layer's output."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def construct(self, *tensors):
        return (self.layer(*tensors).astype(mstype.float32) ** 2).sum()


def test_the_call_of_a_910_model_trains(installed, mode):
    """The test takes the constructor call, strategies and recompute settings of MindFormers' models for the 910A."""
    layer = layer_class(ACCTRANSFORMER)(16, 4, 0.2, 65536, 0, dp=1, mp=1, high_precision=True)
    layer.shard(((1, 1, 1, 1),) * 3 + ((1, 1, 1), (1, 1, 1, 1)))
    layer.flash_attention.recompute(False)
    layer.drop_gen_mask.recompute(False)
    layer.fill_v2.recompute(False)
    layer.set_train()
    mask = Tensor(np.triu(np.ones((2, 40, 40), np.uint8), 1))
    gradients = ops.grad(Squares(layer), (0, 1, 2))(*inputs(), mask)
    assert all(np.isfinite(gradient.asnumpy()).all() for gradient in gradients)
    assert np.abs(gradients[2].asnumpy()).max() > 0


@pytest.mark.spread
@pytest.mark.parametrize("path", PATHS)
def test_gradients_are_those_of_the_layer(path, installed, mode):
    """This also holds for a client's class with its base's name, by which MindSpore's compiler looks for `super`."""
    client = type("FlashAttention", (layer_class(path),), {})
    tensors = inputs(dtype=mstype.float32)
    expected = ops.grad(Squares(FlashAttention(16)), (0, 1, 2))(*tensors)
    for layer in (layer_class(path)(16), client(16)):
        for wanted, gradient in zip(expected, ops.grad(Squares(layer), (0, 1, 2))(*tensors)):
            np.testing.assert_array_equal(gradient.asnumpy(), wanted.asnumpy())


@pytest.mark.parametrize("path", PATHS)
def test_heads_may_be_wider_than_head_dim_and_filled_with_zeros(path, installed, mode):
    layer = layer_class(path)
    tensors = inputs(dtype=mstype.float32)
    expected = ops.value_and_grad(Squares(FlashAttention(16)), (0, 1, 2))(*tensors)
    wide = [Tensor(np.pad(tensor.asnumpy(), ((0, 0),) * 3 + ((0, 8),))) for tensor in tensors]
    total, gradients = ops.value_and_grad(Squares(layer(16)), (0, 1, 2))(*wide)
    np.testing.assert_allclose(total.asnumpy(), expected[0].asnumpy(), rtol=1e-5)
    for wanted, gradient in zip(expected[1], gradients):
        np.testing.assert_allclose(gradient.asnumpy()[..., :16], wanted.asnumpy(), atol=1e-5)
    assert not layer(16)(*wide).asnumpy()[..., 16:].any()
    with pytest.raises(ValueError, match="query: got heads of 16, allowed is head_dim 24 or wider"):
        layer(24)(*tensors)


def test_head_num_and_use_mqa_are_checked(mode):
    with pytest.raises(ValueError, match="4 heads, allowed is head_num 8"):
        ascend910.FlashAttention(16, 8)(*inputs())
    with pytest.raises(ValueError, match="allowed with use_mqa is 1"):
        ascend910.FlashAttention(16, 4, use_mqa=True)(*inputs())
    query, key, value = inputs(kv_heads=1)
    output = ascend910.FlashAttention(16, 4, use_mqa=True)(query, key, value)
    np.testing.assert_array_equal(output.asnumpy(), FlashAttention(16)(query, key, value).asnumpy())


def test_an_alibi_tensor_is_added():
    query, key, value = inputs()
    alibi = Tensor(np.random.default_rng(0).standard_normal((2, 4, 1, 40)).astype(np.float16))
    expected = FlashAttention(16, alibi=True)(query, key, value, None, alibi)
    output = ascend910.FlashAttention(16, 4, alibi=True)(query, key, value, None, alibi)
    np.testing.assert_array_equal(output.asnumpy(), expected.asnumpy())


def test_shard_without_arguments_keeps_dp_and_mp():
    layer = ascend910.FlashAttention(16, 8, 0.0, dp=2, mp=4)
    assert layer.shard() is layer and (layer.dp, layer.mp) == (2, 4)
    layer.shard(((4, 2, 1, 1),) * 3 + ((4, 1, 1),))
    assert (layer.dp, layer.mp) == (4, 2)


@pytest.mark.parametrize(
    "dropout_rate, alibi, more",
    [
        pytest.param(0.0, False, ((),), id="empty"),
        pytest.param(0.1, False, ((),), id="empty beside dropout"),
        pytest.param(0.1, True, ((4, 2, 1, 1), (4, 2, 1, 1)), id="dropout between mask and alibi"),
    ],
)
def test_strategies_of_what_the_layer_does_not_get_are_left_out(dropout_rate, alibi, more):
    layer = ascend910.FlashAttention(16, 8, dropout_rate, alibi=alibi)
    layer.shard(((4, 2, 1, 1),) * 3 + ((4, 1, 1), *more))
    assert (layer.dp, layer.mp) == (4, 2)


def test_install_is_idempotent_and_undone_by_uninstall():
    before = set(sys.modules)
    first = compat.install()
    assert compat.install() == first
    compat.uninstall()
    assert not {name for name in set(sys.modules) - before if name.startswith("acctransformer")}
    for path in PATHS:
        with pytest.raises(ImportError):
            importlib.import_module(path)
    compat.uninstall()


def test_what_is_really_installed_is_replaced_only_when_asked(monkeypatch, tmp_path):
    package = tmp_path / "acctransformer" / "flash_attention" / "nn" / "layer"
    package.mkdir(parents=True)
    for folder in (package, *list(package.parents)[:3]):
        (folder / "__init__.py").write_text("")
    (package / "flash_attention.py").write_text("FlashAttention = 'theirs'\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    try:
        assert "really installed" in compat.install()[ACCTRANSFORMER]
        assert layer_class(ACCTRANSFORMER) == "theirs"
        assert compat.install(replace=True)[ACCTRANSFORMER] == "installed"
        assert layer_class(ACCTRANSFORMER) is ascend910.FlashAttention
        compat.uninstall()
        assert layer_class(ACCTRANSFORMER) == "theirs"
    finally:
        compat.uninstall()
        for name in [name for name in sys.modules if name.split(".")[0] == "acctransformer"]:
            del sys.modules[name]


def test_install_stands_in_the_package_itself():
    import flash_attention

    assert flash_attention.install is ascend910.install
