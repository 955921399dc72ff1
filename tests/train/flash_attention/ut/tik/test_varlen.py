"""Packed sequences on the kernels: every sequence as a call of its own, whatever lies beside it."""

from dataclasses import replace

import numpy as np
import pytest
from flash_attention import reference
from flash_attention.call import ALL_BLOCKS
from flash_attention.kernels.tik.backward import preprocess, row_block

from tests.train.flash_attention.support import varlen
from tests.train.flash_attention.support.calls import make_kernel_problem
from tests.train.flash_attention.support.cases import assert_same
from tests.train.flash_attention.support.varlen import KEYS, QUERIES, VarlenCase
from tests.train.flash_attention.ut.tik.support.passes import forward
from tests.train.flash_attention.ut.tik.support.varlen import Packing


def taken() -> list:
    """Return the cases that kernels take, with widths that are multiples of 16."""
    cases = []
    for case in varlen.CASES:
        if case.blocks == (ALL_BLOCKS, ALL_BLOCKS) and case.alibi in ("none", "computed") and not case.given_bits:
            widths = {name: -(-getattr(case, name) // 16) * 16 for name in ("head_dim", "value_dim")}
            cases.append(replace(case, dtype="float16", **widths))
    first, *others = dict.fromkeys(cases)
    return [
        pytest.param(first, id=str(first)),
        *(pytest.param(case, id=str(case), marks=pytest.mark.slow) for case in others),
    ]


def packing_of(case: VarlenCase) -> Packing:
    """Return a packing with room for more sequences and a gradient of the logsumexp."""
    return Packing(case, room=9 * (case.heads == 4), return_lse=case.heads == 4 or case.alibi == "computed")


def results_of(tik, execute, packing: Packing, **problem) -> reference.Attention:
    """Return all results of a packing, checked."""
    found = packing.run(tik, execute, packing.problem(**problem))
    packing.check(found)
    return found


@pytest.mark.parametrize("case", taken())
def test_every_sequence_is_a_call_of_its_own(tik, execute, case):
    results_of(tik, execute, packing_of(case))


@pytest.mark.parametrize("case", taken())
def test_one_core_for_a_head_rounds_the_gradients_of_its_queries(tik, execute, case):
    packing = packing_of(case)
    results_of(tik, execute, packing, cores=1)
    # With a window to the left, no order of the key tiles has a known last tile.
    writes_d_query = [tensor.name for tensor in packing.kernels[2].outputs][-1] == "d_query"
    assert writes_d_query == (len(packing.kernels) == 3)
    # For a soft cap memory may be too small.
    assert writes_d_query == (case.window[0] < 0) or case.softcap


def causal(queries=QUERIES, keys=None, **fields) -> Packing:
    """Return a packing of causal sequences in float16."""
    return Packing(VarlenCase(queries=queries, keys=keys or queries, mask="causal", **{"kv_heads": 1, **fields}))


def test_places_of_blocks_come_one_at_a_time_where_they_are_many(tik, execute, monkeypatch):
    packing = causal(QUERIES, KEYS, heads=3)
    expected = packing.run(tik, execute, packing.problem(cores=2))
    assert [part.copies for part in packing.kernels[1].buffers if part.name == "block"] == [1]
    monkeypatch.setattr(row_block, "MOST_BLOCKS", 1)
    found = results_of(tik, execute, packing, cores=2)
    assert [part.copies for part in packing.kernels[1].buffers if part.name == "block"] == [preprocess.COPIES]
    assert_same(found, expected)


@pytest.mark.slow
def test_float16_scores(tik, execute):
    """Scores of long sequences leave the Cube as float16."""
    packing = causal((600, 40, 520), heads=1, head_dim=64)
    results_of(tik, execute, packing, cores=2)
    assert packing.kernels[0].plan.half_scores


@pytest.mark.slow
def test_kernels_serve_any_lengths(tik, execute):
    """The recorded kernels depend on the tokens and the room for sequences, not on the lengths."""
    lengths = [(1,) * 9 + (131,), (140,), (0, 0, 64, 0, 76), (16, 48, 32, 44), (127, 13)]
    problems, programs = set(), {}

    def run(instance, feed, outputs):
        programs.setdefault(tuple(outputs), instance)
        return execute(programs[tuple(outputs)], feed, outputs)

    for queries in lengths:
        packing = Packing(causal(queries).case, room=10)
        problem = packing.problem()
        problems.add(problem.to_text())
        packing.check(packing.run(tik, run, problem))
    assert len(problems) == 1 and len(programs) == 4


@pytest.mark.parametrize("spoiled", (2, pytest.param(3, marks=pytest.mark.slow)))
def test_a_sequence_of_nan_spoils_no_other(tik, execute_nan, spoiled):
    packing = causal((5, 20, 60, 33), (5, 30, 70, 40), heads=1)
    expected = packing.run(tik, execute_nan, packing.problem(cores=1))
    (_, rows, columns) = list(packing.case.sequences())[spoiled]
    for name, part in (("query", rows), ("key", columns), ("value", columns), ("d_output", rows)):
        packing.data[name][part] = np.nan
    found = packing.run(tik, execute_nan, packing.problem(cores=1))
    for name, result in found.named().items():
        part, right = columns if name in varlen.OF_KEYS else rows, getattr(expected, name)
        others = np.delete(np.arange(result.shape[2]), np.arange(result.shape[2])[part])
        np.testing.assert_array_equal(result.take(others, 2), right.take(others, 2), err_msg=name)
        assert not np.array_equal(result, right)


@pytest.mark.slow
@pytest.mark.parametrize("mask", ("none", "causal"))
def test_whole_tiles_have_the_bits_of_a_call(tik, execute, mask):
    """Sequences of whole tiles on one core have the same tiles in the same order as a call."""
    length, heads, dim, rules = 512, 1, 80, {"causal": mask == "causal"}
    lengths = (length, length)
    packing = Packing(VarlenCase(queries=lengths, keys=lengths, heads=heads, kv_heads=heads, head_dim=dim, mask=mask))
    found = packing.run(tik, execute, packing.problem(cores=1, tiling="pair128"), ("forward",))
    problem = make_kernel_problem(1, heads, length, length, dim, **rules, cores=1, tiling="pair128")
    for _, rows, _ in packing.case.sequences():
        arrays = (packing.data[name][rows].swapaxes(0, 1)[None] for name in ("query", "key", "value"))
        output, logsumexp = forward(tik, execute, problem, *arrays)
        np.testing.assert_array_equal(found.output[:, :, rows], output)
        np.testing.assert_array_equal(found.logsumexp[:, :, rows], logsumexp)


@pytest.mark.slow
def test_two_runs_have_the_same_bits(tik, execute):
    packing = causal(QUERIES, KEYS, heads=1)
    problem = packing.problem(cores=5)
    assert_same(*(packing.run(tik, execute, problem) for _ in range(2)))


@pytest.mark.slow
def test_padding_of_the_matrices_is_zero(tik, execute):
    packing = causal((20, 17))
    stored = {}

    def run(instance, feed, outputs):
        results = execute(instance, feed, outputs)
        stored.update(results)
        return results

    packing.run(tik, run, packing.problem())
    for name in ("output", "d_query", "d_key", "d_value"):
        assert not stored[name].reshape(len(stored[name]), -1, 16)[:, 37:].any(), name
