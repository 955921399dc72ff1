"""Arguments by the names that other attention functions have for them."""

import flash_attention
import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention, flash_attention_varlen, scaled_dot_product_attention
from flash_attention.problem import other_names
from mindspore import Tensor, nn

QUERY = Tensor(np.ones((1, 2, 8, 16), np.float32))
PACKED = Tensor(np.ones((8, 2, 16), np.float32))
LAYER = "FlashAttention has no such argument; "


class Call(nn.Cell):
    """A function with one keyword."""

    def __init__(self, function, tensors, keywords):
        super().__init__()
        self.function, self.tensors, self.keywords = function, tensors, keywords

    def construct(self):
        return self.function(*self.tensors, **self.keywords)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("is_causal", "did you mean causal?"),
        ("dropout_p", "did you mean dropout_rate?"),
        ("softmax_scale", "did you mean scale?"),
        ("windows_size", "did you mean window_size?"),
        ("enable_gqa", "key and value may have fewer heads without being told"),
        ("head_num", "the tensors say how many heads there are; flash_attention.install()"),
        ("return_softmax_lse", "allowed are head_dim, dropout_rate, "),
        ("unknown", "allowed are head_dim, dropout_rate, "),
    ],
)
def test_the_layer_says_what_a_name_is_called_here(name, hint):
    with pytest.raises(TypeError) as caught:
        FlashAttention(64, **{name: 1})
    assert str(caught.value).startswith(f"{name}: {LAYER}{hint}")


@pytest.mark.parametrize(
    ("function", "tensors", "keywords", "message"),
    [
        ("flash_attention", (QUERY,) * 3, {"is_causal": True}, r"is_causal: .*did you mean causal\?"),
        ("flash_attention", (QUERY,) * 3, {"attn_mask": None}, "attention_mask, in which 1 hides a key"),
        (
            "flash_attention_varlen",
            (PACKED,) * 3 + ((8,),) * 2,
            {"max_seqlen_q": 8},
            "cu_seqlens_k say all lengths",
        ),
        ("scaled_dot_product_attention", (QUERY,) * 3, {"causal": True}, r"did you mean is_causal\?"),
    ],
)
def test_so_do_the_functions(function, tensors, keywords, message, mode):
    with pytest.raises(TypeError, match=message):
        Call(getattr(flash_attention, function), tensors, keywords)()


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("attn_mask", "a mask is attention_mask, in which 1 hides a key"),
        ("atention_mask", "did you mean attention_mask?"),
        ("is_causal", "did you mean causal, with which the layer is made?"),
        ("scale", "did you mean scale, with which the layer is made?"),
        ("nothing_like_it", "allowed are query, key, value, attention_mask, "),
    ],
)
def test_so_does_a_call_of_the_layer(name, hint, mode):
    with pytest.raises(TypeError) as caught:
        Call(FlashAttention(16), (QUERY,) * 3, {name: True})()
    assert f"{name}: a call of FlashAttention has no such argument; {hint}" in str(caught.value)


def test_several_names_are_all_told():
    with pytest.raises(TypeError, match=r"max_seqlen_q: .*; softmax_scale: .*did you mean scale\?"):
        flash_attention_varlen(PACKED, PACKED, PACKED, (8,), (8,), max_seqlen_q=8, softmax_scale=1.0)


def test_what_a_name_is_said_to_mean_exists():
    names = set(flash_attention.flash_attention.__kwdefaults__) | {"bias"}
    assert set(other_names._CALLED.values()) <= names


def test_the_number_of_heads_in_second_place_leads_to_the_layer_that_takes_it():
    with pytest.raises(ValueError, match=r"dropout_rate: got 8, .* number of heads, .* flash_attention.install\(\)"):
        FlashAttention(64, 8)
    with pytest.raises(ValueError, match="dropout_rate: got 1.5, allowed is 0 <= dropout_rate < 1$"):
        FlashAttention(64, 1.5)


@pytest.mark.parametrize("rate", [1.5, -0.1, float("nan")])
def test_dropout_p_is_called_so(rate):
    with pytest.raises(ValueError, match="^dropout_p: got .*, allowed is 0 <= dropout_p < 1$"):
        scaled_dot_product_attention(QUERY, QUERY, QUERY, dropout_p=rate)
    with pytest.raises(TypeError, match="^dropout_p: got str"):
        scaled_dot_product_attention(QUERY, QUERY, QUERY, dropout_p="half")


def test_dtypes_of_an_added_mask_are_told_once():
    mask = Tensor(np.ones((8, 8), np.int32))
    with pytest.raises(TypeError, match=r"and float32 \(added\)$"):
        scaled_dot_product_attention(QUERY, QUERY, QUERY, mask)
    half = QUERY.astype(ms.float16)
    with pytest.raises(TypeError, match=r"and float16 or float32 \(added\)$"):
        scaled_dot_product_attention(half, half, half, mask)
