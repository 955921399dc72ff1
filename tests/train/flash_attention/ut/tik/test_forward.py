"""Test the forward operator against float64 on adverse data, in strict mode; the shared cases: test_backward.py."""

import numpy as np
import pytest
from flash_attention import reference
from flash_attention.call import AttentionRules, Call
from flash_attention.kernels.tik import describe
from flash_attention.kernels.tik.common import score_terms

from tests.train.flash_attention.support import cases
from tests.train.flash_attention.support.calls import make_call, make_kernel_problem
from tests.train.flash_attention.ut.tik.support.passes import forward, random_arrays
from tests.train.flash_attention.ut.tik.support.programs import build_forward
from tests.train.flash_attention.ut.tik.support.shared_cases import check_closely

END = {"causal": True, "causal_alignment": "bottom_right"}


@pytest.mark.spread
@pytest.mark.parametrize("head_dim", (64, 80, 128, 160, 192, 208))
@pytest.mark.parametrize("sigma", (1.0, 2.0, 4.0))
def test_scores_of_any_spread_against_composed_attention(tik, execute, head_dim, sigma):
    # Logits have this sigma, all from the queries. The lengths make scores leave L0C as float16.
    problem = make_kernel_problem(1, 1, 256, 640, head_dim, cores=1)
    arrays = random_arrays(problem, seed=3)
    arrays[0] = (arrays[0].astype(np.float32) * sigma).astype(np.float16)
    actual = reference.Attention(*forward(tik, execute, problem, *arrays))
    cases.check_call(Call(1, 1, 256, 640, head_dim), arrays, actual)


def test_sample_that_misses_the_largest_score_is_found_out(tik, execute):
    problem = make_kernel_problem(1, 1, 200, 700, 64, cores=1)
    arrays = random_arrays(problem)
    arrays[1][0, 0, 37] = 12 * arrays[0][0, 0, 5]  # not in the sample; 90 above the rest for query 5
    arrays[1][0, 0, 38] = 11.9 * arrays[0][0, 0, 5]  # and the next one close behind
    arrays[1][0, 0, 300:304] *= 8
    check_closely(problem, arrays, *forward(tik, execute, problem, *arrays), 3.0)


@pytest.mark.parametrize("largest", (10.5, 12.5, 13.5, 13.8, 14.5, 50.0))
def test_exponents_at_the_bound_of_what_goes_uncut(tik, execute, largest):
    # The score of a key outside the sample is as large as lengths allow; the sampled references are about zero.
    problem = make_kernel_problem(1, 1, 200, 700, 64, cores=1)
    query, key, value = random_arrays(problem)
    query[..., 1:] *= 1e-3
    key *= 1e-3
    query[..., 0], key[..., 0], key[..., 37, 0] = np.sqrt(8 * largest), 0.0, np.sqrt(8 * largest)
    check_closely(problem, [query, key, value], *forward(tik, execute, problem, query, key, value), 3.0, 2.0**-7)


@pytest.mark.spread
@pytest.mark.parametrize("tiling", ("single128", "pair128"))
@pytest.mark.parametrize(("size", "factor"), ((120.0, 8.0), (350.0, 60.0)))
def test_scores_past_the_range_of_float16(tik, execute, size, factor, tiling):
    # Scores to 13 500 and 115 000; their differences are still small numbers, which float32 holds to 2^-11 and 2^-8.
    problem = make_kernel_problem(1, 1, 130, 300, 64, causal=True, cores=1, tiling=tiling)
    query, key, value = random_arrays(problem)
    query[..., 0] = size
    key[..., 0] = size * 60 / 8
    check_closely(problem, [query, key, value], *forward(tik, execute, problem, query, key, value), factor, 2.0**-6)


@pytest.mark.spread
@pytest.mark.parametrize("softcap", (0.0, 50.0))
@pytest.mark.parametrize("hidden", ("mask", "window"))
def test_rows_whose_sample_is_hidden_are_found_out(tik, execute, hidden, softcap):
    # Scores of about -30: with a reference of 0 every probability is zero in float16.
    fields, mask = {"window_left": 10, "window_right": 0, "causal_alignment": "bottom_right"}, None
    if hidden == "mask":
        mask = np.zeros((1, 1, 200, 250), np.uint8)
        mask[..., :100, :140] = mask[..., 100:, 110:] = 1  # no row sees the keys near it
        fields = {"mask_shape": mask.shape, "mask_dtype": "uint8"}
    attention = make_call(1, 1, 200, 250, 32, softcap=softcap, **fields)
    problem = describe.kernel_problem(attention, cores=1)
    arrays = random_arrays(problem)
    arrays[0][..., 0], arrays[1][..., 0] = 8.0, -30 * 32**0.5 / 8
    actual = reference.Attention(*forward(tik, execute, problem, *arrays, mask=mask))
    cases.check_call(attention, arrays, actual, mask=mask)


@pytest.mark.parametrize("causal", (False, True))
def test_sinks_of_any_size(tik, execute, causal):
    sinks = np.array([-3e4, -90, -20, 0, 12, 90, 3e4, 3e38], np.float32)
    attention = Call(1, 8, 20, 40, 16, sinks=True, rules=AttentionRules(causal=causal))
    arrays = random_arrays(describe.kernel_problem(attention), sigma=3.0)
    results = forward(tik, execute, describe.kernel_problem(attention, cores=1), *arrays, sinks=sinks)
    cases.check_call(attention, arrays, reference.Attention(*results), sinks=sinks)


@pytest.mark.parametrize(
    "problem",
    (
        pytest.param(make_kernel_problem(5, 14, 16, 16, 16, cores=1), id="more_items_than_a_chunk_of_the_work_table"),
        pytest.param(make_kernel_problem(1, 1, 20, 40, 32, cores=32), id="fewer_items_than_cores"),
        pytest.param(
            make_kernel_problem(1, 1, 16, 66000, 48, cores=1), id="strides_beyond_the_field", marks=pytest.mark.slow
        ),
        # A slope that no float16 holds, at positions whose terms cancel.
        pytest.param(
            make_kernel_problem(1, 1, 16, 16384, 16, alibi=True, slopes=(2.0**-0.7,), cores=1, **END),
            id="alibi_far_from_the_first_key",
        ),
    ),
)
def test_sizes_out_of_the_ordinary(tik, execute, problem):
    arrays = random_arrays(problem)
    assert build_forward(problem, tik).cores == 1
    check_closely(problem, arrays, *forward(tik, execute, problem, *arrays), 3.0)


@pytest.mark.parametrize("keys", (1, 16, 17))
def test_few_keys_with_computed_alibi(tik, execute, keys):
    """A tile of one fractal column has no halves that Vector could work on in turns."""
    problem = make_kernel_problem(1, 2, 200, keys, 64, causal=True, alibi=True, cores=1)
    arrays = random_arrays(problem)
    check_closely(problem, arrays, *forward(tik, execute, problem, *arrays), 3.0)


def test_float16_terms_add_up():
    for value in (0.1, 1 / 3, 40.7, 2.0**-9 * 1.23456):
        assert sum(score_terms.terms(value, 2)) == pytest.approx(value, rel=2.0**-21, abs=2.0**-25)
        assert sum(score_terms.terms(value, 3)) == pytest.approx(value, rel=2.0**-31, abs=2.0**-25)
