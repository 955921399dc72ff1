"""Segment ids and prefixes: states of tiles, exact products, and what they cost the kernels."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from flash_attention.kernels.tik import describe, host_integers, operators
from flash_attention.kernels.tik.common import segments
from flash_attention.kernels.tik.forward.score_bound import CEILING
from flash_attention.measuring import tik_kernels

from tests.train.flash_attention.support import cases
from tests.train.flash_attention.support.calls import changed, make_kernel_problem
from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.ut.tik.test_backward import run_case

HOSTILE = np.array(
    [0, 1, 15, 16, 255, 65471, 65472, 65535, 65536, 2**24, 2**24 + 1, 2**31 - 2, 2**31 - 1, -1, -(2**31)]
)


class DividesInFloats(np.ndarray):
    """Integers of a device that divides through float32."""

    def __floordiv__(self, other):
        return np.floor(np.asarray(self, np.float32) / np.float32(other)).astype(np.int32).view(DividesInFloats)


def listed(problem, tile=128, heads=1, ids=True, prefixed=False):
    """Return the problem with lists of tiles by segment ids, prefixes or both."""
    call = problem.call
    shape = call.batch, heads, -(-call.seq_q // tile), -(-call.seq_k // tile)
    result = changed(problem, segments=ids, block_mask_shape=shape, block_mask_tile=tile)
    return dataclasses.replace(result, prefixed=prefixed)


def seen(queries, keys):
    """Return where ids are alike, (batch, queries, keys)."""
    return (queries[:, :, None] == keys[:, None]) & (queries[:, :, None] >= 0)


def ids_of(kind, tokens, random):
    """Return int32 ids (2, tokens)."""
    documents = np.sort(random.integers(-1, 4, (2, tokens)), 1)
    return {
        "documents": documents,
        "shuffled": random.permuted(documents, axis=1),
        "hostile": np.sort(random.choice(HOSTILE, (2, tokens)), 1),
        "near": np.repeat(2**30 + np.arange(4), -(-tokens // 4))[None, :tokens] + np.zeros((2, 1)),
    }[kind].astype(np.int32)


@pytest.mark.parametrize("divides", (np.ndarray, DividesInFloats))
@pytest.mark.parametrize("kind", ("documents", "shuffled", "hostile", "near"))
@pytest.mark.parametrize("tile", (64, 128, 256))
def test_states_of_tiles(tile, kind, divides):
    random = np.random.default_rng(0)
    problem = listed(make_kernel_problem(2, 2, 700, 1000, 64), tile)
    queries, keys = ids_of(kind, 700, random), ids_of(kind, 1000, random)
    made = segments.numbers(host_integers, problem)(queries.view(divides), keys.view(divides), None)
    alike = np.pad(seen(queries, keys), ((0, 0), (0, -700 % tile), (0, -1000 % tile)), "edge")
    tiles = alike.reshape(2, alike.shape[1] // tile, tile, alike.shape[2] // tile, tile)
    some, every = tiles.any((2, 4))[:, None], tiles.all((2, 4))[:, None]
    np.testing.assert_array_equal(made[0] == segments.WHOLE, every)
    assert (made[0][some] > 0).all()
    if kind == "documents":
        assert (made[0][~some] == 0).all()


@pytest.mark.parametrize("divides", (np.ndarray, DividesInFloats))
@pytest.mark.parametrize("head_dim", (64, 100, 128))
@pytest.mark.parametrize("stage", ("forward", "grad"))
def test_products_are_zero_for_equal_ids_and_large_for_others(stage, head_dim, divides):
    ids = HOSTILE.astype(np.int32)[None]
    problem = listed(make_kernel_problem(1, 1, ids.size, ids.size, head_dim))
    made = segments.numbers(host_integers, problem)(ids.view(divides), ids.view(divides), None)[1:]
    factors = segments.factors(problem, stage)
    with np.errstate(over="raise"):
        queries, keys = (np.asarray(one).astype(np.float16) * factor for one, factor in zip(made, factors))
    assert queries.shape == segments.shapes(problem)["segment_queries"]
    np.testing.assert_array_equal(queries, np.asarray(made[0]).astype(np.float64) * factors[0])
    rows, columns = (one.transpose(0, 2, 1).reshape(-1, 16)[: ids.size].astype(np.float32) for one in (queries, keys))
    sums = rows @ columns.T
    np.testing.assert_array_equal(sums, rows.astype(np.float64) @ columns.T.astype(np.float64))
    alike, others = seen(ids, ids)[0], sums[~seen(ids, ids)[0]]
    assert (sums[alike] == 0).all()
    if stage == "grad":
        assert others.max() <= -(2**22)
    else:  # the exponential of this, and of the largest exponent more, is 0 in float16
        assert others.max() * problem.post_scale <= -32 and others.min() * max(problem.post_scale, 1) > -65504
        assert np.exp(np.float16(CEILING - 32)) == 0


@pytest.mark.parametrize("offset", (-100, 0, 300))
@pytest.mark.parametrize("head_dim", (64, 128))
def test_positions_are_negative_for_hidden_keys_of_a_prefix_tile(head_dim, offset):
    ends = np.array([0, 1, 127, 128, 129, 255, 256, 340, 399, 400, 401, 2**31 - 1, -1, -(2**31)], np.int32)
    plain = make_kernel_problem(len(ends), 1, 400 - offset, 400, head_dim, causal_alignment="bottom_right")
    problem = listed(plain, ids=False, prefixed=True)
    assert problem.call.offset == offset
    states, *numbers = segments.numbers(host_integers, problem)(ends, None)
    clipped = np.clip(ends, 0, 400)
    np.testing.assert_array_equal(states[:, 0, 0, 0], 1 + clipped)
    rows, columns = (
        (one.astype(np.float16) * factor).transpose(0, 2, 1).reshape(len(ends), -1, 16).astype(np.float64)
        for one, factor in zip(numbers, segments.factors(problem, "forward"))
    )
    sums = rows @ columns.swapaxes(1, 2)
    assert np.abs(sums).max() * max(problem.post_scale, 1) < 65504 and sums[sums < 0].max() * problem.post_scale <= -32
    row, key = np.arange(rows.shape[1])[:, None], np.arange(columns.shape[1])
    for end, found in zip(clipped, sums):
        visible = ((key <= row + offset) | (key < end)) & (row < 400 - offset) & (key < 400)
        inside = key // 128 == end // 128
        np.testing.assert_array_equal((found >= 0)[:, inside], visible[:, inside])


@pytest.mark.parametrize("divides", (np.ndarray, DividesInFloats))
@pytest.mark.parametrize("head_dim", (64, 128))
@pytest.mark.parametrize("stage", ("forward", "grad"))
def test_no_position_makes_up_for_other_ids(stage, head_dim, divides):
    """Sums of ids beside a prefix are exact, in float16's range, and negative for hidden keys alone."""
    random, ends = np.random.default_rng(3), np.array([0, 1, 127, 130, 300, 700, 701, 900, 2**31 - 1], np.int32)
    plain = make_kernel_problem(len(ends), 1, 700, 900, head_dim, causal_alignment="bottom_right")
    problem = listed(plain, prefixed=True)
    queries, keys = (random.choice(HOSTILE, (len(ends), tokens)).astype(np.int32) for tokens in (700, 900))
    queries[:, -300:], keys[:, -500:] = 65535, 65535
    states, *numbers = segments.numbers(host_integers, problem)(ends, queries.view(divides), keys.view(divides), None)
    with np.errstate(over="raise"):
        given = [
            np.asarray(one).astype(np.float16) * one_of
            for one, one_of in zip(numbers, segments.factors(problem, stage))
        ]
    np.testing.assert_array_equal(
        given[0], np.asarray(numbers[0]).astype(np.float64) * segments.factors(problem, stage)[0]
    )
    rows, columns = (one.transpose(0, 2, 1).reshape(len(ends), -1, 16).astype(np.float32) for one in given)
    rows, columns = rows[:, :700], columns[:, :900]
    sums = rows @ columns.swapaxes(1, 2)
    np.testing.assert_array_equal(sums, rows.astype(np.float64) @ columns.swapaxes(1, 2).astype(np.float64))
    assert np.abs(sums).max() < 65504
    end, row, key = np.minimum(ends, 900)[:, None, None], np.arange(700)[:, None] + 200, np.arange(900)
    alike = seen(queries, keys)
    assert (sums[~alike] < 0).all()
    visible = alike & ((key <= row) | (key < end))
    inside = (key // 128 == end // 128) | (key < end)
    np.testing.assert_array_equal((sums >= 0) & inside, visible & inside)
    assert (sums[visible] >= 0).all()
    ids, *_ = segments.numbers(host_integers, listed(plain))(queries, keys, None)
    np.testing.assert_array_equal(np.abs(states), (1 + end[..., None]) * (ids > 0))
    np.testing.assert_array_equal(states < 0, ids == segments.PARTIAL)


def test_one_kernel_serves_all_ids(tik, execute):
    programs: dict = {}

    def run(instance, feed, outputs):
        return execute(programs.setdefault(tuple(outputs), instance), feed, outputs)

    # The last ids of many rows are in no sample, so that these rows are computed once more.
    for kind, draw in (("documents", 0), ("shuffled", 1), ("padding", 2)):
        case = Case(segments=kind, batch=2, heads=2, kv_heads=1, seq_q=300, seq_k=300, mask="causal", draw=draw)
        assert describe.lists_tiles(case.call) and not describe.makes_mask(case.call)
        cases.check(case, run_case(tik, run, case))


_GROUPS = {"heads": 4, "kv_heads": 2}


@pytest.mark.spread
@pytest.mark.parametrize("head_dim", (64, 128))
@pytest.mark.parametrize("kind", ("documents", "shuffled", "padding", "none", "beside documents", "beside padding"))
@pytest.mark.parametrize("softcap", (0.0, 3.0))
@pytest.mark.parametrize(
    "fields",
    (
        {"seq_q": 257, "seq_k": 300, "mask": "causal", "alignment": "bottom_right"},
        {"seq_q": 300, "seq_k": 140, "dropout": 0.2, "alibi": "bias", **_GROUPS},
        {"seq_q": 260, "seq_k": 260, "window": (30, 5), "alibi": "computed", "sinks": True},
        {"seq_q": 140, "seq_k": 523, "block_mask": "heads", "alibi": "given", **_GROUPS},
        {"seq_q": 3, "seq_k": 300, "mask": "padding", "sinks": True, **_GROUPS},
        {"seq_q": 200, "seq_k": 200, "scale": 100.0},
    ),
)
def test_rules_beside_ids_and_prefixes(tik, execute, fields, softcap, kind, head_dim):
    *beside, ids = kind.split()
    rules = {"segments": ids}
    if beside or ids == "none":
        rules.update(prefix=True, mask="causal", window=(-1, -1))
    sizes = {"batch": 2, "heads": 1, "kv_heads": 1, "head_dim": head_dim}
    case = Case(softcap=softcap, **{**sizes, **fields, **rules})
    assert describe.lists_tiles(case.call)
    cases.check(case, run_case(tik, execute, case))


@pytest.mark.parametrize("fields", ({}, {"segments": "documents"}, {"segments": "documents", "prefix": True}))
def test_great_scales_with_float16_scores(tik, execute, fields):
    case = Case(heads=1, kv_heads=1, head_dim=64, seq_q=140, seq_k=520, scale=1000.0, mask="causal", **fields)
    cases.check(case, run_case(tik, execute, case))


def test_where_lists_find_no_place_a_mask_hides():
    assert describe.kernel_problem(Case(segments="documents", dtype="float16").call).mask == "none"
    assert describe.kernel_problem(Case(prefix=True, mask="causal").call).mask == "none"
    assert not segments.addressable(listed(make_kernel_problem(2**15, 1, 8192, 16, 64)))


@pytest.mark.parametrize("stage", ("forward", "backward"))
@pytest.mark.parametrize(
    ("softcap", "whole", "ids"), ((0.0, 0.9, 1.15), pytest.param(50.0, 1.0, 1.27, marks=pytest.mark.slow))
)
def test_what_ids_cost(on_emulator, stage, softcap, whole, ids):
    """Tiles of other documents cost nothing, no tile costs much more than with an explicit mask, most cost less."""
    plain = tik_kernels.problem_of(2048, 64, softcap=softcap)
    problem, masked = listed(plain), tik_kernels.problem_of(2048, 64, softcap=softcap, mask="per_score")
    kernel = tik_kernels.build(problem, stage)

    def cycles(ids):
        states, *_ = segments.numbers(host_integers, problem)(ids, ids, None)
        work = operators.list_table(host_integers, problem, tik_kernels.OPERATORS[stage][0])(states)
        return tik_kernels.simulate(kernel, given={"work": work}).cycles

    tokens = np.arange(2048, dtype=np.int32)[None]
    one, halves, divided = cycles(tokens * 0), cycles(tokens // 1024), cycles(tokens % 2)
    explicit = tik_kernels.simulate(tik_kernels.build(masked, stage)).cycles
    assert one < whole * explicit and halves < 0.62 * one and one < divided < ids * explicit


@pytest.mark.parametrize("stage", ("forward", "backward"))
def test_what_prefixes_cost(on_emulator, stage):
    """A prefix costs little more than the tiles that it shows, and far less than an explicit mask."""
    plain = tik_kernels.problem_of(2048, 64)
    problem = listed(plain, ids=False, prefixed=True)
    kernel = tik_kernels.build(problem, stage)

    def cycles(end):
        states, *_ = segments.numbers(host_integers, problem)(np.array([end], np.int32), None)
        work = operators.list_table(host_integers, problem, tik_kernels.OPERATORS[stage][0])(states)
        return tik_kernels.simulate(kernel, given={"work": work}).cycles

    explicit = tik_kernels.simulate(tik_kernels.build(tik_kernels.problem_of(2048, 64, mask="per_score"), stage)).cycles
    nothing, some, every = cycles(0), cycles(700), cycles(2048)
    assert nothing < some < 1.12 * nothing and some < every < 0.9 * explicit
