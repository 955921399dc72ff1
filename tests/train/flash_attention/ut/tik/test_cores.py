"""Plan for the chips with 30 and with 32 cores: all of the work, evenly, and the same bits."""

from __future__ import annotations

import dataclasses
from collections import Counter

import numpy as np
import pytest
from flash_attention.kernels.tik import hardware
from flash_attention.kernels.tik.backward import schedule as backward
from flash_attention.kernels.tik.forward import schedule as forward
from flash_attention.kernels.tik.problem import CAPACITY

from tests.train.flash_attention.support.calls import make_kernel_problem
from tests.train.flash_attention.ut.tik.support.passes import both_passes, random_arrays, random_data
from tests.train.flash_attention.ut.tik.support.passes import forward as run_forward
from tests.train.flash_attention.ut.tik.support.programs import build_backward, build_forward


def _first_query(row: np.void) -> int:
    """Return the first query of a work item. Its longer row block comes first if it is causal."""
    return min(block["start"] for block in row["row_blocks"] if block["first"] <= block["last"])


@pytest.mark.spread(2)
@pytest.mark.parametrize("cores", (30, 32))
@pytest.mark.parametrize("causal", (False, True))
@pytest.mark.parametrize("head_dim", (64, 128, 256))
def test_all_work_is_done_and_evenly(cores: int, causal: bool, head_dim: int) -> None:
    problem = make_kernel_problem(2, 16, 4096, 4096, head_dim, causal=causal, cores=cores)
    plan, split = forward.choose(problem).plan, forward.choose(problem).split
    assert split.cores == cores
    assert max(split.units) < 1.07 * sum(split.units) / cores
    rows = plan.rows * plan.row_blocks
    rows_of = (row for share in split.table for row in share if row["end"])
    items = Counter((row["head"], _first_query(row)) for row in rows_of)
    assert set(items) == {(head, first) for head in range(32) for first in range(0, 4096, rows)}
    assert set(items.values()) == {1}

    chosen = backward.choose(problem)
    steps = chosen.split.table[chosen.split.table["count"] > 0]
    tiles = -(-4096 // chosen.plan.keys)
    done = Counter((row["kv_head"], row["tile"]) for row in steps)
    assert set(done) == {(head, tile) for head in range(32) for tile in range(tiles)}
    assert set(done.values()) == {1}
    assert chosen.split.cores <= cores
    assert max(chosen.split.units) < 1.2 * sum(chosen.split.units) / cores


def test_the_same_bits_on_30_and_on_32_cores(tik, execute) -> None:
    results = []
    for cores in (30, 32):
        problem = make_kernel_problem(1, 33, 40, 40, 16, causal=True, cores=cores)
        operator = build_backward(problem, tik)
        assert {kernel.cores for kernel in operator.kernels[:2]} == {cores}
        results.append(both_passes(tik, execute, problem, random_data(problem))[0])
    for name, array in results[0].items():
        np.testing.assert_array_equal(array, results[1][name], err_msg=name)


def test_the_same_bits_where_items_are_taken_apart(tik, execute) -> None:
    """Two cores share three items of two row blocks: the last item becomes two."""
    results = []
    for cores in (1, 2):
        problem = make_kernel_problem(1, 3, 250, 250, 16, cores=cores, tiling="pair128")
        items = [row for share in forward.choose(problem).split.table for row in share if row["end"]]
        assert len(items) == (3 if cores == 1 else 4)
        results.append(run_forward(tik, execute, problem, *random_arrays(problem)))
    for alone, shared in zip(*results):
        np.testing.assert_array_equal(alone, shared)


@pytest.mark.parametrize(("heads", "cores", "slots"), ((1, 10, 10), (3, 2, 2)))
def test_slots_of_a_head_add_up(tik, execute, heads: int, cores: int, slots: int) -> None:
    """There are more slots than the last pass loads at a time, or heads that only some cores share."""
    problem = make_kernel_problem(1, heads, 310, 310, 16, cores=cores, tiling="rows16keys32")
    whole = make_kernel_problem(1, heads, 310, 310, 16, cores=1)
    output, logsumexp = run_forward(tik, execute, whole, *random_arrays(problem))
    data = {**random_data(problem), "output": output, "logsumexp": logsumexp}
    results = []
    for one in (dataclasses.replace(problem, cores=1), problem):
        assert backward.choose(one).split.slots == (1 if one.cores == 1 else slots)
        results.append(both_passes(tik, execute, one, data)[0])
    alone, shared = results
    for name in ("d_key", "d_value"):
        np.testing.assert_array_equal(alone[name], shared[name], err_msg=name)
    np.testing.assert_allclose(alone["d_query"], shared["d_query"].astype(np.float32), rtol=2e-3, atol=1e-5)


def test_plans_fit_smaller_memories(tik, execute) -> None:
    """Smaller memories have other tilings, but the same attention."""
    results = []
    for smaller in ({}, {"UB": 160 * 1024}, {"L1": 256 * 1024}, {"L0C": 128 * 1024}):
        memories = {**CAPACITY, **smaller}
        problem = make_kernel_problem(1, 1, 150, 150, 128, cores=1, memories=tuple(memories.values()))
        operator = build_backward(problem, tik)
        used = [kernel.memory() for kernel in (build_forward(problem, tik), *operator.kernels)]
        assert all(taken <= there <= memories[name] for one in used for name, (taken, there) in one.items())
        results.append((used, both_passes(tik, execute, problem, random_data(problem))[0]))
    (usual, right), *others = results
    for used, found in others:
        assert used != usual
        for name, array in right.items():
            np.testing.assert_allclose(array.astype(np.float32), found[name], atol=4e-3, err_msg=name)


def test_plans_that_fit_no_memories_are_refused() -> None:
    problem = make_kernel_problem(1, 1, 40, 40, 128, memories=(65536, *list(CAPACITY.values())[1:]))
    with pytest.raises(ValueError, match="no strategy fits this call: .*UB [0-9]+ of 65536 bytes"):
        forward.choose(problem)
    with pytest.raises(ValueError, match="memories: UB: got 300000"):
        make_kernel_problem(1, 1, 40, 40, 128, memories=(300000, *list(CAPACITY.values())[1:]))


def test_a_chip_with_smaller_memories_than_planned_is_refused() -> None:
    problem = make_kernel_problem(1, 1, 40, 40, 16)
    sizes = {f"{memory}_SIZE": size for memory, size in problem.capacity.items()}
    hardware.check_chip(lambda name: str(sizes[name]), problem)
    with pytest.raises(ValueError, match="UB: the chip has 131072 bytes per core, the kernels are planned for 253952"):
        hardware.check_chip(lambda name: 131072 if name == "UB_SIZE" else sizes[name], problem)
