"""Packed sequences on the kernels: every sequence as a call of its own, whatever lies beside it."""

import numpy as np
import pytest
from flash_attention.call import AttentionRules
from flash_attention.kernels.tik.backward import preprocess, row_block
from flash_attention.kernels.tik.problem import KernelProblem

from tests.train.flash_attention.ut.tik.support.programs import forward
from tests.train.flash_attention.ut.tik.support.varlen import Packing

QUERIES, KEYS = (5, 0, 130, 33, 1, 7, 270), (5, 4, 130, 40, 0, 300, 260)
PREFIX = (3, 0, 100, 10, 0, 200, 260)
BOTTOM = {"causal_alignment": "bottom_right"}
# The first is one of every day.
CASES = {
    "causal": {"causal": True, "heads": 4, "kv_heads": 2, "head_dim": 64, "room": 9, "logsumexp_gradient": True},
    "full": {},
    "bottom_right": {"causal": True, **BOTTOM, "value_dim": 48},
    "window": {"window_left": 20, "window_right": 3, **BOTTOM},
    "window-left": {"window_left": 150, "causal": True},
    "window-right": {"window_right": 60},
    "window-wide": {"window_left": 140, "window_right": 130},
    "window-own-key": {"window_left": 0, "window_right": 0},
    "alibi": {"alibi": True, **BOTTOM, "logsumexp_gradient": True},
    "alibi-causal": {"causal": True, "alibi": True},
    "alibi-window": {"alibi": True, "window_left": 50, "window_right": 200},
    "prefix-sinks": {"causal": True, "prefix": PREFIX, "sinks": True},
    "softcap": {"softcap": 2.0, "causal": True, "alibi": True},
    "softcap-bottom_right": {"softcap": 30.0, "causal": True, **BOTTOM},
    "dropout": {"dropout_rate": 0.2, "causal": True, **BOTTOM},
    "dropout-window": {"dropout_rate": 0.5, "window_left": 60},
    "one-head": {"heads": 1, "causal": True, "head_dim": 128},
    "wide": {"head_dim": 256, "causal": True, **BOTTOM},
    "narrow": {"head_dim": 16, "alibi": True, "dropout_rate": 0.1, "sinks": True},
}


def results_of(tik, execute, packing: Packing, **request) -> dict:
    """Return all results of a packing, checked."""
    found = packing.run(tik, execute, packing.request(**request))
    packing.check(found)
    return found


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (name != "causal"), id=name) for name, case in CASES.items()]
)
def test_every_sequence_is_a_call_of_its_own(tik, execute, case):
    results_of(tik, execute, Packing(QUERIES, KEYS, **case))


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=[pytest.mark.slow] * (name != "causal"), id=name) for name, case in CASES.items()]
)
def test_one_core_for_a_head_rounds_the_gradients_of_its_queries(tik, execute, case):
    packing = Packing(QUERIES, KEYS, **case)
    results_of(tik, execute, packing, cores=1)
    # A window to the left leaves no order of the key tiles in which one is known to come last.
    writes_d_query = [tensor.name for tensor in packing.kernels[2].outputs][-1] == "d_query"
    assert writes_d_query == (len(packing.kernels) == 3)
    # For a soft cap memory may be too small.
    assert writes_d_query == (case.get("window_left", -1) < 0) or case.get("softcap")


def test_places_of_blocks_come_one_at_a_time_where_they_are_many(tik, execute, monkeypatch):
    packing = Packing(QUERIES, KEYS, heads=3, head_dim=32, causal=True)
    expected = packing.run(tik, execute, packing.request(cores=2))
    assert [part.copies for part in packing.kernels[1].buffers if part.name == "block"] == [1]
    monkeypatch.setattr(row_block, "MOST_BLOCKS", 1)
    found = results_of(tik, execute, packing, cores=2)
    assert [part.copies for part in packing.kernels[1].buffers if part.name == "block"] == [preprocess.COPIES]
    for name, result in found.items():
        np.testing.assert_array_equal(result, expected[name], err_msg=name)


@pytest.mark.slow
def test_float16_scores(tik, execute):
    """Long sequences, whose scores leave the Cube as float16."""
    packing = Packing((600, 40, 520), heads=1, head_dim=64, causal=True)
    results_of(tik, execute, packing, cores=2)
    assert packing.kernels[0].plan.half_scores


@pytest.mark.slow
def test_kernels_serve_any_lengths(tik, execute):
    """What is recorded knows the tokens and the room for sequences, not the lengths."""
    lengths = [(1,) * 9 + (131,), (140,), (0, 0, 64, 0, 76), (16, 48, 32, 44), (127, 13)]
    requests, programs = set(), {}

    def run(instance, feed, outputs):
        programs.setdefault(tuple(outputs), instance)
        return execute(programs[tuple(outputs)], feed, outputs)

    for queries in lengths:
        packing = Packing(queries, room=10, causal=True)
        request = packing.request()
        requests.add(request.to_text())
        packing.check(packing.run(tik, run, request))
    assert len(requests) == 1 and len(programs) == 4


@pytest.mark.parametrize("spoiled", (2, pytest.param(3, marks=pytest.mark.slow)))
def test_a_sequence_of_nan_spoils_no_other(tik, execute_nan, spoiled):
    packing = Packing((5, 20, 60, 33), (5, 30, 70, 40), causal=True, heads=1)
    expected = packing.run(tik, execute_nan, packing.request(cores=1))
    (_, rows, columns) = list(packing.sequences())[spoiled]
    for name, part in (("query", rows), ("key", columns), ("value", columns), ("d_output", rows)):
        packing.data[name][part] = np.nan
    found = packing.run(tik, execute_nan, packing.request(cores=1))
    for name, result in found.items():
        part = columns if name in ("d_key", "d_value") else rows
        axis = 1 if name == "logsumexp" else 0
        others = np.delete(np.arange(result.shape[axis]), np.arange(result.shape[axis])[part])
        np.testing.assert_array_equal(result.take(others, axis), expected[name].take(others, axis), err_msg=name)
        assert not np.array_equal(result, expected[name])


@pytest.mark.slow
@pytest.mark.parametrize("rules", ({}, {"causal": True}), ids=("full", "causal"))
def test_whole_tiles_have_the_bits_of_a_call(tik, execute, rules):
    """The same tiles in the same order: sequences of whole tiles on one core."""
    length, heads, dim = 512, 1, 80
    packing = Packing((length, length), heads=heads, kv_heads=heads, head_dim=dim, **rules)
    found = packing.run(tik, execute, packing.request(cores=1, tiling="pair128"), ("forward",))
    problem = KernelProblem(1, heads, length, length, dim, rules=AttentionRules(**rules), cores=1, tiling="pair128")
    for _, rows, _ in packing.sequences():
        arrays = (packing.data[name][rows].swapaxes(0, 1)[None] for name in ("query", "key", "value"))
        output, logsumexp = forward(tik, execute, problem, *arrays)
        np.testing.assert_array_equal(found["output"][rows], output[0].swapaxes(0, 1))
        np.testing.assert_array_equal(found["logsumexp"][:, rows], logsumexp[0])


@pytest.mark.slow
def test_two_runs_have_the_same_bits(tik, execute):
    packing = Packing(QUERIES, KEYS, causal=True, heads=1)
    request = packing.request(cores=5)
    one, other = (packing.run(tik, execute, request) for _ in range(2))
    for name, result in one.items():
        np.testing.assert_array_equal(result, other[name], err_msg=name)


@pytest.mark.slow
def test_padding_of_the_matrices_is_zero(tik, execute):
    packing = Packing((20, 17), causal=True)
    stored = {}

    def run(instance, feed, outputs):
        results = execute(instance, feed, outputs)
        stored.update(results)
        return results

    packing.run(tik, run, packing.request())
    for name in ("output", "d_query", "d_key", "d_value"):
        assert not stored[name].reshape(len(stored[name]), -1, 16)[:, 37:].any(), name
