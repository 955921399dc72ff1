"""`flash_attention_score` on sequences one behind the other (TND, TH): each as in a call of its own."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention.compat.mindspore_ops import FlashAttentionScore, flash_attention_score
from mindspore import Tensor, ops

HEADS, KV_HEADS, DIM, SCALE = 4, 2, 16, 0.3
TRIANGLE = Tensor(np.triu(np.ones((2048, 2048), np.uint8), 1))
ENDS_Q, ENDS_K = (5, 12, 20), (9, 16, 40)
ENDS = {"actual_seq_qlen": ENDS_Q, "actual_seq_kvlen": ENDS_K}
MODES = {
    "0": {"sparse_mode": 0, "pre_tokens": 1},
    "2": {"sparse_mode": 2, "attn_mask": TRIANGLE, "next_tokens": 0},
    "3": {"sparse_mode": 3, "attn_mask": TRIANGLE, "next_tokens": 0},
    "4": {"sparse_mode": 4, "attn_mask": TRIANGLE, "pre_tokens": 4, "next_tokens": 1},
}


def inputs(layout):
    """Return query, key and value of all sequences, float32."""
    random = np.random.default_rng(9)
    shapes = [(ENDS_Q[-1], HEADS), (ENDS_K[-1], KV_HEADS), (ENDS_K[-1], KV_HEADS)]
    arrays = [random.standard_normal((*shape, DIM)).astype(np.float32) for shape in shapes]
    return [Tensor(array if layout == "TND" else array.reshape(len(array), -1)) for array in arrays]


def one_by_one(tensors, attn_mask=None, **settings):
    """Return the primitive's results of a call for each sequence, one behind the other: maximum, sum and output."""
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

    settings = {"attn_mask": TRIANGLE, "scalar_value": SCALE, "input_layout": "TND", "sparse_mode": 3, **ENDS}

    def packed(query, key, value):
        return flash_attention_score(query, key, value, HEADS, **settings)

    gradients = ops.grad(packed, (0, 1, 2))(*tensors)
    # The output is linear in the value, and its rows are weighted means: the gradient's sum is the output's size.
    np.testing.assert_allclose(gradients[2].asnumpy().sum(), ENDS_Q[-1] * HEADS * DIM, rtol=1e-5)
    assert all(np.abs(one.asnumpy()).max() > 1e-3 for one in gradients)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"actual_seq_kvlen": None}, "actual_seq_kvlen: got none"),
        ({"sparse_mode": 1}, "sparse_mode: got 1"),
        ({"attn_mask": TRIANGLE}, "sparse_mode: got 0"),
        ({"drop_mask": Tensor(np.zeros(8, np.uint8))}, "drop_mask: got one with keep_prob 1.0"),
        ({"keep_prob": 0.5, "drop_mask": Tensor(np.zeros((1, 8), np.uint8))}, "drop_mask: got uint8 of shape"),
        ({"keep_prob": 0.5, "drop_mask": Tensor(np.zeros(8, np.uint8))}, r"drop_mask: got one for S2 = \(9, 7, 24\)"),
        ({"real_shift": Tensor(np.zeros((1, HEADS, 1024, 24), np.float32))}, "real_shift: got shape .* sparse_mode 0"),
        (
            {"real_shift": Tensor(np.zeros((1, HEADS, 1024, 40), np.float32)), **MODES["2"]},
            "real_shift: got shape .*, allowed is a last axis of the longest S2, here 24",
        ),
        ({"real_shift": Tensor(np.zeros((1, HEADS, 20, 24), np.float32)), **MODES["2"]}, "real_shift: got shape"),
        ({"padding_mask": Tensor(np.zeros(8, np.uint8))}, "padding_mask: .*reserved and not implemented yet"),
        ({"sparse_mode": 7}, "7 .dilated., allowed are 0 to 5; MindSpore documents it as not implemented yet"),
        ({"actual_seq_qlen": (5, 12, 19)}, "^actual_seq_qlen: got .5, 12, 19."),
    ],
)
def test_what_packed_layouts_do_not_have_is_refused_by_name(changes, message):
    arguments = {**ENDS, "input_layout": "TND", **changes}
    with pytest.raises(ValueError, match=message):
        flash_attention_score(*inputs("TND"), HEADS, **arguments)


def test_drop_masks_are_those_of_each_sequence(mode):
    ends, random = (5, 12, 20), np.random.default_rng(2)
    keys = (16, 24, 56)
    lengths = list(zip(np.diff((0, *ends)), np.diff((0, *keys))))
    bits = [random.integers(0, 256, (1, HEADS, q, k // 8)).astype(np.uint8) for q, k in lengths]
    shapes = (ends[-1], HEADS, DIM), (keys[-1], KV_HEADS, DIM), (keys[-1], KV_HEADS, DIM)
    tensors = [Tensor(random.standard_normal(shape).astype(np.float32)) for shape in shapes]
    given = Tensor(np.concatenate([one.ravel() for one in bits]))

    rules = {"keep_prob": 0.75, "scalar_value": SCALE}
    packed_rules = {"actual_seq_qlen": ends, "actual_seq_kvlen": keys, "input_layout": "TND", **rules}

    def packed(query, key, value, drop_mask):
        return flash_attention_score(query, key, value, HEADS, drop_mask=drop_mask, **packed_rules)

    output = ms.jit(packed)(*tensors, given) if mode == "graph" else packed(*tensors, given)
    for one, first_q, end_q, first_k, end_k in zip(bits, (0, *ends), ends, (0, *keys), keys):
        parts = tensors[0][first_q:end_q], tensors[1][first_k:end_k], tensors[2][first_k:end_k]
        batches = (part.expand_dims(0) for part in parts)
        right = flash_attention_score(*batches, HEADS, drop_mask=Tensor(one), input_layout="BSND", **rules)
        np.testing.assert_allclose(output[first_q:end_q].asnumpy(), right[0].asnumpy(), atol=1e-6)


@pytest.mark.parametrize("layout", ("TND", "BSH"))
def test_without_a_mask_decisions_are_drawn(layout):
    tensors = inputs("TND")
    tensors[2] = ops.ones_like(tensors[2])
    settings = {"keep_prob": 0.75, "scalar_value": 0.0, "input_layout": layout}
    if layout == "TND":
        settings.update(ENDS)
    else:
        tensors = [tensor.reshape(1, tensor.shape[0], -1) for tensor in tensors]

    def call(query, key, value):
        return flash_attention_score(query, key, value, HEADS, **settings)

    outputs = []
    for seed in (1, 1, 2):
        ms.set_seed(seed)
        outputs.append(call(*tensors).asnumpy())
    np.testing.assert_array_equal(outputs[0], outputs[1])
    assert (outputs[0] != outputs[2]).any() and abs(outputs[0].mean() - 1) < 0.1
    with pytest.raises(ValueError, match="drop_mask: got none with keep_prob < 1 in a compiled graph"):
        ms.jit(call)(*tensors)


@pytest.mark.parametrize("sequences", (1, 2))
def test_the_last_rows_of_alibi_are_slopes(sequences):
    longest, ends, random = 1100, (300, 1400), np.random.default_rng(4)
    tensors = [Tensor(random.standard_normal((1400, HEADS, DIM)).astype(np.float32)) for _ in range(3)]
    slopes = random.uniform(0.01, 0.2, (sequences, HEADS, 1, 1))
    rows = np.arange(longest - 1024, longest)
    shift = (slopes * (np.arange(longest) - rows[:, None])).astype(np.float32)
    score = FlashAttentionScore(HEADS, scale_value=SCALE, input_layout="TND", sparse_mode=2)
    lengths = [Tensor(ends, ms.int64)] * 2
    maximum, total, _, output = score(*tensors, Tensor(shift), None, None, TRIANGLE, None, *lengths)
    first = 0
    for index, end in enumerate(ends):
        distance = np.arange(end - first) - np.arange(end - first)[:, None]
        full = (slopes[index % sequences] * np.minimum(distance, 0)).astype(np.float32)[None]
        one = FlashAttentionScore(HEADS, scale_value=SCALE, input_layout="BSND", sparse_mode=2)
        parts = (tensor[first:end].expand_dims(0) for tensor in tensors)
        right = one(*parts, Tensor(full), None, None, TRIANGLE)
        np.testing.assert_allclose(output[first:end].asnumpy(), right[3][0].asnumpy(), atol=2e-5)
        np.testing.assert_allclose(maximum[first:end].asnumpy(), right[0][0].asnumpy().swapaxes(0, 1), atol=2e-4)
        np.testing.assert_allclose(total[first:end].asnumpy(), right[1][0].asnumpy().swapaxes(0, 1), rtol=2e-4)
        first = end
