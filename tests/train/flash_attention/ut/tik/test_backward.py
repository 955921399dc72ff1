"""Test the backward operator against float64 on shared cases and adverse data, in strict mode."""

import dataclasses
from dataclasses import replace

import numpy as np
import pytest
from flash_attention import reference
from flash_attention.call import AttentionRules, Call
from flash_attention.dropout import philox
from flash_attention.kernels.tik import describe, operators
from flash_attention.kernels.tik.backward import schedule
from flash_attention.kernels.tik.layout import from_nz
from flash_attention.kernels.tik.problem import KernelProblem, padded

from tests.train.flash_attention.support import case_list, cases
from tests.train.flash_attention.support.calls import changed, make_kernel_problem
from tests.train.flash_attention.ut.tik.support import stored_arrays
from tests.train.flash_attention.ut.tik.support.passes import both_passes, random_data
from tests.train.flash_attention.ut.tik.support.programs import build_backward
from tests.train.flash_attention.ut.tik.support.shared_cases import features_of, of_every_day, within_limits


def gradients(tik, execute, problem: KernelProblem, arrays: dict) -> dict:
    """Return the gradients of BNSD arrays, which have the output and logsumexp."""
    return both_passes(tik, execute, problem, arrays)[0]


def run_case(tik, execute, case, **chosen) -> reference.Attention:
    """Run forward and backward kernels of a case. `chosen` are fields of its problem."""
    data, problem = case.inputs(), replace(describe.kernel_problem(case.call), **{"cores": 4, **chosen})
    arrays = {name: getattr(data, name) for name in ("query", "key", "value", "d_output", "d_logsumexp")}
    return reference.Attention(**both_passes(tik, execute, problem, {**arrays, **features_of(case)})[0])


@pytest.mark.parametrize("case", of_every_day())
def test_representative_cases(tik, execute, case):
    cases.check(case, run_case(tik, execute, case))


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["none", "causal"])
@pytest.mark.parametrize("head_dim", [64, 128])
def test_normal_inputs(tik, execute, head_dim, mask):
    """Multiples of the baseline's errors without a floor, and errors three times as large are refused."""
    case = cases.Case(heads=1, kv_heads=1, seq_q=512, seq_k=512, head_dim=head_dim, mask=mask)
    exact, _ = case.expected()
    found, limits = run_case(tik, execute, case), reference.Limits(1.6, 1.2, 0.0, 0.0)
    cases.check(case, found, limits)
    for name in ("output", "d_query", "d_key", "d_value"):
        right = getattr(exact, name)
        spoilt = reference.round_to(right + 3 * (getattr(found, name) - right), "float16")
        with pytest.raises(AssertionError, match=f"{name}: max"):
            cases.check(case, replace(found, **{name: spoilt}), limits)


@pytest.mark.slow
@pytest.mark.parametrize("case", case_list.params(within_limits, dtype="float16"))
def test_all_cases(tik, execute, case):
    cases.check(case, run_case(tik, execute, case))


def _attention(problem: Call, seed: int = 0, sigma: float = 1.0, outliers: float = 1.0) -> tuple:
    """Return (inputs of the kernels, truth, truth's inputs). The forward results are exact, rounded as they are
    stored.
    """
    random = np.random.default_rng(seed)
    shapes = problem.shape_query(), problem.shape_key(), problem.shape_value(), problem.shape_output()
    query, key, value, d_output = (random.standard_normal(shape) for shape in shapes)
    query *= sigma
    for array in (query, key):
        array[..., :2] *= outliers
    given = [array.astype(np.float16) for array in (query, key, value)]
    d_output = d_output.astype(np.float16)
    exact = reference.truth(problem, *given, d_output=d_output)
    low = np.float32(np.finfo(np.float32).min)
    arrays = dict(zip(("query", "key", "value"), given))
    arrays["output"] = exact.output.astype(np.float16)
    arrays["logsumexp"] = np.maximum(exact.logsumexp, low).astype(np.float32)
    arrays["d_output"] = d_output
    return arrays, exact


def _check(attention: Call, arrays: dict, actual: dict) -> None:
    """Compare gradients with composed attention's."""
    tensors = [arrays[name] for name in ("query", "key", "value")]
    cases.check_call(
        attention, tensors, reference.Attention(arrays["output"], None, **actual), d_output=arrays["d_output"]
    )


def _check_strictly(attention: Call, arrays: dict, exact, actual: dict) -> None:
    """Compare with the strictest baseline: it rounds only the Cube's float16 operands, and the results."""
    query, key, value, output, d_output = (
        arrays[name][0, 0].astype(np.float64) for name in ("query", "key", "value", "output", "d_output")
    )
    weights = np.exp(query @ key.T * attention.scale - exact.logsumexp[0, 0][:, None])
    weights[~attention.band.dense()] = 0.0
    d_scores = weights * (d_output @ value.T - (d_output * output).sum(-1, keepdims=True))
    weights, d_scores = (array.astype(np.float16).astype(np.float64) for array in (weights, d_scores))
    low = {
        "d_query": d_scores @ key * attention.scale,
        "d_key": d_scores.T @ query * attention.scale,
        "d_value": weights.T @ d_output,
    }
    for name, array in low.items():
        baseline = np.abs(array.astype(np.float16) - getattr(exact, name)[0, 0])
        error = np.abs(actual[name][0, 0] - getattr(exact, name)[0, 0])
        for measure in (np.max, np.mean):
            got, allowed = measure(error), 2 * measure(baseline)
            assert got <= allowed, f"{name} {measure.__name__}: {got:.3g}, allowed {allowed:.3g}"


@pytest.mark.spread
@pytest.mark.parametrize("head_dim", (64, 128))
@pytest.mark.parametrize(("sigma", "outliers"), ((1.0, 1.0), (4.0, 1.0), (1.0, 6.0)))
def test_against_a_baseline_that_rounds_no_scores(tik, execute, head_dim, sigma, outliers):
    attention = Call(1, 1, 256, 640, head_dim, training=True)
    arrays, exact = _attention(attention, 3, sigma, outliers)
    _check_strictly(
        attention, arrays, exact, gradients(tik, execute, describe.kernel_problem(attention, cores=1), arrays)
    )


@pytest.mark.parametrize(("head_dim", "keys"), ((144, 192), (160, 176), (192, 144), (208, 128), (256, 112)))
def test_wide_heads_have_key_tiles_of_their_own(tik, execute, head_dim, keys):
    attention = Call(1, 1, 70, 2 * keys, head_dim, training=True, rules=AttentionRules(causal=True))
    problem = dataclasses.replace(describe.kernel_problem(attention, cores=1), tiling=f"rows32keys{keys}")
    assert schedule.choose(problem).plan.pipeline.tight
    arrays, exact = _attention(attention, 5)
    _check_strictly(attention, arrays, exact, gradients(tik, execute, problem, arrays))


# The operand of columns holds more of the narrower head_dim at a time than of the wider head_dim.
@pytest.mark.parametrize(("head_dim", "value_dim", "keys"), ((112, 80, 80), (80, 128, 80), (208, 128, 1056)))
def test_parts_of_the_narrower_head_dim_have_room(tik, execute, head_dim, value_dim, keys):
    attention = Call(1, 1, 40, keys, head_dim, value_dim=value_dim, training=True)
    problem = describe.kernel_problem(attention, cores=1)
    plan = schedule.choose(problem).plan
    wide, narrow = (plan.column_parts(plan.rows, dim)[0][1] for dim in sorted((head_dim, value_dim), reverse=True))
    assert narrow > wide
    arrays, exact = _attention(attention, 7)
    _check_strictly(attention, arrays, exact, gradients(tik, execute, problem, arrays))


# One core computes heads of several items each in turn. The last tile is padded, and some tiles have no slot.
@pytest.mark.parametrize(("causal", "seq_q", "loads"), ((False, 100, 3), (True, 232, 7), (False, 640, 16)))
def test_query_tiles_that_stay_on_chip_are_those_of_their_head(tik, execute, causal, seq_q, loads):
    rules = AttentionRules(causal=causal, causal_alignment="bottom_right")
    attention = Call(1, 2, seq_q, 230, 256, training=True, rules=rules)
    problem = dataclasses.replace(describe.kernel_problem(attention, cores=1), tiling="rows32keys112")
    first, end = schedule.choose(problem).split.kept
    assert (end - first, end) == (loads, seq_q // 32)
    arrays, exact = _attention(attention, 6)
    actual = gradients(tik, execute, problem, arrays)
    for name in ("d_query", "d_key", "d_value"):
        error = np.abs(actual[name] - getattr(exact, name)).max()
        assert error < 4e-3, name


# Items have one to four loop bodies. The gradients of one item leave in other bodies than the next item's keys come in.
@pytest.mark.parametrize("seq_q", (20, 130, 300, 420))
def test_items_of_any_length_hand_over_to_the_next(tik, execute, seq_q):
    attention = Call(1, 1, seq_q, 390, 128, training=True)
    problem = describe.kernel_problem(attention, cores=1)
    assert schedule.choose(problem).plan.pipeline.deferred
    arrays, exact = _attention(attention, 4)
    _check_strictly(attention, arrays, exact, gradients(tik, execute, problem, arrays))


def test_bits_do_not_depend_on_runs_cores_or_shards(tik, execute):
    # Four key tiles: sums of fewer are the same in any order. The float32 sums show what float16 results may hide.
    attention = Call(2, 4, 40, 400, 32, kv_heads=2, training=True)
    arrays, _ = _attention(attention)

    def run(problem: Call, cores: int, given: dict) -> dict:
        sums = []

        def recording(instance, feed: dict, outputs: list) -> dict:
            results = execute(instance, feed, outputs)
            if "d_query_sums" in results:
                sums.append(results["d_query_sums"].reshape(problem.batch, problem.heads, -1))
            return results

        result = gradients(tik, recording, describe.kernel_problem(problem, cores=cores), given)
        return {**result, "d_query_sums": sums[0]}

    # With more cores than heads, cores share the sums of a head. With whole heads the number of cores changes nothing.
    divided, whole = ([run(attention, cores, arrays) for cores in numbers] for numbers in ((9, 9), (4, 2)))
    shard = Call(1, 2, 40, 400, 32, kv_heads=1, training=True)
    heads = {name: slice(1, None) if name in ("key", "value") else slice(2, None) for name in arrays}
    part = run(shard, 1, {name: array[1:, heads[name]] for name, array in arrays.items()})
    for name, value in whole[0].items():
        assert np.array_equal(value, whole[1][name]) and np.array_equal(divided[0][name], divided[1][name])
        assert np.array_equal(value[1:, slice(2, None) if name.startswith("d_query") else slice(1, None)], part[name])


# Steps of float32 and float16 products, a padded last query tile, a group of heads, tokens in matrices.
@pytest.mark.parametrize(
    ("head_dim", "rules", "layout"),
    (
        (64, {"causal": True}, "BNSD"),
        (128, {"window_left": 90, "window_right": 40}, "BNSD"),
        (48, {"causal": True, "softcap": 20.0, "dropout_rate": 0.2}, "TH"),
    ),
)
def test_the_last_part_of_a_sum_is_added_and_rounded_as_by_the_last_pass(
    tik, execute, monkeypatch, head_dim, rules, layout
):
    attention = Call(1, 4, 406, 406, head_dim, kv_heads=2, training=True, rules=AttentionRules(**rules))
    arrays, _ = _attention(dataclasses.replace(attention, rules=AttentionRules()))
    problem = describe.kernel_problem(attention, layout, cores=1)
    bits = philox.keep_bits(attention, cases.SEED) if attention.rules.dropout_rate else None
    results = []
    for passes in (2, 3):  # of one core, which adds in the same order
        if passes == 3:
            monkeypatch.setattr(schedule, "_finals", lambda *_: None)
        schedule._choose.cache_clear()
        operator = build_backward(problem, tik)
        assert len(operator.kernels) == passes
        stored = operator.run(execute, **stored_arrays.backward_inputs(problem, **arrays, keep_bits=bits))
        results.append(stored_arrays.backward_outputs(problem, stored))
    schedule._choose.cache_clear()
    for name, array in results[0].items():
        assert np.array_equal(array, results[1][name]), name


@pytest.mark.spread
@pytest.mark.parametrize("head_dim", (40, 128))
@pytest.mark.parametrize("seq_k", (1, 17, 33))
def test_fewer_keys_than_a_row_block_has_rows(tik, execute, seq_k, head_dim):
    """The matrix that lowers hidden scores has as many columns as rows. It is larger than a tile of scores here."""
    attention = Call(1, 1, 128, seq_k, head_dim)
    arrays, _ = _attention(attention)
    problem = describe.kernel_problem(attention)
    actual = gradients(tik, execute, problem, arrays)
    _check(attention, arrays, actual)


def test_computed_alibi_on_either_side_of_the_queries(tik, execute):
    case = cases.Case(heads=3, kv_heads=3, seq_q=400, seq_k=420, alibi="computed")
    cases.check(case, run_case(tik, execute, case, cores=3))


def test_gradient_of_a_bias_per_key_under_a_soft_cap(tik, execute):
    case = cases.Case(batch=2, seq_q=70, seq_k=83, mask="causal", alibi="given", softcap=5.0)
    cases.check(case, run_case(tik, execute, case))


@pytest.mark.slow
@pytest.mark.parametrize("sizes", ((16, 66000), (66000, 16)), ids=("many_keys", "many_queries"))
def test_strides_beyond_the_field_of_an_instruction(tik, execute, sizes):
    attention = Call(1, 1, *sizes, 48, training=True)
    arrays, _ = _attention(attention)
    _check(attention, arrays, gradients(tik, execute, describe.kernel_problem(attention, cores=1), arrays))


def test_gradient_of_a_bias_that_all_heads_and_batches_share(tik, execute):
    attention = Call(2, 2, 70, 140, 16, training=True)
    arrays, _ = _attention(attention)
    bias = np.random.default_rng(1).standard_normal((1, 1, 70, 140)).astype(np.float16)
    problem = make_kernel_problem(2, 2, 70, 140, 16, bias="per_score", cores=3)
    query, key, value, d_output = (arrays[n].astype(np.float64) for n in ("query", "key", "value", "d_output"))
    scores = query @ key.swapaxes(-1, -2) * attention.scale + bias
    logsumexp = np.log(np.exp(scores).sum(-1))
    weights = np.exp(scores - logsumexp[..., None])
    output = weights @ value
    d_scores = weights * (d_output @ value.swapaxes(-1, -2) - (d_output * output).sum(-1, keepdims=True))
    arrays |= {"output": output.astype(np.float16), "logsumexp": logsumexp.astype(np.float32)}
    runs = [gradients(tik, execute, problem, {**arrays, "bias": bias})["d_bias"] for _ in range(2)]
    assert runs[0].dtype == np.float32 and np.array_equal(*runs)
    assert np.abs(runs[0] - d_scores.sum((0, 1), keepdims=True)).max() < 3e-3


def test_more_items_than_a_chunk_of_the_work_table(tik, execute):
    attention = Call(5, 14, 16, 16, 16, training=True)
    arrays, exact = _attention(attention)
    actual = gradients(tik, execute, describe.kernel_problem(attention, cores=1), arrays)
    for name, value in actual.items():
        assert np.abs(value - getattr(exact, name)).max() < 4e-3


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_computed_alibi_in_a_window_of_64k_tokens(tik, execute):
    """All tokens run. The last 600 see only the last 1000 tokens, so a small matrix gives their truth."""
    length, tail, window = 65536, 1000, 400
    attention = Call(1, 2, length, length, 32, rules=AttentionRules(causal=True, window_left=window, alibi=True))
    problem = describe.kernel_problem(attention, cores=2)
    arrays = random_data(problem)
    actual, _ = both_passes(tik, execute, problem, arrays)
    # A short sequence made of the end of the long sequence has the same distances, and so the same bias.
    short = dataclasses.replace(attention, seq_q=tail, seq_k=tail)
    *qkv, given = (array[:, :, -tail:] for array in arrays.values())
    exact, low = (run(short, *qkv, d_output=given) for run in (reference.truth, reference.baseline))
    results = reference.Attention(**actual).named()
    sure = slice(window - tail, None)
    for name, result in results.items():
        error, baseline = (
            np.abs(array[:, :, sure].astype(np.float64) - getattr(exact, name)[:, :, sure])
            for array in (result, getattr(low, name))
        )
        for measure in (np.max, np.mean):
            assert measure(error) <= 2 * measure(baseline) + (1e-6 if name == "logsumexp" else 0), name


@pytest.mark.parametrize(
    ("fields", "word"),
    (({"tiling": "pair128"}, "tiling"), ({"tiling": "rows64keys192", "head_dim": 256}, "tiling.*L0C")),
)
def test_arguments_that_are_not_allowed(tik, fields, word):
    problem = make_kernel_problem(**{"batch": 1, "heads": 1, "seq_q": 400, "seq_k": 400, "head_dim": 32, **fields})
    with pytest.raises(ValueError, match=word):
        build_backward(problem, tik)


def test_row_lanes_hold_d_and_logsumexp_in_float16_terms(tik, execute):
    """Rows of d_output that pass 1, 32 and 1024 are divided by 32 each time, and their probabilities gain it."""
    problem = make_kernel_problem(1, 2, 150, 32, 40, cores=2)
    random = np.random.default_rng(0)
    output, d_output = (random.standard_normal((1, 2, 150, 40)).astype(np.float16) for _ in range(2))
    logsumexp, d_logsumexp = (random.standard_normal((1, 2, 150)).astype(np.float32) * 300 for _ in range(2))
    d_output[:, :, :40] *= np.float16([0.01, 30, 1000, 8000])[np.arange(40) % 4, None]
    d_output[:, :, 40, 0], d_output[:, :, 41, 0] = 1.0, np.nextafter(np.float16(1024), np.float16(2048))
    d_output[:, :, 40:42, 1:] = 0.5
    kernel = operators.build("grad_rows", changed(problem, return_lse=True), tik, "rows", True)
    nothing = np.zeros((1, 2, 32, 40), np.float16)
    stored = stored_arrays.backward_inputs(problem, output, nothing, nothing, output, logsumexp, d_output, d_logsumexp)
    feed = kernel.feed(**{name: stored[name] for name in kernel.given})
    found = execute(kernel.tik, feed, ["row_lanes", "scaled_d_output"])
    sums = found["row_lanes"].astype(np.float64).sum(3).reshape(2, 1, 2, padded(150))[..., :150]
    largest = np.abs(d_output).max(-1)
    passed = sum((largest > limit).astype(int) for limit in (1, 32, 1024))
    assert passed.max() == 3 and passed.min() == 0
    scaled = from_nz(found["scaled_d_output"], 150, 40)
    np.testing.assert_array_equal(scaled, (d_output * np.float32(32.0) ** -passed[..., None]).astype(np.float16))
    delta = (output.astype(np.float64) * d_output).sum(-1) - d_logsumexp
    assert np.abs(sums[0] + delta * 32.0**-passed).max() < 2e-4
    assert np.abs(sums[1] * problem.post_scale + logsumexp - passed * np.log(32)).max() < 2e-4


def test_infinities_of_a_row_stay_in_its_row_terms(tik, execute):
    """The kernel takes the sum of a row from products of all rows of a fractal with each other."""
    problem = make_kernel_problem(1, 1, 40, 32, 32, cores=1)
    random = np.random.default_rng(0)
    output, d_output = (random.standard_normal((1, 1, 40, 32)).astype(np.float16) for _ in range(2))
    kernel = operators.build("grad_rows", problem, tik, "rows", True)
    nothing, logsumexp = np.zeros((1, 1, 32, 32), np.float16), np.zeros((1, 1, 40), np.float32)
    found = []
    for value in (0.0, np.inf):
        output[0, 0, 21], d_output[0, 0, 21] = value, 1.0
        stored = stored_arrays.backward_inputs(problem, output, nothing, nothing, output, logsumexp, d_output)
        feed = kernel.feed(**{name: stored[name] for name in kernel.given})
        found.append(execute(kernel.tik, feed, ["row_lanes"], None)["row_lanes"][0, 0].swapaxes(1, 2))
    others = np.arange(48) != 21
    clean, poisoned = (terms.reshape(48, 3) for terms in found)
    assert np.array_equal(clean[others], poisoned[others]) and poisoned[21, 0] == -65504
