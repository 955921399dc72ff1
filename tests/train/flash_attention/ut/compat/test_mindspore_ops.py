"""`flash_attention_score` and `FlashAttentionScore` with MindSpore's meaning, also on packed sequences."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention.compat.mindspore_ops import FlashAttentionScore, flash_attention_score
from flash_attention.reference import baseline, compare, truth
from mindspore import Tensor, nn, ops

from tests.train.flash_attention.support.calls import make_call
from tests.train.flash_attention.support.layouts import heads_first, laid_out

BATCH, HEADS, KV_HEADS, DIM = 2, 4, 2, 16
SCALE = 0.3
CALL = {"scalar_value": SCALE, "input_layout": "BNSD"}
TRIANGLE = np.triu(np.ones((2048, 2048), np.uint8), 1)


def arrays(seq_q, seq_k, heads=HEADS, kv_heads=KV_HEADS, dtype=np.float16):
    """Return query, key, value and the gradient of the output, BNSD."""
    random = np.random.default_rng(seq_q + seq_k)
    shapes = [(heads, seq_q), (kv_heads, seq_k), (kv_heads, seq_k), (heads, seq_q)]
    return [random.standard_normal((BATCH, count, seq, DIM)).astype(dtype) for count, seq in shapes]


def explicit_mask(seq_q, seq_k, heads=1):
    """Return a mask that hides a third of the keys, (B, heads, S1, S2). It shows every query one key."""
    mask = np.random.default_rng(5).random((BATCH, heads, seq_q, seq_k)) < 0.33
    mask[..., 1] = False
    return mask


def band(seq_q, seq_k, before, after, corner=0):
    """Return True outside the band around the diagonal that starts at key `corner`."""
    position = np.arange(seq_q)[:, None] + corner
    keys = np.arange(seq_k)
    return (keys < position - before) | (keys > position + after)


class Score(nn.Cell):
    """One call, which gives the results of function or primitive."""

    def __init__(self, primitive, settings, inputs):
        super().__init__()
        self.settings, self.inputs = settings, inputs
        names = {"scalar_value": "scale_value"}
        self.score = None
        if primitive:
            self.score = FlashAttentionScore(**{names.get(name, name): value for name, value in settings.items()})

    def construct(self, query, key, value, real_shift):
        inputs = self.inputs
        if self.score is not None:
            return self.score(
                query, key, value, real_shift, inputs["drop_mask"], None, inputs["attn_mask"], inputs["prefix"]
            )
        return flash_attention_score(query, key, value, real_shift=real_shift, **inputs, **self.settings)


def run(inputs, d_output, shift=None, primitive=False, **settings):
    """Return the output of a call and its gradients, as float32 arrays in BNSD.

    Args:
        inputs: query, key, value in BNSD.
        settings: arguments of `flash_attention_score`, tensors as arrays, beside CALL.
    """
    settings = {**CALL, "head_num": inputs[0].shape[1], **settings}
    layout = settings["input_layout"]
    tensors = {name: settings.pop(name, None) for name in ("drop_mask", "attn_mask", "prefix")}
    tensors = {name: Tensor(value) if isinstance(value, np.ndarray) else value for name, value in tensors.items()}
    cell = Score(primitive, settings, tensors)
    arguments = [Tensor(laid_out(one, layout)) for one in inputs]
    arguments.append(None if shift is None else Tensor(shift))
    weight = Tensor(laid_out(d_output, layout).astype(np.float32))

    def loss(query, key, value, real_shift):
        results = cell(query, key, value, real_shift)
        output = results[3] if primitive else results
        return (output.astype(ms.float32) * weight).sum(), results

    positions = (0, 1, 2) if shift is None else (0, 1, 2, 3)
    differentiate = ops.value_and_grad(loss, grad_position=positions, has_aux=True)
    if ms.get_context("mode") == ms.GRAPH_MODE:
        differentiate = ms.jit(differentiate)
    (_, results), gradients = differentiate(*arguments)
    output = results[3] if primitive else results
    found = [heads_first(one.astype(ms.float32).asnumpy(), layout, DIM) for one in (output, *gradients[:3])]
    if shift is not None:
        found.append(gradients[3].astype(ms.float32).asnumpy())
    return found, results


def exact(inputs, d_output, hidden=None, shift=None, keep=None, keep_prob=1.0):
    """Return the truth for `run` and the results of composed attention. Results may have twice their error."""
    query, key = inputs[:2]
    options = {}
    if hidden is not None:
        options.update(mask_shape=hidden.shape, mask_dtype="bool")
    if shift is not None:
        options.update(bias_shape=shift.shape, bias_dtype="float32")
    if keep is not None:
        options.update(keep_bits=True, training=True)
    sizes = BATCH, query.shape[1], query.shape[2], key.shape[2], DIM, key.shape[1]
    call = make_call(*sizes, dtype=str(query.dtype), scale=SCALE, dropout_rate=1.0 - keep_prob, **options)
    assert call.dropout_scale == pytest.approx(1.0 / keep_prob, rel=1e-12)
    bias = None if shift is None else shift.astype(np.float64) * SCALE
    given = {"mask": hidden, "bias": bias, "keep": keep, "d_output": d_output}
    return [one(call, *inputs, **given) for one in (truth, baseline)]


def assert_right(found, expected):
    """Check output and gradients within twice the error of composed attention in the same dtype."""
    right, low = expected
    logsumexp = right.logsumexp
    actual = type(right)(found[0], logsumexp, *found[1:4])
    if len(found) == 5:
        actual.d_bias = found[4] / SCALE
    errors = [error for error in compare(actual, right, low) if error.name != "logsumexp"]
    assert len(errors) == len(found)
    assert all(error.ok for error in errors), [str(error) for error in errors]


@pytest.mark.spread
@pytest.mark.parametrize("layout", ("BSH", "BNSD", "SBH", "BSND"))
def test_every_layout_gives_attention_and_its_gradients(layout, mode):
    *inputs, d_output = arrays(24, 40)
    mask = explicit_mask(24, 40)
    found, _ = run(inputs, d_output, attn_mask=mask, input_layout=layout, sparse_mode=1)
    assert_right(found, exact(inputs, d_output, mask))


MODES = {
    "0-without-mask-ignores-tokens": (0, (40, 24), None, {"pre_tokens": 3, "next_tokens": 0, "inference": False}, None),
    "0-band": (0, (24, 40), "mask", {"pre_tokens": 5, "next_tokens": 7}, lambda q, k: band(q, k, 5, 7)),
    "0-negative-pre": (0, (24, 40), "mask", {"pre_tokens": -3, "next_tokens": 9}, lambda q, k: band(q, k, -3, 9)),
    "0-negative-next": (0, (24, 40), "mask", {"pre_tokens": 9, "next_tokens": -3}, lambda q, k: band(q, k, 9, -3)),
    "1": (1, (24, 40), "mask", {"pre_tokens": 0, "next_tokens": 0}, None),
    "1-heads": (1, (24, 40), "heads", {}, None),
    "2": (2, (24, 40), "triangle", {"pre_tokens": 0}, lambda q, k: band(q, k, 99, 0)),
    "3": (3, (24, 40), "triangle", {"pre_tokens": 0}, lambda q, k: band(q, k, 99, 0, k - q)),
    "3-longer-queries": (3, (40, 24), "triangle", {}, lambda q, k: band(q, k, 99, 0, k - q)),
    "4": (4, (24, 40), "triangle", {"pre_tokens": 6, "next_tokens": 2}, lambda q, k: band(q, k, 6, 2, k - q)),
    "4-negative": (
        4,
        (24, 40),
        "triangle",
        {"pre_tokens": 6, "next_tokens": -2},
        lambda q, k: band(q, k, 6, -2, k - q),
    ),
}


@pytest.mark.spread
@pytest.mark.parametrize("case", MODES)
def test_every_sparse_mode_hides_what_it_says(case, mode):
    sparse_mode, (seq_q, seq_k), kind, tokens, outside = MODES[case]
    *inputs, d_output = arrays(seq_q, seq_k)
    mask = {
        None: None,
        "mask": explicit_mask(seq_q, seq_k),
        "heads": explicit_mask(seq_q, seq_k, HEADS),
        "triangle": TRIANGLE,
    }[kind]
    hidden = mask if kind in ("mask", "heads") else None
    if outside is not None:
        beyond = np.broadcast_to(outside(seq_q, seq_k), (BATCH, 1, seq_q, seq_k))
        hidden = beyond if hidden is None else hidden | beyond
    found, _ = run(inputs, d_output, attn_mask=mask, sparse_mode=sparse_mode, **tokens)
    assert_right(found, exact(inputs, d_output, hidden))


@pytest.mark.spread
@pytest.mark.parametrize("kind", (tuple, list, np.array))
def test_mode_5_shows_the_prefix_of_each_batch_item_besides_the_lower_right_triangle(kind, mode):
    seq_q, seq_k, lengths = 24, 40, (17, 30)
    *inputs, d_output = arrays(seq_q, seq_k)
    outside = band(seq_q, seq_k, 99, 0, seq_k - seq_q) & (np.arange(seq_k) >= np.reshape(lengths, (-1, 1, 1, 1)))
    mask = explicit_mask(seq_q, seq_k)
    found, _ = run(inputs, d_output, attn_mask=mask, prefix=kind(lengths), sparse_mode=5)
    assert_right(found, exact(inputs, d_output, outside | mask))


@pytest.mark.spread
@pytest.mark.parametrize("keep_prob", (0.9, 0.01))
@pytest.mark.parametrize("dtype", (np.float16, np.float32))
def test_bits_decide_what_is_kept_and_keep_prob_scales_it(keep_prob, dtype, mode):
    *inputs, d_output = arrays(24, 40, dtype=dtype)
    keep = np.random.default_rng(2).random((BATCH, HEADS, 24, 40)) < keep_prob
    bits = np.packbits(keep, axis=-1, bitorder="little")
    found, _ = run(inputs, d_output, drop_mask=bits, keep_prob=keep_prob)
    assert_right(found, exact(inputs, d_output, keep=keep, keep_prob=keep_prob))


@pytest.mark.spread(2)
@pytest.mark.parametrize("batch", (1, BATCH))
@pytest.mark.parametrize("primitive", (False, True))
def test_real_shift_is_added_before_the_scale_and_has_a_gradient(batch, primitive, mode):
    *inputs, d_output = arrays(24, 40)
    shift = np.random.default_rng(4).standard_normal((batch, HEADS, 24, 40)).astype(np.float16) * 2
    found, _ = run(inputs, d_output, shift, primitive, attn_mask=TRIANGLE, sparse_mode=3)
    hidden = np.broadcast_to(band(24, 40, 99, 0, 16), (BATCH, 1, 24, 40))
    assert_right(found, exact(inputs, d_output, hidden, shift))


@pytest.mark.parametrize(
    "sparse_mode, seq_q, seq_k",
    [(3, 1100, 1160), *(pytest.param(2, 1100, seq, marks=pytest.mark.slow) for seq in (1160, 1100))],
)
def test_the_last_1024_rows_of_alibi_stand_for_all_of_them(sparse_mode, seq_q, seq_k):
    *inputs, d_output = arrays(seq_q, seq_k, heads=2, kv_heads=1)
    corner = seq_k - seq_q if sparse_mode == 3 else 0
    distance = np.arange(seq_k) - np.arange(seq_q)[:, None] - corner
    shift = np.array([0.5, 0.0625]).reshape(1, 2, 1, 1) * np.minimum(distance, 0)
    hidden = np.broadcast_to(distance > 0, (BATCH, 1, seq_q, seq_k))
    found, results = run(
        inputs, d_output, shift[:, :, -1024:].astype(np.float16), True, attn_mask=TRIANGLE, sparse_mode=sparse_mode
    )
    assert_right(found[:4], exact(inputs, d_output, hidden, shift))
    scores = masked_scores(inputs, hidden, shift)
    np.testing.assert_allclose(results[0].asnumpy()[..., 0], scores.max(-1), atol=2e-3)


def masked_scores(inputs, hidden, shift):
    """Return the scores of every query head in float64, -inf for hidden keys."""
    query, key = (one.astype(np.float64) for one in inputs[:2])
    key = key.repeat(query.shape[1] // key.shape[1], 1)
    scores = SCALE * (query @ key.swapaxes(-1, -2) + shift)
    return np.where(hidden, -np.inf, scores)


@pytest.mark.spread
@pytest.mark.parametrize("dtype, factor", [(np.float16, 1), (np.float32, 1), (np.float32, 30)])
def test_the_primitive_gives_the_true_maximum_and_sum_of_every_row(dtype, factor, mode):
    *inputs, d_output = arrays(24, 40, dtype=dtype)
    inputs[0] = inputs[0] * dtype(factor)
    inputs[0][0, 1, 3] = 0  # all scores of a row alike
    mask = explicit_mask(24, 40)
    mask[1, 0, 5] = True  # a row that sees nothing
    shift = np.zeros((1, HEADS, 24, 40), dtype)
    shift[0, 2] = np.random.default_rng(8).standard_normal((24, 40))
    _, (maximum, total, unused, output) = run(
        inputs, d_output, shift, True, attn_mask=mask, input_layout="SBH", sparse_mode=1
    )
    assert maximum.shape == total.shape == (BATCH, HEADS, 24, 8) and maximum.dtype == total.dtype == ms.float32
    assert unused.shape == () and unused.dtype == output.dtype
    scores = masked_scores(inputs, mask, shift)
    row_maximum = scores.max(-1, keepdims=True)
    with np.errstate(invalid="ignore"):
        row_sum = np.where(np.isinf(row_maximum), 0, np.exp(scores - row_maximum).sum(-1, keepdims=True))
    row_sum = np.nan_to_num(row_sum)
    np.testing.assert_allclose(maximum.asnumpy(), np.repeat(row_maximum, 8, -1), rtol=1e-6, atol=3e-6 * factor)
    np.testing.assert_allclose(total.asnumpy(), np.repeat(row_sum, 8, -1), rtol=1e-5 * factor)


SHOWN = Tensor(np.zeros((2, 1, 8, 8), np.uint8))
REFUSED = {
    "lengths": ({"actual_seq_qlen": (4, 8)}, ValueError, "actual_seq_qlen"),
    "no-lengths": ({"input_layout": "TND"}, ValueError, "actual_seq_qlen: got none with input_layout 'TND'"),
    "heads": ({"head_num": 3}, ValueError, "head_num|heads"),
    "bits-kept-all": ({"drop_mask": Tensor(np.zeros((2, 4, 8, 1), np.uint8))}, ValueError, "drop_mask: got one"),
    "global": ({"sparse_mode": 6}, ValueError, "6 .global."),
    "dilated": ({"sparse_mode": 7}, ValueError, "7 .dilated."),
    "block_local": ({"sparse_mode": 8}, ValueError, "8 .block_local."),
    "no-mask": ({"sparse_mode": 1}, ValueError, "attn_mask: got none with sparse_mode 1"),
    "full-mask-for-2": ({"sparse_mode": 2, "attn_mask": Tensor(np.zeros((8, 8), np.uint8))}, ValueError, "2048"),
    "float-mask": ({"sparse_mode": 1, "attn_mask": Tensor(np.zeros((8, 8), np.float16))}, TypeError, "attn_mask"),
    "no-prefix": ({"sparse_mode": 5, "attn_mask": SHOWN}, ValueError, "prefix: got none"),
    "prefix-too-long": ({"sparse_mode": 5, "attn_mask": SHOWN, "prefix": (3, 9)}, ValueError, "prefix: got 9"),
    "a number for a prefix": ({"sparse_mode": 5, "attn_mask": SHOWN, "prefix": 3}, TypeError, "prefix: got int 3"),
    "no-hash": ({"head_num": [4]}, TypeError, r"head_num: got list \[4\]"),
    "shift": ({"real_shift": Tensor(np.zeros((1, 4, 1024, 8), np.float16))}, ValueError, "real_shift"),
    **{  # which leave no band
        f"{before}, {after}": (
            {"attn_mask": Tensor(np.zeros((8, 8), np.uint8)), "pre_tokens": before, "next_tokens": after},
            *(ValueError, "pre_tokens, next_tokens"),
        )
        for before, after in ((-1, -1), (-3, 2), (-8, 9), (2, -3), (9, -8))
    },
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_allowed_is_refused_by_name(case):
    changes, error, message = REFUSED[case]
    tensors = [Tensor(one) for one in arrays(8, 8, kv_heads=HEADS)[:3]]
    arguments = {"head_num": HEADS, "input_layout": "BNSD", **changes}
    with pytest.raises(error, match=message):
        flash_attention_score(*tensors, **arguments)


class Inside(nn.Cell):
    """Build the primitive inside `construct`, as a graph allows."""

    def construct(self, query, key, value):
        score = FlashAttentionScore(HEADS, scale_value=SCALE, input_layout="BNSD")
        return score(query, key, value)[3]


def test_the_primitive_can_be_built_inside_construct_and_configured(mode):
    query, key, value = (Tensor(one) for one in arrays(8, 8)[:3])
    configured = FlashAttentionScore(HEADS, scale_value=SCALE, input_layout="BNSD")
    assert configured.shard(((1, 2, 1, 1), (1, 2, 1, 1), (1, 2, 1, 1)), ((1, 2, 1, 8),)) is configured
    assert configured.add_prim_attr("stage", 1) is configured
    expected = flash_attention_score(query, key, value, HEADS, scalar_value=SCALE, input_layout="BNSD").asnumpy()
    np.testing.assert_array_equal(Inside()(query, key, value).asnumpy(), expected)
    np.testing.assert_array_equal(configured(query, key, value)[3].asnumpy(), expected)


def test_a_strategy_that_splits_the_sequence_is_refused():
    with pytest.raises(ValueError, match="in_strategy"):
        FlashAttentionScore(HEADS, input_layout="BNSD").shard(((1, 1, 2, 1),))


LOWER = Tensor(TRIANGLE)
ENDS_Q, ENDS_K = (5, 12, 20), (9, 16, 40)
ENDS = {"actual_seq_qlen": ENDS_Q, "actual_seq_kvlen": ENDS_K}
PACKED_MODES = {
    "0": {"sparse_mode": 0, "pre_tokens": 1},
    "2": {"sparse_mode": 2, "attn_mask": LOWER, "next_tokens": 0},
    "3": {"sparse_mode": 3, "attn_mask": LOWER, "next_tokens": 0},
    "4": {"sparse_mode": 4, "attn_mask": LOWER, "pre_tokens": 4, "next_tokens": 1},
}


def packed_inputs(layout):
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


@pytest.mark.spread(2)
@pytest.mark.parametrize("case", PACKED_MODES)
@pytest.mark.parametrize("layout", ("TND", "TH"))
@pytest.mark.parametrize("lengths", (tuple, Tensor))
def test_each_sequence_is_a_call_of_its_own(case, layout, lengths):
    tensors = packed_inputs(layout)
    settings = dict(PACKED_MODES[case])
    mask = settings.pop("attn_mask", None)
    score = FlashAttentionScore(HEADS, scale_value=SCALE, input_layout=layout, **settings)
    given = [tuple(ends) if lengths is tuple else Tensor(ends, ms.int64) for ends in (ENDS_Q, ENDS_K)]
    maximum, total, _, output = score(*tensors, None, None, None, mask, None, *given)
    expected = one_by_one(tensors, **PACKED_MODES[case])
    assert maximum.shape == total.shape == (ENDS_Q[-1], HEADS, 8) and output.shape == tensors[0].shape
    for actual, right in zip((maximum, total, output), expected):
        np.testing.assert_allclose(actual.asnumpy().reshape(right.shape), right, rtol=2e-6, atol=2e-6)


def test_packed_sequences_have_gradients(mode):
    tensors = packed_inputs("TND")

    settings = {"attn_mask": LOWER, "scalar_value": SCALE, "input_layout": "TND", "sparse_mode": 3, **ENDS}

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
        ({"attn_mask": LOWER}, "sparse_mode: got 0"),
        ({"drop_mask": Tensor(np.zeros(8, np.uint8))}, "drop_mask: got one with keep_prob 1.0"),
        ({"keep_prob": 0.5, "drop_mask": Tensor(np.zeros((1, 8), np.uint8))}, "drop_mask: got uint8 of shape"),
        ({"keep_prob": 0.5, "drop_mask": Tensor(np.zeros(8, np.uint8))}, r"drop_mask: got one for S2 = \(9, 7, 24\)"),
        ({"real_shift": Tensor(np.zeros((1, HEADS, 1024, 24), np.float32))}, "real_shift: got shape .* sparse_mode 0"),
        (
            {"real_shift": Tensor(np.zeros((1, HEADS, 1024, 40), np.float32)), **PACKED_MODES["2"]},
            "real_shift: got shape .*, allowed is a last axis of the longest S2, here 24",
        ),
        (
            {"real_shift": Tensor(np.zeros((1, HEADS, 20, 24), np.float32)), **PACKED_MODES["2"]},
            "real_shift: got shape",
        ),
        ({"padding_mask": Tensor(np.zeros(8, np.uint8))}, "padding_mask: .*reserved and not implemented yet"),
        ({"sparse_mode": 7}, "7 .dilated., allowed are 0 to 5; MindSpore documents it as not implemented yet"),
        ({"actual_seq_qlen": (5, 12, 19)}, "^actual_seq_qlen: got .5, 12, 19."),
    ],
)
def test_what_packed_layouts_do_not_have_is_refused_by_name(changes, message):
    arguments = {**ENDS, "input_layout": "TND", **changes}
    with pytest.raises(ValueError, match=message):
        flash_attention_score(*packed_inputs("TND"), HEADS, **arguments)


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
    tensors = packed_inputs("TND")
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
    maximum, total, _, output = score(*tensors, Tensor(shift), None, None, LOWER, None, *lengths)
    first = 0
    for index, end in enumerate(ends):
        distance = np.arange(end - first) - np.arange(end - first)[:, None]
        full = (slopes[index % sequences] * np.minimum(distance, 0)).astype(np.float32)[None]
        one = FlashAttentionScore(HEADS, scale_value=SCALE, input_layout="BSND", sparse_mode=2)
        parts = (tensor[first:end].expand_dims(0) for tensor in tensors)
        right = one(*parts, Tensor(full), None, None, LOWER)
        np.testing.assert_allclose(output[first:end].asnumpy(), right[3][0].asnumpy(), atol=2e-5)
        np.testing.assert_allclose(maximum[first:end].asnumpy(), right[0][0].asnumpy().swapaxes(0, 1), atol=2e-4)
        np.testing.assert_allclose(total[first:end].asnumpy(), right[1][0].asnumpy().swapaxes(0, 1), rtol=2e-4)
        first = end
