"""The forward operator against float64, in strict mode, on the shared cases and on data made to break it."""

import numpy as np
import pytest
from flash_attention import reference
from flash_attention.dropout import philox
from flash_attention.kernels.tik import KernelProblem, host
from flash_attention.kernels.tik.forward.kernel import build
from flash_attention.kernels.tik.problem import MAX_HEAD_DIM
from flash_attention.problem import AttentionProblem, AttentionRules

from tests.train.flash_attention import case_list, cases
from tests.train.flash_attention.problems import make_kernel_problem, make_problem
from tests.train.flash_attention.ut.tik.programs import forward

REPRESENTATIVE = (
    "B2-H4-KV2-Sq97-Sk150-D64-float16-compact-drop0.1",
    "B2-H3-KV1-Sq150-Sk97-D59-float16-3d-alibi.computed",
    "B1-H2-S300-D128-float16-causal-blocks1_all-alibi.shared",
    "B2-H2-S64-D80-float16-rows-alibi.given-drop0.5",
    "B1-H2-Sq70-Sk83-D1-float16-compact",
    "B1-H2-Sq70-Sk83-D256-float16",
    "B1-H2-Sq70-Sk83-D192-float16-causal",
    "B1-H2-S1-D40-float16-compact",
    "B1-H2-Sq15-Sk17-D40-float16",
    "B1-H2-Sq128-Sk256-D32-float16-3d-window40_40-bottom_right",
    "B1-H2-Sq200-Sk333-D32-float16-window10_0-bottom_right-alibi.computed",
    "B2-H2-Sq130-Sk140-D64-float16-compact-huge",
    "B2-H2-Sq130-Sk140-D64-float16-compact-outlier",
    "B2-H2-Sq130-Sk140-D64-float16-compact-constant",
    "B2-H2-S113-D32-float16-all",
    "B1-H2-Sq300-Sk40-D32-float16-window10_10",
    "B1-H2-S113-D32-float16-causal-scale-0.25",
    "B2-H2-S140-D32-float16-padding-window40_0-alibi.computed-drop0.2",
    "B2-H2-S140-D32-float16-3d-blocks1_0-sparse_64-alibi.bias-drop0.2",
    "B1-H2-Sq33-Sk150-D64-float16-cap0.5-large",
    "B2-H2-KV1-Sq70-Sk83-D32-float16-compact-alibi.given-cap50.0",
    "B1-H2-S113-D32-float16-all-alibi.computed-sinks",
    "B1-H2-Sq70-Sk83-D192v128-float16-3d",
    "B1-H2-Sq70-Sk83-D17v40-float16",
    "B2-H2-Sq70-Sk140-D32-float16-3d-shuffled",
)


def test_representative_cases_are_all_in_the_list():
    assert len(case_list.params(_is_representative, dtype="float16")) == len(REPRESENTATIVE)


def _is_representative(case) -> bool:
    """Whether the case is one of every day."""
    return str(case) in REPRESENTATIVE


def within_limits(case) -> bool:
    """Whether the kernels take the widths of a case."""
    return max(case.head_dim, case.value_dim) <= MAX_HEAD_DIM


def kernel_mask(case):
    """The mask of a case as the kernels take it, non-zero = hidden: that of the call, the prefix and the segments."""
    problem, mask, further = case.problem, case.backend_mask(), case.inputs().further()
    if not (problem.prefix or problem.segments):
        return mask
    hidden = np.zeros((problem.batch, 1, problem.seq_q, problem.seq_k), bool)
    if mask is not None:
        hidden = hidden | (mask != 0)
    if problem.prefix:
        hidden |= ~problem.band.dense() & (np.arange(problem.seq_k) >= further["prefix"][:, None, None, None])
    if problem.segments:
        own, other = further["segment_ids"][:, None, :, None], further["kv_segment_ids"][:, None, None, :]
        hidden |= (own != other) | (own < 0)
    return hidden


def run_case(tik, execute, case, cores: int = 4, tiling: str = "auto") -> reference.Attention:
    """Output and logsumexp of a case on the forward operator."""
    problem, inputs = case.problem, case.inputs()
    kernel_problem = host.describe(problem, cores=cores, tiling=tiling)
    keep = philox.keep_bits(problem, cases.SEED) if case.dropout else None
    output, logsumexp = forward(
        tik,
        execute,
        kernel_problem,
        inputs.query,
        inputs.key,
        inputs.value,
        mask=kernel_mask(case),
        bias=inputs.bias,
        keep_bits=keep,
        sinks=inputs.sinks,
    )
    return reference.Attention(output, logsumexp)


@pytest.mark.parametrize("case", case_list.params(_is_representative, dtype="float16"))
def test_representative_cases(tik, execute, case):
    cases.check(case, run_case(tik, execute, case))


@pytest.mark.slow
@pytest.mark.parametrize("case", case_list.params(within_limits, dtype="float16"))
def test_all_cases(tik, execute, case):
    cases.check(case, run_case(tik, execute, case))


def _arrays(problem: KernelProblem, seed: int = 0, sigma: float = 1.0) -> list:
    """Random query, key and value."""
    random = np.random.default_rng(seed)
    shape_k = problem.batch, problem.kv_heads, problem.seq_k, problem.head_dim
    query = random.standard_normal((problem.batch, problem.heads, problem.seq_q, problem.head_dim)) * sigma
    return [
        query.astype(np.float16),
        (random.standard_normal(shape_k) * sigma).astype(np.float16),
        random.standard_normal(shape_k).astype(np.float16),
    ]


def _check(
    problem: KernelProblem, arrays: list, output, logsumexp, factor: float = 2.0, slack: float = 2.0**-11
) -> None:
    """Error at most `factor` times that of composed attention whose scores are not rounded: the strictest baseline."""
    query, key, value = (array.astype(np.float64) for array in arrays)
    key, value = (np.repeat(array, problem.group, axis=1) for array in (key, value))
    hidden = ~problem.band.dense()
    scores = np.where(hidden, -np.inf, query @ key.swapaxes(-1, -2) * problem.scale)
    top = np.maximum(scores.max(-1, keepdims=True), -1e300)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    exact = weights @ value / np.where(total == 0, 1, total)
    low = (weights.astype(np.float16).astype(np.float64) @ value / np.where(total == 0, 1, total)).astype(np.float16)
    for measure in (np.max, np.mean):
        error, allowed = measure(np.abs(output - exact)), factor * measure(np.abs(low - exact))
        assert error <= allowed + 1e-7, f"{measure.__name__}: {error:.3g}, allowed {allowed:.3g}"
    visible = total[..., 0] > 0
    expected = (top + np.log(np.where(total == 0, 1, total)))[..., 0]
    slack = slack + 2.0**-22 * np.abs(expected)
    assert np.all(np.abs(logsumexp - expected)[visible] <= slack[visible])
    assert np.all(logsumexp[~visible] <= -3.4e38)
    assert not np.any(output[~visible])


@pytest.mark.parametrize("head_dim", (64, 80, 128, 160, 192, 208))
@pytest.mark.parametrize("sigma", (1.0, 2.0, 4.0))
def test_scores_of_any_spread_against_composed_attention(tik, execute, head_dim, sigma):
    # Logits of this sigma: one side carries all of it. Long enough for scores that leave L0C as float16.
    problem = KernelProblem(1, 1, 256, 640, head_dim, cores=1)
    arrays = _arrays(problem, seed=3)
    arrays[0] = (arrays[0].astype(np.float32) * sigma).astype(np.float16)
    actual = reference.Attention(*forward(tik, execute, problem, *arrays))
    attention = AttentionProblem(1, 1, 256, 640, head_dim)
    exact, low = (of(attention, *arrays) for of in (reference.truth, reference.baseline))
    assert [str(error) for error in reference.compare(actual, exact, low) if not error.ok] == []


def test_sample_that_misses_the_largest_score_is_found_out(tik, execute):
    problem = KernelProblem(1, 1, 200, 700, 64, cores=1)
    arrays = _arrays(problem)
    arrays[1][0, 0, 37] = 12 * arrays[0][0, 0, 5]  # not in the sample; 90 above the rest for query 5
    arrays[1][0, 0, 38] = 11.9 * arrays[0][0, 0, 5]  # and the next one close behind
    arrays[1][0, 0, 300:304] *= 8
    _check(problem, arrays, *forward(tik, execute, problem, *arrays), 3.0)


@pytest.mark.parametrize("largest", (10.5, 12.5, 13.5, 13.8, 14.5, 50.0))
def test_exponents_at_the_bound_of_what_goes_uncut(tik, execute, largest):
    # As large as the lengths allow, of one key that no sample holds; by the others the references are about zero.
    problem = KernelProblem(1, 1, 200, 700, 64, cores=1)
    query, key, value = _arrays(problem)
    query[..., 1:] *= 1e-3
    key *= 1e-3
    query[..., 0], key[..., 0], key[..., 37, 0] = np.sqrt(8 * largest), 0.0, np.sqrt(8 * largest)
    _check(problem, [query, key, value], *forward(tik, execute, problem, query, key, value), 3.0, 2.0**-7)


@pytest.mark.parametrize("tiling", ("single128", "pair128"))
@pytest.mark.parametrize(("size", "factor"), ((120.0, 8.0), (350.0, 60.0)))
def test_scores_past_the_range_of_float16(tik, execute, size, factor, tiling):
    # Scores to 13 500 and 115 000; their differences are still small numbers, which float32 holds to 2^-11 and 2^-8.
    problem = make_kernel_problem(1, 1, 130, 300, 64, causal=True, cores=1, tiling=tiling)
    query, key, value = _arrays(problem)
    query[..., 0] = size
    key[..., 0] = size * 60 / 8
    _check(problem, [query, key, value], *forward(tik, execute, problem, query, key, value), factor, 2.0**-6)


def test_two_runs_are_bit_equal_and_so_are_shards(tik, execute):
    whole = make_kernel_problem(2, 4, 150, 260, 64, kv_heads=2, causal=True, cores=5)
    query, key, value = _arrays(whole)
    first, again = (forward(tik, execute, whole, query, key, value) for _ in range(2))
    shard = make_kernel_problem(1, 2, 150, 260, 64, kv_heads=1, causal=True, cores=2)
    part = forward(tik, execute, shard, query[1:, 2:], key[1:, 1:], value[1:, 1:])
    for a, b, c in zip(first, again, part):
        assert np.array_equal(a, b)
        assert np.array_equal(a[1:, 2:], c)


@pytest.mark.parametrize("softcap", (0.0, 50.0))
@pytest.mark.parametrize("hidden", ("mask", "window"))
def test_rows_whose_sample_is_hidden_are_found_out(tik, execute, hidden, softcap):
    # Scores of about -30: with a reference of 0 every probability is zero in float16.
    fields, mask = {"window_left": 10, "window_right": 0, "causal_alignment": "bottom_right"}, None
    if hidden == "mask":
        mask = np.zeros((1, 1, 200, 250), np.uint8)
        mask[..., :100, :140] = mask[..., 100:, 110:] = 1  # nobody sees what stands near
        fields = {"mask_shape": mask.shape, "mask_dtype": "uint8"}
    attention = make_problem(1, 1, 200, 250, 32, softcap=softcap, **fields)
    problem = host.describe(attention, cores=1)
    arrays = _arrays(problem)
    arrays[0][..., 0], arrays[1][..., 0] = 8.0, -30 * 32**0.5 / 8
    actual = reference.Attention(*forward(tik, execute, problem, *arrays, mask=mask))
    exact, low = (of(attention, *arrays, mask=mask) for of in (reference.truth, reference.baseline))
    assert [str(error) for error in reference.compare(actual, exact, low) if not error.ok] == []


@pytest.mark.parametrize("causal", (False, True))
def test_sinks_of_any_size(tik, execute, causal):
    sinks = np.array([-3e4, -90, -20, 0, 12, 90, 3e4, 3e38], np.float32)
    attention = AttentionProblem(1, 8, 20, 40, 16, sinks=True, rules=AttentionRules(causal=causal))
    arrays = _arrays(host.describe(attention), sigma=3.0)
    output, logsumexp = forward(tik, execute, host.describe(attention, cores=1), *arrays, sinks=sinks)
    exact, low = (of(attention, *arrays, sinks=sinks) for of in (reference.truth, reference.baseline))
    errors = reference.compare(reference.Attention(output, logsumexp), exact, low)
    assert [str(error) for error in errors if not error.ok] == []


def test_more_items_than_a_chunk_of_the_work_table(tik, execute):
    problem = KernelProblem(5, 14, 16, 16, 16, cores=1)
    arrays = _arrays(problem)
    _check(problem, arrays, *forward(tik, execute, problem, *arrays), 3.0)


def test_fewer_items_than_cores(tik, execute):
    problem = KernelProblem(1, 1, 20, 40, 32, cores=32)
    arrays = _arrays(problem)
    assert build(problem, tik).cores == 1
    _check(problem, arrays, *forward(tik, execute, problem, *arrays), 3.0)


def test_few_heads_are_spread_over_more_cores_with_the_same_bits(tik, execute):
    few, many = (KernelProblem(1, 1, 400, 400, 32, cores=cores) for cores in (4, 2))
    kernels = [build(problem, tik) for problem in (few, many)]
    assert [kernel.plan.row_blocks for kernel in kernels] == [1, 2]
    assert [kernel.cores for kernel in kernels] == [4, 2]
    arrays = _arrays(few)
    for a, b in zip(*(forward(tik, execute, problem, *arrays) for problem in (few, many))):
        assert np.array_equal(a, b)


@pytest.mark.slow
def test_past_64k_keys_with_strides_beyond_the_field(tik, execute):
    problem = make_kernel_problem(1, 1, 16, 66000, 48, cores=1)
    arrays = _arrays(problem)
    _check(problem, arrays, *forward(tik, execute, problem, *arrays), 3.0)


@pytest.mark.slow
def test_computed_alibi_is_precise_at_64k(tik, execute):
    length = 65536
    attention = AttentionProblem(
        1,
        1,
        16,
        length,
        32,
        training=True,
        rules=AttentionRules(causal=True, causal_alignment="bottom_right", alibi=True),
    )
    problem = host.describe(attention, cores=1)
    arrays = _arrays(problem)
    exact = reference.truth(attention, *arrays)
    output, logsumexp = forward(tik, execute, problem, *arrays)
    assert np.abs(output - exact.output).max() < 2e-3
    assert np.abs(logsumexp - exact.logsumexp).max() < 1e-3
