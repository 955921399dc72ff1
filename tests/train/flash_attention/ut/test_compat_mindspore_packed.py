"""`flash_attention_score` on sequences one behind the other (TND, TH): each as in a call of its own."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention.compat.mindspore_ops import FlashAttentionScore, flash_attention_score
from mindspore import Tensor, ops

HEADS, KV_HEADS, DIM, SCALE = 4, 2, 16, 0.3
TRIANGLE = Tensor(np.triu(np.ones((2048, 2048), np.uint8), 1))
ENDS_Q, ENDS_K = (5, 12, 20), (9, 16, 40)
MODES = {
    "0": {"sparse_mode": 0, "pre_tokens": 1},
    "2": {"sparse_mode": 2, "attn_mask": TRIANGLE, "next_tokens": 0},
    "3": {"sparse_mode": 3, "attn_mask": TRIANGLE, "next_tokens": 0},
    "4": {"sparse_mode": 4, "attn_mask": TRIANGLE, "pre_tokens": 4, "next_tokens": 1},
}


def inputs(layout):
    """query, key and value of all sequences, float32."""
    random = np.random.default_rng(9)
    shapes = [(ENDS_Q[-1], HEADS), (ENDS_K[-1], KV_HEADS), (ENDS_K[-1], KV_HEADS)]
    arrays = [random.standard_normal((*shape, DIM)).astype(np.float32) for shape in shapes]
    return [Tensor(array if layout == "TND" else array.reshape(len(array), -1)) for array in arrays]


def one_by_one(tensors, attn_mask=None, **settings):
    """The primitive's results of a call for each sequence, one behind the other: maximum, sum and output."""
    results = []
    starts = zip((0, *ENDS_Q[:-1]), ENDS_Q, (0, *ENDS_K[:-1]), ENDS_K)
    for first_q, end_q, first_k, end_k in starts:
        query, key, value = tensors[0][first_q:end_q], tensors[1][first_k:end_k], tensors[2][first_k:end_k]
        query, key, value = (one.reshape(1, len(one), -1, DIM) for one in (query, key, value))
        score = FlashAttentionScore(HEADS, scale_value=SCALE, input_layout="BSND", **settings)
        maximum, total, _, output = score(query, key, value, attn_mask=attn_mask)
        results.append((maximum[0].transpose(1, 0, 2), total[0].transpose(1, 0, 2), output[0]))
    return [ops.concat(one, 0).asnumpy() for one in zip(*results)]


@pytest.mark.parametrize("case", MODES)
@pytest.mark.parametrize("layout", ("TND", "TH"))
@pytest.mark.parametrize("lengths", (tuple, Tensor))
def test_each_sequence_is_a_call_of_its_own(case, layout, lengths):
    tensors = inputs(layout)
    settings = dict(MODES[case])
    mask = settings.pop("attn_mask", None)
    score = FlashAttentionScore(HEADS, scale_value=SCALE, input_layout=layout, **settings)
    given = [tuple(ends) if lengths is tuple else Tensor(ends, ms.int64) for ends in (ENDS_Q, ENDS_K)]
    maximum, total, _, output = score(*tensors, None, None, None, mask, None, *given)
    expected = one_by_one(tensors, **MODES[case])
    assert maximum.shape == total.shape == (ENDS_Q[-1], HEADS, 8) and output.shape == tensors[0].shape
    for actual, right in zip((maximum, total, output), expected):
        np.testing.assert_allclose(actual.asnumpy().reshape(right.shape), right, rtol=2e-6, atol=2e-6)


def test_packed_sequences_have_gradients(mode):
    tensors = inputs("TND")

    def packed(query, key, value):
        return flash_attention_score(
            query,
            key,
            value,
            HEADS,
            attn_mask=TRIANGLE,
            actual_seq_qlen=ENDS_Q,
            actual_seq_kvlen=ENDS_K,
            scalar_value=SCALE,
            input_layout="TND",
            sparse_mode=3,
        )

    gradients = ops.grad(packed, (0, 1, 2))(*tensors)
    # The output is linear in the value, and its rows are weighted means: both sums are those of ones.
    np.testing.assert_allclose(gradients[2].asnumpy().sum(), ENDS_Q[-1] * HEADS * DIM, rtol=1e-5)
    assert all(np.abs(one.asnumpy()).max() > 1e-3 for one in gradients)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"actual_seq_kvlen": None}, "actual_seq_kvlen: got none"),
        ({"sparse_mode": 1}, "sparse_mode: got 1"),
        ({"attn_mask": TRIANGLE}, "sparse_mode: got 0"),
        ({"keep_prob": 0.5}, "keep_prob"),
        ({"real_shift": Tensor(np.zeros((1, HEADS, 1024, 40), np.float32))}, "real_shift: got one"),
        ({"actual_seq_qlen": (5, 12, 19)}, "cu_seqlens_q"),
    ],
)
def test_what_packed_layouts_do_not_have_is_refused_by_name(changes, message):
    arguments = {"actual_seq_qlen": ENDS_Q, "actual_seq_kvlen": ENDS_K, "input_layout": "TND", **changes}
    with pytest.raises(ValueError, match=message):
        flash_attention_score(*inputs("TND"), HEADS, **arguments)
