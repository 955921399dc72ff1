"""Numbers and sizes at the edges: conversions, large and infinite scores, NaN, borders of loops, stale scratch."""

import numpy as np
import pytest
from flash_attention import reference
from flash_attention.call import Call

from tests.train.flash_attention.support.arrays import random
from tests.train.flash_attention.support.calls import make_call
from tests.train.flash_attention.ut.native.support.calls import run, values


def call_of(seq_q, seq_k, head_dim, dtype="float32", **more) -> Call:
    """Return a call of one head."""
    return make_call(batch=1, heads=1, seq_q=seq_q, seq_k=seq_k, head_dim=head_dim, dtype=dtype, **more)


def one_head(*shape, seed=0) -> np.ndarray:
    """Return normal random elements of one head."""
    return np.random.default_rng(seed).standard_normal((1, 1, *shape)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_16_bit_number_survives(isa, dtype):
    """With one key the output is the value: read, multiplied by 1 and written without a loss."""
    bits = np.arange(65536, dtype=np.uint16)
    numbers = bits.view(np.float16) if dtype == "float16" else bits
    finite = np.isfinite(values(numbers))
    call = Call(batch=1, heads=256, seq_q=1, seq_k=1, head_dim=256, dtype=dtype)
    value = np.where(finite, values(numbers), 0).astype(np.float32).reshape(1, 256, 1, 256)
    zeros = np.zeros_like(value)
    output = values(run(call, zeros, zeros, value, zeros)[0])
    np.testing.assert_array_equal(output, value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_are_rounded_to_even(isa, dtype):
    """Half the sum of two numbers is exact in float32, so the output is half the sum, rounded once."""
    generator = np.random.default_rng(1)
    # Of like size and sign, so that float32 holds the sum.
    exponent = np.exp2(generator.integers(-22, 14, (256, 256)))
    pair = [reference.round_to((1 + generator.random((256, 256))) * exponent, dtype) for _ in range(2)]
    value = np.stack(pair, axis=1)[None]
    call = Call(batch=1, heads=256, seq_q=1, seq_k=2, head_dim=256, dtype=dtype)
    query = np.zeros((1, 256, 1, 256), np.float32)
    output = values(run(call, query, np.zeros_like(value), value, query)[0])
    np.testing.assert_array_equal(output[0, :, 0], reference.round_to((pair[0] + pair[1]) / 2, dtype))


@pytest.mark.parametrize("size", [30.0, 1e4, 1e8, 1e15, 1e18])
def test_large_scores(isa, size):
    """However large the scores, the largest key of a row wins and nothing overflows."""
    call = call_of(40, 300, 16, causal=True)
    query, key, value = size * one_head(40, 16), one_head(300, 16, seed=1), one_head(300, 16, seed=2)
    output, logsumexp, *gradients = run(call, query, key, value, one_head(40, 16, seed=3))
    exact = reference.truth(call, query, key, value)
    assert all(np.isfinite(result).all() for result in (output, logsumexp, *gradients))
    np.testing.assert_allclose(logsumexp, exact.logsumexp, rtol=1e-5)
    scores = call.scale * (query @ np.swapaxes(key, -1, -2)).astype(np.float64)
    scores = np.where(call.band.dense(), scores, -np.inf)
    clear = np.sort(scores, axis=-1)[0, 0]
    clear = clear[:, -1] - clear[:, -2] > 1e-5 * np.abs(clear[:, -1]) + 30
    best = value[0, 0, scores[0, 0].argmax(axis=-1)]
    np.testing.assert_allclose(output[0, 0][clear], best[clear], rtol=1e-5)
    assert clear.any()


def test_scores_that_rise_all_the_time(isa):
    """The running maximum is raised again and again, in every tile and inside of tiles."""
    call = call_of(33, 400, 8, scale=1.0)
    query = np.ones((1, 1, 33, 8), np.float32)
    key = np.broadcast_to(np.linspace(-40, 40, 400, dtype=np.float32)[:, None], (1, 1, 400, 8)).copy()
    key[0, 0, 200:260] -= 30
    value, d_output = one_head(400, 8), one_head(33, 8, seed=1)
    output, logsumexp, *gradients = run(call, query, key, value, d_output)
    exact = reference.truth(call, query, key, value, d_output=d_output)
    np.testing.assert_allclose(output, exact.output, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(logsumexp, exact.logsumexp, rtol=1e-6)
    for gradient, expected in zip(gradients, (exact.d_query, exact.d_key, exact.d_value)):
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=2e-4)


def test_infinite_bias_hides_and_its_gradient_is_zero(isa):
    sizes = {"bias_shape": (1, 1, 60, 150), "bias_dtype": "float32"}
    call = call_of(60, 150, 16, **sizes)
    query, key, value = one_head(60, 16), one_head(150, 16, seed=1), one_head(150, 16, seed=2)
    hidden = np.random.default_rng(3).random((1, 1, 60, 150)) < 0.5
    hidden[0, 0, 20:30] = True
    hidden[0, 0, 40, :130] = True
    bias = np.where(hidden, -np.inf, 0).astype(np.float32)
    by_mask = call_of(60, 150, 16, mask_shape=(1, 1, 60, 150), mask_dtype="bool")
    first = run(call, query, key, value, query, bias=bias)
    second = run(by_mask, query, key, value, query, mask=hidden)
    for one, other in zip(first[:5], second):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert np.all(first[1][0, 0, 20:30] == -np.inf)
    assert not first[0][0, 0, 20:30].any()
    assert not first[5][hidden].any()
    assert np.isfinite(first[5]).all()


@pytest.mark.parametrize("keys", [140, 300])
def test_the_lowest_float_as_bias_is_no_infinity(isa, keys):
    """A row averages the values, as softmax does, if its bias is the most negative number everywhere."""
    lowest = np.finfo(np.float32).min
    call = call_of(9, keys, 16, bias_shape=(1, 1, 9, keys), bias_dtype="float32")
    bias = np.full((1, 1, 9, keys), lowest, np.float32)
    bias[0, 0, 4, 77] = 0
    query, key, value = one_head(9, 16), one_head(keys, 16, seed=1), one_head(keys, 16, seed=2)
    output = run(call, 0 * query, key, value, query, bias=bias)[0][0, 0]
    np.testing.assert_allclose(output[4], value[0, 0, 77], rtol=1e-6)
    np.testing.assert_allclose(output[[0, 8]], value[0, 0].mean(axis=0)[None].repeat(2, 0), rtol=1e-4, atol=1e-6)


def test_a_great_sink_beside_rows_that_see_nothing(isa):
    """The logsumexp of such a row is the sink, and the row adds nothing to its gradient."""
    call = call_of(40, 50, 16, bias_shape=(1, 1, 1, 50), bias_dtype="float32", sinks=True)
    query, key, value = one_head(40, 16), one_head(50, 16, seed=1), one_head(50, 16, seed=2)
    for bias in (np.full((1, 1, 1, 50), -np.inf, np.float32), np.zeros((1, 1, 1, 50), np.float32)):
        results = run(call, query, key, value, query, bias=bias, sinks=np.full(1, 3000, np.float32))
        assert all(not gradient.any() for gradient in (results[0], *results[2:]))


def test_gradients_of_rows_that_see_nothing_may_be_nan(isa):
    """The first 30 queries lie before the first key."""
    call = call_of(40, 10, 16, causal=True, causal_alignment="bottom_right")
    query, key, value, d_output = (random(1, 1, rows, 16, seed=rows) for rows in (40, 10, 10, 40))
    d_output[:, :, :30] = 0
    expected = run(call, query, key, value, d_output)
    d_output[:, :, :30] = np.nan
    for one, other in zip(run(call, query, key, value, d_output), expected):
        np.testing.assert_array_equal(one, other)
    assert not expected[2][:, :, :30].any()


def test_a_scale_that_float32_takes_for_zero(isa):
    call = call_of(20, 50, 16, scale=1e-50)
    tensors = [random(1, 1, rows, 16, seed=rows) for rows in (20, 50, 50, 20)]
    output, logsumexp = run(call, *tensors)[:2]
    np.testing.assert_allclose(logsumexp, np.log(50), rtol=1e-6)
    np.testing.assert_allclose(output, tensors[2].mean(2, keepdims=True).repeat(20, 2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", pytest.param("float32", marks=pytest.mark.slow)])
def test_more_sums_than_are_kept_at_a_time(dtype):
    """Sums of d_query exist for two of the three heads at a time; the last head is alone."""
    sizes = {"seq_q": 65536, "seq_k": 65536, "head_dim": 64, "dtype": dtype, "window_left": 3, "window_right": 0}
    whole, single = make_call(1, 3, **sizes), make_call(1, 1, **sizes)
    # The same rows again and again, a prime number of them: they fall on other places of each tile.
    tensors = [np.tile(random(1, 3, 1031, 64, seed=seed), (1, 1, 64, 1))[:, :, :65536] for seed in range(4)]
    results = run(whole, *tensors)
    for head in (0, 2):
        alone = run(single, *(tensor[:, head : head + 1] for tensor in tensors))
        for one, other in zip(results, alone):
            np.testing.assert_array_equal(one[:, head], other[:, 0])


def capped(scores: np.ndarray, softcap: float) -> np.ndarray:
    """Return the capped scores, which are the logsumexp with a single key."""
    call = call_of(scores.size, 1, 1, scale=1.0, softcap=softcap)
    one = np.ones((1, 1, 1, 1), np.float32)
    query = scores.astype(np.float32).reshape(1, 1, -1, 1)
    return run(call, query, one, one, np.ones_like(query))[1].reshape(-1)


@pytest.mark.parametrize("softcap", [1e-20, 0.5, 1.0, 30.0, 1e20])
def test_the_tanh_errs_by_a_few_units_in_the_last_place(isa, softcap):
    sizes = np.concatenate([np.logspace(-12, 2, 3000), np.linspace(0, 10, 3000)]).astype(np.float32)
    scores = np.concatenate([sizes, -sizes]) * np.float32(softcap)
    exact = softcap * np.tanh(scores.astype(np.float64) / softcap)
    error = np.abs(capped(scores, softcap) - exact)
    assert (error <= 6 * 2.0**-24 * np.abs(exact)).all()


def test_infinite_scores_are_capped_and_nan_stays(isa):
    result = capped(np.array([np.inf, -np.inf, np.nan, 1e38, -1e38, 0.0]), 2.0)
    np.testing.assert_array_equal(result, np.array([2.0, -2.0, np.nan, 2.0, -2.0, 0.0], np.float32))


def test_a_cap_far_above_the_scores_changes_nothing(isa):
    scores = np.linspace(-5, 5, 41).astype(np.float32)
    np.testing.assert_allclose(capped(scores, 1e30), scores, rtol=4e-7)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("left_by", [np.nan, 1e30], ids=["nan", "large"])
def test_key_gradients_after_an_ugly_call(isa, dtype, left_by, monkeypatch):
    """Keys to the right of the last row's keys get zeros if the number of rows is odd, and not stale scratch."""
    monkeypatch.delenv("FLASH_ATTENTION_CPU_POISON")
    whole = call_of(128, 128, 32, dtype)
    ugly = np.full(whole.shape_query(), left_by if dtype != "float16" else np.nan, np.float32)
    for seq_q, more in ((33, {"causal": True}), (1, {"causal": True}), (65, {"window_right": 9})):
        run(whole, ugly, ugly, ugly, ugly)
        call = call_of(seq_q, 150, 32, dtype, **more)
        query, key = call.shape_query(), call.shape_key()
        results = run(call, *(random(*shape, seed=seed) for seed, shape in enumerate((query, key, key, query))))
        seen = call.band.keys(seq_q - 1)[1]
        for name, gradient in zip(("d_key", "d_value"), results[3:]):
            assert not gradient[:, :, seen:].any(), f"{name} with {seq_q} rows"
