"""The attention function for mindone's transformers, called as its models call it; the models: st/test_clients.py."""

import numpy as np
import pytest
from flash_attention.compat import mindnlp, transformers
from flash_attention.compat.transformers import attention_forward
from mindspore import Tensor, nn
from mindspore import dtype as mstype

from tests.train.flash_attention.support.mindspore_operators import attention, causal

BATCH, HEADS, KV_HEADS, DIM, SCALE = 2, 4, 2, 8, 0.4


class Module(nn.Cell):
    """A model's attention; only its `is_causal` is read."""

    def __init__(self, is_causal=True):
        super().__init__()
        self.is_causal = is_causal


def inputs(seq_q, seq_k):
    """Return query, key and value, float32."""
    random = np.random.default_rng(7)
    shapes = [(HEADS, seq_q), (KV_HEADS, seq_k), (KV_HEADS, seq_k)]
    return [random.standard_normal((BATCH, heads, seq, DIM)).astype(np.float32) for heads, seq in shapes]


def eager(query, key, value, added, softcap=None):
    """Compute the library's eager attention in float64, (B, Sq, N, D). `added` goes to the scaled, capped scores."""
    return attention(query, key, value, SCALE, added, softcap)[0].swapaxes(1, 2)


def hidden_by_position(seq_q, seq_k, window=None):
    """Return a bias of the last seq_q positions: -inf for hidden keys."""
    before = np.arange(seq_q)[:, None] + seq_k - seq_q - np.arange(seq_k)
    return causal(seq_q, seq_k) + np.where(before >= (seq_k if window is None else window), -np.inf, 0.0)


def call(tensors, mask=None, module=None, **options):
    """Return the attention function's output, called as a model calls it."""
    output, probabilities = attention_forward(module or Module(), *map(Tensor, tensors), mask, scaling=SCALE, **options)
    assert probabilities is None
    return output.asnumpy()


PADDING = np.array([[0, 0, 0] + [1] * 9, [1] * 12])


@pytest.mark.parametrize("window", (None, 1, 4))
@pytest.mark.parametrize("seq_q", (1, 5, 12))
def test_without_a_mask_the_last_positions_see_what_stands_before_them(seq_q, window):
    tensors = inputs(seq_q, 12)
    expected = eager(*tensors, hidden_by_position(seq_q, 12, window))
    np.testing.assert_allclose(call(tensors, sliding_window=window), expected, atol=2e-6)


def test_a_soft_cap_comes_before_the_mask():
    tensors = inputs(8, 12)
    expected = eager(*tensors, hidden_by_position(8, 12), softcap=0.5)
    np.testing.assert_allclose(call(tensors, softcap=0.5), expected, atol=2e-6)


def test_sinks_take_part_in_the_softmax():
    tensors = inputs(8, 12)
    sinks = np.array([-1, 0, 1, 3], np.float32)
    key, value = (np.concatenate([one, one[:, :, :1] * 0], 2) for one in tensors[1:])
    added = np.pad(np.broadcast_to(hidden_by_position(8, 12), (HEADS, 8, 12)), ((0, 0), (0, 0), (0, 1)))
    added[..., 12] = sinks[:, None]  # a key of zeros with the sink as its score, and a value of zeros
    np.testing.assert_allclose(call(tensors, s_aux=Tensor(sinks)), eager(tensors[0], key, value, added), atol=2e-6)


@pytest.mark.parametrize("dtype", (mstype.bool_, mstype.int64, mstype.float32))
@pytest.mark.parametrize("window", (None, 4))
def test_a_mask_of_rank_2_says_which_keys_are_padding(window, dtype):
    tensors = inputs(8, 12)
    added = hidden_by_position(8, 12, window) + np.where(PADDING == 0, -np.inf, 0.0)[:, None, None]
    actual = call(tensors, Tensor(PADDING).astype(dtype), sliding_window=window)
    np.testing.assert_allclose(actual, eager(*tensors, added), atol=2e-6)


@pytest.mark.parametrize("extra", (0, 3))
@pytest.mark.parametrize("floating", (False, True))
def test_a_mask_of_rank_4_alone_says_what_is_visible(floating, extra):
    tensors = inputs(8, 12)
    shown = np.random.default_rng(3).random((BATCH, 1, 8, 12 + extra)) < 0.6
    shown[..., 0] = True
    added = np.where(shown, 0.0, np.finfo(np.float32).min).astype(np.float32)
    mask = Tensor(added) if floating else Tensor(shown)
    actual = call(tensors, mask, sliding_window=2, is_causal=True)
    np.testing.assert_allclose(actual, eager(*tensors, added[..., :12]), atol=2e-6)


@pytest.mark.parametrize("module, argument", [(False, None), (True, False)])
def test_an_encoder_sees_everything(module, argument):
    tensors = inputs(8, 12)
    actual = call(tensors, module=Module(module), is_causal=argument)
    np.testing.assert_allclose(actual, eager(*tensors, 0.0), atol=2e-6)


@pytest.mark.parametrize(
    "name, value",
    [
        ("head_mask", Tensor(np.ones(4, np.float32))),
        ("cu_seq_lens_q", Tensor(np.array([0, 4], np.int32))),
        ("output_attentions", True),
    ],
)
def test_what_would_change_the_result_is_refused_by_name(name, value):
    with pytest.raises(ValueError, match=name):
        call(inputs(4, 4), **{name: value})


def test_a_window_of_no_key_and_a_mask_that_is_no_tensor_are_refused_by_name():
    with pytest.raises(ValueError, match="sliding_window: got 0, allowed is an integer >= 1"):
        call(inputs(4, 4), sliding_window=0)
    with pytest.raises(TypeError, match="attention_mask: got int, allowed is a Tensor"):
        call(inputs(4, 4), 1)


def test_arguments_that_change_nothing_are_taken():
    call(inputs(4, 4), position_ids=None, output_attentions=False, cache_position=Tensor(np.arange(4)))


def test_register_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mindone", None)
    with pytest.raises(ImportError, match="mindone"):
        transformers.register()


@pytest.mark.skipif(not hasattr(Tensor, "device"), reason="tensors of this MindSpore do not say where they lie")
def test_the_result_is_that_for_mindone_and_lies_where_the_query_does():
    tensors = [Tensor(np.random.default_rng(7).standard_normal((2, 4, 8, 8)).astype(np.float32)) for _ in range(3)]
    arguments = nn.Cell(), *tensors, None
    output, probabilities = mindnlp.attention_forward(*arguments, 0.0, scaling=0.4, softcap=0.5)
    expected, _ = transformers.attention_forward(*arguments, 0.0, scaling=0.4, softcap=0.5)
    np.testing.assert_array_equal(output.asnumpy(), expected.asnumpy())
    assert probabilities is None
    if hasattr(tensors[0], "device"):  # not in MindSpore 2.0
        assert output._device == tensors[0].device


def test_dtypes_may_go_by_the_name_that_mindnlp_gives_them():
    from flash_attention.bridge.tensors import tensor_spec

    assert tensor_spec("query", ((1, 2), "mindspore.float32")) == tensor_spec("query", ((1, 2), "Float32"))


def test_names_that_the_library_reserves_are_refused():
    with pytest.raises(ValueError, match="name: got 'flash_attention_2'"):
        mindnlp.register("flash_attention_2")


def test_mindnlp_register(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "mindnlp", None)
    with pytest.raises(ImportError, match="mindnlp"):
        mindnlp.register()
