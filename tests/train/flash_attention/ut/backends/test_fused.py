"""The mapping onto `ops.flash_attention_score`, checked without the device by our function of the same meaning.

What an Atlas A2 really computes is not checked here.
"""

import dataclasses

import numpy as np
import pytest
from flash_attention import reference
from flash_attention.backends import fused, registry
from flash_attention.backends.fused import BACKEND, FusedArguments, fused_arguments
from flash_attention.compat import mindspore_ops
from flash_attention.dropout import philox
from mindspore import Tensor

from tests.train.flash_attention.support import case_list, cases
from tests.train.flash_attention.support.calls import make_call

FORGET = 2147483647
SIZES = {"batch": 2, "heads": 4, "kv_heads": 2, "seq_q": 300, "seq_k": 300, "head_dim": 64}


def arguments(**changes) -> FusedArguments:
    """Return the arguments of the fused operator."""
    return fused_arguments(make_call(**{**SIZES, **changes}))


def test_no_mask():
    assert arguments() == FusedArguments(
        head_num=4,
        keep_prob=1.0,
        scalar_value=0.125,
        pre_tokens=FORGET,
        next_tokens=FORGET,
        sparse_mode=0,
        attn_mask="none",
        real_shift_factor=1.0,
        head_dim=64,
    )


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ({"causal": True}, (2, "compressed", FORGET, FORGET)),
        ({"causal": True, "causal_alignment": "bottom_right"}, (2, "compressed", FORGET, FORGET)),
        ({"causal": True, "causal_alignment": "bottom_right", "seq_q": 100}, (3, "compressed", FORGET, FORGET)),
        ({"causal": True, "seq_q": 100}, (2, "compressed", FORGET, FORGET)),
        ({"window_left": 50, "window_right": 7}, (4, "compressed", 50, 7)),
        ({"window_left": 50}, (4, "compressed", 50, FORGET)),
        ({"window_left": 50, "causal": True}, (4, "compressed", 50, 0)),
        # The causal modes want a key for every query, and the band mode counts from one corner: a dense mask instead.
        ({"causal": True, "seq_q": 400}, (0, "dense", 399, 0)),
        ({"window_left": 50, "window_right": 7, "seq_q": 200}, (0, "dense", 50, 7)),
        ({"window_left": 50, "seq_q": 200, "causal_alignment": "bottom_right"}, (1, "dense", FORGET, FORGET)),
        ({"prev_blocks": 1, "next_blocks": 0}, (0, "dense", 255, 127)),
        ({"mask_shape": (2, 1, 300, 300), "mask_dtype": "uint8"}, (0, "dense", 299, 299)),
        ({"mask_shape": (2, 1, 300, 300), "mask_dtype": "uint8", "causal": True}, (0, "dense", 299, 0)),
    ],
)
def test_sparse_modes(rules, expected):
    got = arguments(**rules)
    assert (got.sparse_mode, got.attn_mask, got.pre_tokens, got.next_tokens) == expected


def test_scale_padding_and_dropout():
    got = arguments(head_dim=59, scale=0.5, dropout_rate=0.25, training=True, alibi=True)
    assert got.head_dim == 64
    assert got.scalar_value == 0.5
    assert got.keep_prob == 0.75
    assert got.real_shift_factor == 2.0


def test_refusals():
    assert "needs an Atlas A2 or later device, and the device target is CPU" in BACKEND.unavailable()
    for rules, reason in (
        ({"dtype": "float32"}, "takes float16 and bfloat16, got float32"),
        ({"value_dim": 32}, "one head_dim up to 256 for query, key and value, got"),
        ({"return_lse": True}, "no gradient through the logsumexp"),
        ({"alibi": True, "scale": 0.0}, "the scale is 0"),
        ({"heads": 512, "kv_heads": 512, "all_heads": 512}, "heads up to 256, got 512"),
        ({"batch": 4096}, "batch up to 2048"),
        ({"seq_k": 524289}, "up to 524288"),
        ({"seq_k": 301, "dropout_rate": 0.1, "training": True}, "takes dropout over multiples of 8 keys, got 301"),
    ):
        assert reason in BACKEND.refuse(make_call(**{**SIZES, **rules}))
    assert BACKEND.refuse(make_call(**{**SIZES, "seq_k": 524288})) is None


@pytest.mark.parametrize(
    ("soc", "reason"), [("ascend910", "and this one is ascend910"), ("ascend910b", None), ("ascend910_93", None)]
)
def test_devices(soc, reason, monkeypatch):
    monkeypatch.setattr(fused.ms, "get_context", lambda name: "Ascend")
    monkeypatch.setattr(fused, "ascend_generation", lambda: soc)
    monkeypatch.setattr(fused, "flash_attention_score", operator)
    got = BACKEND.unavailable()
    assert got is None if reason is None else reason in got


def operator(
    query, key, value, head_num, real_shift=None, drop_mask=None, padding_mask=None, attn_mask=None, **options
):
    """Stand for ops.flash_attention_score in BNSD: our own function of that meaning, tested in ut/compat.

    Where the documentation leaves a result open, the result is NaN.
    """
    scores = *query.shape[:3], key.shape[2]
    assert query.shape[3] % 16 == 0 and query.dtype == key.dtype == value.dtype
    assert drop_mask is None or drop_mask.shape == (*scores[:3], -(-scores[3] // 8))
    assert real_shift is None or real_shift.shape in ((1, *scores[1:]), scores)
    dense = attn_mask is not None and options["sparse_mode"] in (0, 1)
    assert not dense or (attn_mask.shape[0], *attn_mask.shape[-2:]) == (scores[0], *scores[2:])
    given = real_shift, drop_mask, padding_mask, attn_mask
    output = mindspore_ops.flash_attention_score(query, key, value, head_num, *given, **options).asnumpy()
    if dense:
        hidden = attn_mask.asnumpy() != 0
        rows, columns = np.indices(scores[2:])
        outside = (columns < rows - options["pre_tokens"]) | (columns > rows + options["next_tokens"])
        assert options["sparse_mode"] == 1 or np.all(hidden[..., outside])  # where nothing is computed
        output[np.broadcast_to(hidden.all(-1), scores[:3])] = np.nan
    return Tensor(output)


def taken(case: cases.Case) -> bool:
    """Return True if the fused operator takes the case. No row may lose its only key to a bias."""
    call = dataclasses.replace(case.call, return_lse=False)
    return not case.slow and case.alibi != "hiding" and not registry.unknown(call, BACKEND) and not BACKEND.refuse(call)


CASES = case_list.params(case_list.covering(case_list.values_of, case_list.in_float16(taken)).__contains__, "float16")


@pytest.mark.parametrize("case", CASES)
def test_cases_through_a_model_of_the_operator(case, monkeypatch):
    call = dataclasses.replace(case.call, return_lse=False, keep_bits=case.dropout > 0)
    monkeypatch.setattr(fused, "flash_attention_score", operator)
    inputs = case.inputs()
    tensors = [Tensor(array.astype(np.float16)) for array in (inputs.query, inputs.key, inputs.value)]
    mask = case.backend_mask()
    bits = philox.keep_bits(case.call, cases.SEED) if case.dropout else None
    bias = None if inputs.bias is None else inputs.bias.astype(np.float16)
    given = tuple(Tensor(array) for array in (mask, bias, bits, inputs.alibi_slopes) if array is not None)
    output, logsumexp = BACKEND.build(call)(*tensors, given)
    assert logsumexp is None
    cases.check(case, reference.Attention(output.asnumpy(), case.expected()[1].logsumexp))
