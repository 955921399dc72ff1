"""Numbers at the edges: conversions, large and infinite scores, NaN, rows and keys that nobody sees."""

import numpy as np
import pytest
from flash_attention import reference
from flash_attention.call import Call

from tests.train.flash_attention.support.problems import make_problem
from tests.train.flash_attention.ut.native.support.calls import run, values


def problem_of(seq_q, seq_k, head_dim, dtype="float32", **more) -> Call:
    """Return a problem of one head."""
    return make_problem(batch=1, heads=1, seq_q=seq_q, seq_k=seq_k, head_dim=head_dim, dtype=dtype, **more)


def random(*shape, seed=0) -> np.ndarray:
    """Return normal random elements of one head."""
    return np.random.default_rng(seed).standard_normal((1, 1, *shape)).astype(np.float32)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_every_16_bit_number_survives(isa, dtype):
    """With one key the output is the value: read, multiplied by 1 and written without a loss."""
    bits = np.arange(65536, dtype=np.uint16)
    numbers = bits.view(np.float16) if dtype == "float16" else bits
    finite = np.isfinite(values(numbers))
    problem = Call(batch=1, heads=256, seq_q=1, seq_k=1, head_dim=256, dtype=dtype)
    value = np.where(finite, values(numbers), 0).astype(np.float32).reshape(1, 256, 1, 256)
    zeros = np.zeros_like(value)
    output = values(run(problem, zeros, zeros, value, zeros)[0])
    np.testing.assert_array_equal(output, value)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_results_are_rounded_to_even(isa, dtype):
    """Half the sum of two numbers is exact in float32, so the output is half the sum, rounded once."""
    generator = np.random.default_rng(1)
    # Of like size and sign, so that float32 holds the sum.
    exponent = np.exp2(generator.integers(-22, 14, (256, 256)))
    pair = [reference.round_to((1 + generator.random((256, 256))) * exponent, dtype) for _ in range(2)]
    value = np.stack(pair, axis=1)[None]
    problem = Call(batch=1, heads=256, seq_q=1, seq_k=2, head_dim=256, dtype=dtype)
    query = np.zeros((1, 256, 1, 256), np.float32)
    output = values(run(problem, query, np.zeros_like(value), value, query)[0])
    np.testing.assert_array_equal(output[0, :, 0], reference.round_to((pair[0] + pair[1]) / 2, dtype))


@pytest.mark.parametrize("size", [30.0, 1e4, 1e8, 1e15, 1e18])
def test_large_scores(isa, size):
    """However large the scores, the largest key of a row wins and nothing overflows."""
    problem = problem_of(40, 300, 16, causal=True)
    query, key, value = size * random(40, 16), random(300, 16, seed=1), random(300, 16, seed=2)
    output, logsumexp, *gradients = run(problem, query, key, value, random(40, 16, seed=3))
    exact = reference.truth(problem, query, key, value)
    assert all(np.isfinite(result).all() for result in (output, logsumexp, *gradients))
    np.testing.assert_allclose(logsumexp, exact.logsumexp, rtol=1e-5)
    scores = problem.scale * (query @ np.swapaxes(key, -1, -2)).astype(np.float64)
    scores = np.where(problem.band.dense(), scores, -np.inf)
    clear = np.sort(scores, axis=-1)[0, 0]
    clear = clear[:, -1] - clear[:, -2] > 1e-5 * np.abs(clear[:, -1]) + 30
    best = value[0, 0, scores[0, 0].argmax(axis=-1)]
    np.testing.assert_allclose(output[0, 0][clear], best[clear], rtol=1e-5)
    assert clear.any()


def test_scores_that_rise_all_the_time(isa):
    """The running maximum is raised again and again, in every tile and inside of tiles."""
    problem = problem_of(33, 400, 8, scale=1.0)
    query = np.ones((1, 1, 33, 8), np.float32)
    key = np.broadcast_to(np.linspace(-40, 40, 400, dtype=np.float32)[:, None], (1, 1, 400, 8)).copy()
    key[0, 0, 200:260] -= 30
    value, d_output = random(400, 8), random(33, 8, seed=1)
    output, logsumexp, *gradients = run(problem, query, key, value, d_output)
    exact = reference.truth(problem, query, key, value, d_output=d_output)
    np.testing.assert_allclose(output, exact.output, rtol=2e-5, atol=1e-5)
    np.testing.assert_allclose(logsumexp, exact.logsumexp, rtol=1e-6)
    for gradient, expected in zip(gradients, (exact.d_query, exact.d_key, exact.d_value)):
        np.testing.assert_allclose(gradient, expected, rtol=1e-3, atol=2e-4)


def test_nan_stays_in_its_row(isa):
    problem = problem_of(70, 90, 24)
    query, key, value = random(70, 24), random(90, 24, seed=1), random(90, 24, seed=2)
    clean = run(problem, query, key, value, query)
    query[0, 0, 17, 3] = np.nan
    output, logsumexp, *_ = run(problem, query, key, value, random(70, 24))
    others = np.arange(70) != 17
    assert np.isnan(output[0, 0, 17]).all()
    assert np.isnan(logsumexp[0, 0, 17])
    np.testing.assert_array_equal(output[0, 0, others], clean[0][0, 0, others])


def test_infinite_bias_hides_and_its_gradient_is_zero(isa):
    sizes = {"bias_shape": (1, 1, 60, 150), "bias_dtype": "float32"}
    problem = problem_of(60, 150, 16, **sizes)
    query, key, value = random(60, 16), random(150, 16, seed=1), random(150, 16, seed=2)
    hidden = np.random.default_rng(3).random((1, 1, 60, 150)) < 0.5
    hidden[0, 0, 20:30] = True
    hidden[0, 0, 40, :130] = True
    bias = np.where(hidden, -np.inf, 0).astype(np.float32)
    by_mask = problem_of(60, 150, 16, mask_shape=(1, 1, 60, 150), mask_dtype="bool")
    first = run(problem, query, key, value, query, bias=bias)
    second = run(by_mask, query, key, value, query, mask=hidden)
    for one, other in zip(first[:5], second):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-6)
    assert np.all(first[1][0, 0, 20:30] == -np.inf)
    assert not first[0][0, 0, 20:30].any()
    assert not first[5][hidden].any()
    assert np.isfinite(first[5]).all()


def test_the_lowest_float_as_bias_is_no_infinity(isa):
    """A row averages the values, as softmax does, if its bias is the most negative number everywhere."""
    lowest = np.finfo(np.float32).min
    problem = problem_of(9, 140, 16, bias_shape=(1, 1, 9, 140), bias_dtype="float32")
    bias = np.full((1, 1, 9, 140), lowest, np.float32)
    bias[0, 0, 4, 77] = 0
    query, key, value = random(9, 16), random(140, 16, seed=1), random(140, 16, seed=2)
    output = run(problem, 0 * query, key, value, query, bias=bias)[0][0, 0]
    np.testing.assert_allclose(output[4], value[0, 0, 77], rtol=1e-6)
    np.testing.assert_allclose(output[[0, 8]], value[0, 0].mean(axis=0)[None].repeat(2, 0), rtol=1e-4, atol=1e-6)


def test_hidden_tiles_are_not_touched(isa):
    """Keys that no query sees, by position or by mask, may hold anything, forward and backward."""
    problem = problem_of(130, 900, 20, window_left=100, window_right=10, mask_shape=(1, 1, 1, 900), mask_dtype="bool")
    query, key, value, d_output = random(130, 20), *(random(900, 20, seed=seed) for seed in (1, 2)), random(130, 20)
    mask = np.zeros((1, 1, 1, 900), bool)
    mask[..., :128] = True
    expected = run(problem, query, key, value, d_output, mask=mask)
    for tensor in (key, value):
        tensor[:, :, :128] = np.nan  # hidden by the mask, a whole tile
        tensor[:, :, 256:] = np.nan  # out of the window, whole tiles
    actual = run(problem, query, key, value, d_output, mask=mask)
    for one, other in zip(actual, expected):
        np.testing.assert_array_equal(one, other)
    assert not expected[3][0, 0, :128].any()
