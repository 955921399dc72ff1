"""The soft cap of the native kernel: accuracy of its tanh over all magnitudes, and numbers that are not finite."""

import numpy as np
import pytest

from tests.train.flash_attention.support.problems import make_problem
from tests.train.flash_attention.ut.native.support.calls import run


def capped(scores: np.ndarray, softcap: float) -> np.ndarray:
    """Return the capped scores, which are the logsumexp with a single key."""
    sizes = {"batch": 1, "heads": 1, "seq_q": scores.size, "seq_k": 1, "head_dim": 1}
    problem = make_problem(**sizes, dtype="float32", scale=1.0, softcap=softcap)
    one = np.ones((1, 1, 1, 1), np.float32)
    query = scores.astype(np.float32).reshape(1, 1, -1, 1)
    return run(problem, query, one, one, np.ones_like(query))[1].reshape(-1)


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
