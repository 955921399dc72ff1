"""Finite, representable results leave the chip's overflow status clear; results that overflow set it.

`execute` checks the status of every program; the data here come close to overflow, or overflow.
"""

import numpy as np
import pytest
from flash_attention import reference
from flash_attention.call import Call
from flash_attention.kernels.tik import describe

from tests.train.flash_attention.support.calls import make_call
from tests.train.flash_attention.support.cases import check_call
from tests.train.flash_attention.ut.tik.support.passes import both_passes, random_data

ROWS, KEYS = 144, 400


def _normal(head_dim: int) -> list[np.ndarray]:
    """Query, key, value and d_output, float64."""
    random = np.random.default_rng(7)
    return [random.standard_normal((1, 1, length, head_dim)) for length in (ROWS, KEYS, KEYS, ROWS)]


def _drifting_keys(head_dim: int) -> list[np.ndarray]:
    """Return inputs with growing keys: the maximum of a row rises again and again."""
    query, key, value, d_output = _normal(head_dim)
    return [query, key * np.linspace(0.1, 12, KEYS)[:, None], value, d_output]


def _huge_key_last(head_dim: int) -> list[np.ndarray]:
    """Return inputs in which the last key has the greatest scores by far."""
    query, key, value, d_output = _normal(head_dim)
    key[..., -1, :] = 40 * query[..., 3, :]
    return [query, key, value, d_output]


def _rows_of_different_scale(head_dim: int) -> list[np.ndarray]:
    """Return inputs with rows of query that differ by five orders of magnitude."""
    query, key, value, d_output = _normal(head_dim)
    return [query * np.geomspace(1e-3, 1e2, ROWS)[:, None], key, value, d_output]


def _scores_to_60000(head_dim: int) -> list[np.ndarray]:
    """Return inputs with scores from -60000 to 60000 in every row."""
    query, key, value, d_output = _normal(head_dim)
    size = np.sqrt(60000 / np.sqrt(head_dim))
    signs = np.sign(key[..., :1, :])
    return [query * 1e-3 + size * signs, key * 1e-3 + size * signs * np.linspace(-1, 1, KEYS)[:, None], value, d_output]


def _rows_of_great_gradients(head_dim):
    query, key, value, d_output = _normal(head_dim)
    return [query, key, value, d_output * np.geomspace(1e-3, 65504 / np.abs(d_output).max(), ROWS)[:, None]]


DATA = (_drifting_keys, _huge_key_last, _rows_of_different_scale, _scores_to_60000)


def _run(tik, execute, attention: Call, arrays: list, **features) -> reference.Attention:
    """Return the output, logsumexp and gradients of the operators."""
    data = dict(zip(("query", "key", "value", "d_output"), arrays))
    found, _ = both_passes(tik, execute, describe.kernel_problem(attention, cores=1), {**data, **features})
    return reference.Attention(**found)


def _check(attention: Call, arrays: list, actual: reference.Attention, **features) -> None:
    """Check that errors are at most twice composed attention's."""
    check_call(attention, arrays[:3], actual, d_output=arrays[3], **features)


@pytest.mark.spread
@pytest.mark.parametrize("head_dim", (64, 80, 128))
@pytest.mark.parametrize("data", DATA)
def test_hostile_data_is_right_and_sets_nothing(tik, execute, data, head_dim):
    arrays = [array.astype(np.float16) for array in data(head_dim)]
    attention = Call(1, 1, ROWS, KEYS, head_dim)
    _check(attention, arrays, _run(tik, execute, attention, arrays))


@pytest.mark.spread
@pytest.mark.parametrize("fields", ({}, {"causal": True, "sinks": True}, {"softcap": 30.0}), ids=str)
@pytest.mark.parametrize("head_dim", (16, 128, pytest.param(256, marks=pytest.mark.slow)))
def test_great_gradients_of_the_output_are_right_and_set_nothing(tik, execute, fields, head_dim):
    """The products of d_output and value pass 65504, as under a loss scale, and no gradient does."""
    arrays = [array.astype(np.float16) for array in _rows_of_great_gradients(head_dim)]
    attention = make_call(1, 1, ROWS, KEYS, head_dim, **fields)
    features = {"sinks": np.zeros(1, np.float32)} if "sinks" in fields else {}
    exact = reference.truth(attention, *arrays[:3], d_output=arrays[3], **features)
    assert np.abs(arrays[3].astype(float) @ arrays[2].astype(float).swapaxes(2, 3)).max() > 2 * 65504
    assert max(np.abs(one).max() for one in (exact.d_query, exact.d_key, exact.d_value)) < 60000
    _check(attention, arrays, _run(tik, execute, attention, arrays, **features), **features)


@pytest.mark.parametrize("data", (_huge_key_last, _scores_to_60000))
def test_capped_scores_of_any_size_are_right_and_set_nothing(tik, execute, data):
    arrays = [array.astype(np.float16) for array in data(32)]
    attention = make_call(1, 1, ROWS, KEYS, 32, softcap=50.0)
    _check(attention, arrays, _run(tik, execute, attention, arrays))


@pytest.mark.parametrize(
    ("kind", "head_dim"),
    [
        *(("causal", 64), ("full", 128), ("key", 64), ("bias", 128)),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("causal", 128), ("full", 64))),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (("key", 128), ("bias", 64))),
    ],
)
def test_hidden_scores_of_any_size_set_nothing(tik, execute, kind, head_dim):
    arrays = [array.astype(np.float16) for array in _normal(head_dim)]
    first = {"causal": ROWS - 20, "full": 37, "key": 300, "bias": 300}[kind]
    arrays[1][..., first:, :] *= np.float16(100)  # keys that rows before `first`, or all, do not see
    fields, features = {}, {}
    if kind == "causal":
        fields = {"causal": True}
    elif kind == "full":
        features["mask"] = np.zeros((1, 1, ROWS, KEYS), np.uint8)
        features["mask"][..., first:] = 1
        features["mask"][..., 5, :] = 1
    elif kind == "key":
        features["mask"] = np.zeros((1, 1, 1, KEYS), np.uint8)
        features["mask"][..., first:] = 1
    else:
        features["bias"] = np.zeros((1, 1, 1, KEYS), np.float16)
        features["bias"][..., first:] = -np.inf
        fields = {"bias_shape": (1, 1, 1, KEYS), "bias_dtype": "float16"}
    if "mask" in features:
        fields.update(mask_shape=features["mask"].shape, mask_dtype="uint8")
    attention = make_call(1, 1, ROWS, KEYS, head_dim, **fields)
    _check(attention, arrays, _run(tik, execute, attention, arrays, **features), **features)


FEATURES = {
    "key mask": {"mask_shape": (1, 1, 1, 50), "mask_dtype": "uint8"},
    "key bias": {"bias_shape": (1, 2, 1, 50), "bias_dtype": "float16"},
    "bias": {"bias_shape": (1, 2, 40, 50), "bias_dtype": "float16"},
    "alibi": {"alibi": True},
}


def _results_and_truth(tik, execute, attention: Call, data: dict) -> tuple[dict, dict]:
    """Return what the operators compute, and the truth, by name. Float16 composed attention is no measure here."""
    found, _ = both_passes(tik, execute, describe.kernel_problem(attention, cores=2), data)
    truth = reference.truth(attention, **{name: array.astype(float) for name, array in data.items()})
    return found, {name: array for name, array in truth.named().items() if array is not None}


@pytest.mark.parametrize("head_dim", (32, pytest.param(80, marks=pytest.mark.slow)))
@pytest.mark.parametrize("kind", FEATURES)
def test_scores_to_50000_beside_other_terms(tik, execute, kind, head_dim):
    """Float16 holds such scores in steps of 32, and in units of a post-scale of 16 and more worse."""
    attention = make_call(1, 2, 40, 50, head_dim, causal=True, **FEATURES[kind])
    data = random_data(describe.kernel_problem(attention, cores=2))
    signs, size = np.sign(data["key"][:, :, :1]), 50000 / np.sqrt(head_dim)
    data["key"] = (data["key"] / 100 + 100 * signs).astype(np.float16)
    rows = data["query"][:, :, 5::25]
    rows[...] = rows / 100 + signs * (size / 100)
    found, truth = _results_and_truth(tik, execute, attention, data)
    np.testing.assert_allclose(found["output"], truth["output"], atol=0.02)
    np.testing.assert_allclose(found["logsumexp"], truth["logsumexp"], rtol=1e-6, atol=0.02)


@pytest.mark.parametrize("head_dim", (32, 80, 128))
@pytest.mark.parametrize("low", (-65504.0, pytest.param(-30000.0, marks=pytest.mark.slow)))
def test_rows_whose_biases_are_all_far_below_zero(tik, execute, low, head_dim):
    attention = make_call(1, 2, 40, 50, head_dim, causal=True, **FEATURES["bias"])
    data = random_data(describe.kernel_problem(attention, cores=2))
    hidden = np.random.default_rng(5).random(data["bias"].shape) < 0.3
    hidden[0, 1, [3, 10, 39]] = True
    data["bias"][hidden] = low
    found, truth = _results_and_truth(tik, execute, attention, data)
    for name, array in truth.items():
        np.testing.assert_allclose(found[name], array, atol=0.01 * np.abs(array).max(), err_msg=name)


def test_a_bias_of_minus_infinity_per_score_sets_the_status(tik, execute):
    problem = describe.kernel_problem(make_call(1, 2, 40, 50, 32, **FEATURES["bias"]), cores=2)
    data = random_data(problem)
    data["bias"][..., 7] = -np.inf
    with pytest.raises(AssertionError, match="vec_axpy"):
        both_passes(tik, execute, problem, data)


def test_gradients_beyond_float16_set_the_status(tik, execute):
    arrays = _normal(64)
    arrays[1] *= 200
    arrays[0] /= 200
    arrays[3] *= 500
    arrays = [array.astype(np.float16) for array in arrays]
    attention = Call(1, 1, ROWS, KEYS, 64)
    exact = reference.truth(attention, *arrays[:3], d_output=arrays[3])
    assert np.abs(exact.d_query).max() > 70000

    def run(instance, feed: dict, outputs: list) -> dict:
        return execute(instance, feed, outputs, saturates=False if "output" in outputs else None)

    actual = _run(tik, run, attention, arrays)
    beyond = np.abs(exact.d_query) > 66000
    assert np.all(np.abs(actual.d_query[beyond]) == 65504)
    with pytest.raises(AssertionError, match="overflow"):
        _run(tik, execute, attention, arrays)
