"""Borders of loops and rules that random cases seldom meet: an edit of the kernel at one of them shows here."""

import numpy as np
import pytest

from tests.train.flash_attention.support.arrays import random
from tests.train.flash_attention.support.problems import make_problem
from tests.train.flash_attention.ut.native.support.calls import run, values

SUBNORMAL = np.float32(2.0**-130)  # exact in bfloat16


def one_key(head_dim) -> tuple:
    """Return a bfloat16 problem of 40 queries that see one key, and its tensors. These are query, key, value and
    gradient of the output.
    """
    problem = make_problem(1, 1, 40, 1, head_dim, dtype="bfloat16")
    tensors = [random(1, 1, rows, head_dim, seed=seed) for seed, rows in enumerate((40, 1, 1, 40))]
    return (problem, *tensors)


def test_a_subnormal_value_behind_the_last_whole_vector(isa):
    problem, query, key, value, d_output = one_key(20)
    value[0, 0, 0, 19] = SUBNORMAL
    output = values(run(problem, query, key, value, d_output)[0])
    assert (output[..., 19] == SUBNORMAL).all()


def test_a_subnormal_gradient_of_the_output(isa):
    """Only one row has an output gradient that is not zero; the value gets it unchanged."""
    problem, query, key, value, d_output = one_key(32)
    d_output[:] = 0
    d_output[0, 0, 3, 7] = SUBNORMAL
    d_value = values(run(problem, query, key, value, d_output)[4])
    assert d_value[0, 0, 0, 7] == SUBNORMAL


def test_gradients_of_rows_that_see_nothing_may_be_nan(isa):
    """The first 30 queries lie before the first key."""
    problem = make_problem(1, 1, 40, 10, 16, dtype="float32", causal=True, causal_alignment="bottom_right")
    query, key, value, d_output = (random(1, 1, rows, 16, seed=rows) for rows in (40, 10, 10, 40))
    d_output[:, :, :30] = 0
    expected = run(problem, query, key, value, d_output)
    d_output[:, :, :30] = np.nan
    for one, other in zip(run(problem, query, key, value, d_output), expected):
        np.testing.assert_array_equal(one, other)
    assert not expected[2][:, :, :30].any()


def test_a_scale_that_float32_takes_for_zero(isa):
    problem = make_problem(1, 1, 20, 50, 16, dtype="float32", scale=1e-50)
    tensors = [random(1, 1, rows, 16, seed=rows) for rows in (20, 50, 50, 20)]
    output, logsumexp = run(problem, *tensors)[:2]
    np.testing.assert_allclose(logsumexp, np.log(50), rtol=1e-6)
    np.testing.assert_allclose(output, tensors[2].mean(2, keepdims=True).repeat(20, 2), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", pytest.param("float32", marks=pytest.mark.slow)])
def test_more_sums_than_are_kept_at_a_time(dtype):
    """Sums of d_query exist for two of the three heads at a time; the last head is alone."""
    sizes = {"seq_q": 65536, "seq_k": 65536, "head_dim": 64, "dtype": dtype, "window_left": 3, "window_right": 0}
    whole, single = make_problem(1, 3, **sizes), make_problem(1, 1, **sizes)
    # The same rows again and again, a prime number of them: they fall on other places of each tile.
    tensors = [np.tile(random(1, 3, 1031, 64, seed=seed), (1, 1, 64, 1))[:, :, :65536] for seed in range(4)]
    results = run(whole, *tensors)
    for head in (0, 2):
        alone = run(single, *(tensor[:, head : head + 1] for tensor in tensors))
        for one, other in zip(results, alone):
            np.testing.assert_array_equal(one[:, head], other[:, 0])
