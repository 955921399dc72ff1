"""Test the truth with loops and finite differences, and the error measure with wrong results."""

import dataclasses
import math

import numpy as np
import pytest
from flash_attention import reference
from flash_attention.call import Call, alibi_slopes

from tests.train.flash_attention.support import cases
from tests.train.flash_attention.support.cases import Case

F32 = "float32"
SMALL = (
    Case(batch=2, heads=4, kv_heads=2, seq_q=5, seq_k=7, head_dim=3, mask="3d", dtype=F32),
    Case(heads=3, kv_heads=1, seq_q=6, seq_k=4, head_dim=2, mask="causal", alibi="computed", dtype=F32),
    Case(seq_q=4, seq_k=6, head_dim=5, mask="rows", alibi="given", dropout=0.4, dtype=F32),
    Case(seq_q=4, seq_k=6, head_dim=5, mask="causal", alignment="bottom_right", alibi="bias", dtype=F32),
    Case(seq_q=9, seq_k=5, head_dim=2, window=(1, 1), scale=-0.7, dtype=F32),
    Case(batch=2, seq_q=3, seq_k=5, head_dim=2, mask="padding", alibi="computed", alignment="bottom_right", dtype=F32),
    Case(sinks=True, batch=2, seq_q=4, seq_k=6, head_dim=3, window=(1, 0), softcap=2.0, dropout=0.3, dtype=F32),
    Case(prefix=True, batch=3, seq_q=4, seq_k=6, head_dim=3, value_dim=2, mask="causal", sinks=True, dtype=F32),
    Case(segments="shuffled", batch=2, seq_q=5, seq_k=7, head_dim=3, mask="causal", alibi="computed", dtype=F32),
    Case(softcap=0.7, seq_q=4, seq_k=6, head_dim=3, mask="causal", alibi="bias", dropout=0.3, dtype=F32),
)


def arguments(case):
    """Return a case's arguments of the reference beside query, key and value."""
    inputs = case.inputs()
    return {"mask": case.backend_mask(), "bias": inputs.bias, "keep": case.keep(), **inputs.optional()}


def by_loops(case):
    """Compute output and logsumexp, one score at a time, from the layer's documented rules."""
    call, inputs = case.call, case.inputs()
    slopes, mask, bias, keep = alibi_slopes(call), case.backend_mask(), inputs.bias, case.keep()
    full = case.batch, case.heads, case.seq_q, case.seq_k
    mask = np.zeros(full) if mask is None else np.broadcast_to(mask, full)
    bias = np.zeros(full) if bias is None else np.broadcast_to(bias, full)
    output = np.zeros(call.shape_output())
    logsumexp = np.full(call.shape_lse(), -np.inf)
    for b, h, i in np.ndindex(*call.shape_lse()):
        position = i + (case.seq_k - case.seq_q if case.alignment == "bottom_right" else 0)
        scores = {}
        for j in range(case.seq_k):
            prefixed = case.prefix and j < inputs.prefix[b]
            if case.mask == "causal" and j > position and not prefixed:
                continue
            if case.segments != "none" and not inputs.segment_ids[b, i] == inputs.kv_segment_ids[b, j] >= 0:
                continue
            if case.window != (-1, -1) and not -case.window[0] <= j - position <= case.window[1]:
                continue
            if mask[b, h, i, j]:
                continue
            key = inputs.key[b, h * case.kv_heads // case.heads, j].astype(float)
            scale = case.scale or 1 / math.sqrt(case.head_dim)
            score = scale * float(inputs.query[b, h, i].astype(float) @ key)
            if case.softcap:
                score = case.softcap * math.tanh(score / case.softcap)
            score += float(bias[b, h, i, j])
            if case.alibi == "computed":
                score -= slopes[h] * abs(position - j)
            scores[j] = score
        if not scores and not case.sinks:
            continue
        total = sum(map(math.exp, scores.values()))
        if case.sinks:
            total += math.exp(inputs.sinks[h])
        logsumexp[b, h, i] = math.log(total)
        for j, score in scores.items():
            weight = math.exp(score) / total
            if keep is not None:
                weight *= call.dropout_scale if keep[b, h, i, j] else 0.0
            output[b, h, i] += weight * inputs.value[b, h * case.kv_heads // case.heads, j].astype(float)
    return output, logsumexp


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_truth_is_what_loops_say(case):
    inputs = case.inputs()
    exact = reference.truth(case.call, inputs.query, inputs.key, inputs.value, **arguments(case))
    output, logsumexp = by_loops(case)
    np.testing.assert_allclose(exact.output, output, atol=1e-13)
    np.testing.assert_allclose(exact.logsumexp, logsumexp, atol=1e-13)


@pytest.mark.parametrize("case", SMALL, ids=str)
def test_gradients_are_the_slopes_of_the_truth(case):
    inputs = case.inputs()
    seen = np.isfinite(case.expected()[0].logsumexp)
    values = {"query": inputs.query, "key": inputs.key, "value": inputs.value, "bias": inputs.bias}
    values["sinks"] = inputs.sinks
    values = {name: array.astype(np.float64) for name, array in values.items() if array is not None}

    def loss(**changed):
        given = {**arguments(case), **values, **changed}
        result = reference.truth(case.call, given.pop("query"), given.pop("key"), given.pop("value"), **given)
        return (result.output * inputs.d_output).sum() + (result.logsumexp * inputs.d_logsumexp)[seen].sum()

    exact = case.expected()[0]
    step = 1e-5
    for name, array in values.items():
        slopes = np.empty_like(array)
        for index in np.ndindex(array.shape):
            shifted = [array.copy(), array.copy()]
            shifted[0][index] += step
            shifted[1][index] -= step
            slopes[index] = (loss(**{name: shifted[0]}) - loss(**{name: shifted[1]})) / (2 * step)
        got = getattr(exact, f"d_{name}")
        np.testing.assert_allclose(got.reshape(array.shape), slopes, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("dtype", ("float16", "bfloat16"))
def test_rounding_to_a_dtype_goes_to_the_nearest_even(dtype):
    step = reference.EPSILON[dtype]
    values = np.array([1, 1 + 0.49 * step, 1 + 0.5 * step, 1 + 1.5 * step, 1 + 0.51 * step, -1 - 0.5 * step, 0, np.inf])
    rounded = reference.round_to(values, dtype)
    np.testing.assert_array_equal(rounded, np.array([1, 1, 1, 1 + 2 * step, 1 + step, -1, 0, np.inf], np.float32))
    assert np.isnan(reference.round_to(np.array([np.nan]), dtype)).all()
    np.testing.assert_array_equal(reference.round_to(rounded, dtype), rounded)


def test_float16_overflows_and_bfloat16_does_not():
    values = np.array([70000.0, 1e30])
    assert np.isinf(reference.round_to(values, "float16")).all()
    np.testing.assert_allclose(reference.round_to(values, "bfloat16"), values, rtol=2**-8)


def test_keep_bits_unpack_from_the_least_significant():
    bits = np.array([[0b00000101, 0b10000000]], np.uint8)
    kept = reference.keep_of_bits(bits, 15)
    assert kept.shape == (1, 15)
    assert np.flatnonzero(kept).tolist() == [0, 2]
    assert reference.keep_of_bits(bits, 16)[0, 15]


CASE = Case(batch=2, seq_q=33, seq_k=40, mask="rows", dropout=0.2)


def corrupted(**changes):
    """Return the baseline's results with some of them changed."""
    exact, low = CASE.expected()
    return dataclasses.replace(low, **{name: change(getattr(low, name).copy()) for name, change in changes.items()})


def test_the_baseline_passes_and_so_does_the_rounded_truth():
    exact, low = CASE.expected()
    cases.check(CASE, low)
    dtypes = {"logsumexp": "float32"}
    rounded = {name: reference.round_to(value, dtypes.get(name, "float16")) for name, value in exact.named().items()}
    cases.check(CASE, reference.Attention(**rounded))


def wrong_value(array):
    """Change one row."""
    array[..., 0, 1, :] += 0.5
    return array


def not_a_number(array):
    """Make one element NaN."""
    array.flat[7] = np.nan
    return array


def slightly_off(array):
    """Change every element by half a percent."""
    return array * np.float32(1.005)


@pytest.mark.parametrize("name", ("output", "d_query", "d_key", "d_value"))
@pytest.mark.parametrize("corrupt", (wrong_value, not_a_number, slightly_off), ids=lambda function: function.__name__)
def test_a_wrong_result_is_found(name, corrupt):
    with pytest.raises(AssertionError, match=f"{name}: max"):
        cases.check(CASE, corrupted(**{name: corrupt}))


def test_a_wrong_logsumexp_is_found():
    def finite(array):
        return np.where(np.isfinite(array), array, 0.0)

    def shifted(array):
        return array + 0.01

    for corrupt in (finite, shifted, not_a_number):
        with pytest.raises(AssertionError, match="logsumexp: max"):
            cases.check(CASE, corrupted(logsumexp=corrupt))


def test_saturation_counts_as_minus_infinity():
    cases.check(CASE, corrupted(logsumexp=lambda array: np.maximum(array, -65504.0)))


@pytest.mark.parametrize("name", ("output", "d_query"))
def test_a_tiny_value_where_nothing_is_visible_is_found(name):
    def leak(array):
        array[0, 0, 0, 0] = 1e-7
        return array

    with pytest.raises(AssertionError, match=f"{name}: not zero where nothing is visible"):
        cases.check(CASE, corrupted(**{name: leak}))


def test_a_tiny_gradient_of_an_unseen_key_is_found():
    case = Case(seq_q=20, seq_k=30, mask="causal")
    exact, low = case.expected()
    low.d_key[0, 0, 25, 0] = 1e-7
    try:
        with pytest.raises(AssertionError, match="d_key: not zero for a key nobody sees"):
            cases.check(case, low)
    finally:
        low.d_key[0, 0, 25, 0] = 0.0


def test_infinite_bias_hides_like_a_mask():
    call = Call(1, 1, 3, 4, 2, bias_shape=(1, 1, 3, 4), bias_dtype=F32, dtype=F32)
    hidden = np.array([[1, 0, 0, 1], [1, 1, 1, 1], [0, 0, 0, 0]], bool).reshape(1, 1, 3, 4)
    random = np.random.default_rng(0)
    query, key, value, d_output = (random.standard_normal((1, 1, size, 2)) for size in (3, 4, 4, 3))
    biased = reference.truth(call, query, key, value, bias=np.where(hidden, -np.inf, 0.0), d_output=d_output)
    plain = dataclasses.replace(call, bias_shape=None, bias_dtype=None, mask_shape=(1, 1, 3, 4), mask_dtype="bool")
    masked = reference.truth(plain, query, key, value, mask=hidden, d_output=d_output)
    for name, expected in masked.named().items():
        np.testing.assert_array_equal(getattr(biased, name), expected, err_msg=name)
