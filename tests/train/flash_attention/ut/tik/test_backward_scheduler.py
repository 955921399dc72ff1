"""Work of the backward operator: every visible pair once, one owner per accumulator, balanced cores."""

import numpy as np
import pytest
from flash_attention.kernels.tik import KernelProblem
from flash_attention.kernels.tik.backward import scheduler
from flash_attention.kernels.tik.backward.scheduler import (
    COUNT,
    EDGE,
    FIRST,
    HEAD,
    KV_HEAD,
    LEFT,
    MIDDLE,
    RIGHT,
    SLOT,
    TILE,
)
from flash_attention.kernels.tik.backward.tiling import plans

PROBLEMS = (
    {"seq_q": 700, "seq_k": 700, "causal": True},
    {"seq_q": 300, "seq_k": 1500, "causal": True, "causal_alignment": "bottom_right", "kv_heads": 2},
    {"seq_q": 900, "seq_k": 500, "window_left": 100, "window_right": 30},
    {"seq_q": 900, "seq_k": 901, "prev_blocks": 1, "next_blocks": 0, "block": 100},
    {"seq_q": 70, "seq_k": 1200, "window_left": 10, "window_right": 10},
    {"seq_q": 2000, "seq_k": 170},
    {"seq_q": 1200, "seq_k": 1200, "causal": True, "prev_blocks": 0, "block": 1000},
)


def _seen(problem: KernelProblem, plan, split, row) -> np.ndarray:
    """Scores of an item by the table: bool (queries, keys) of the whole problem."""
    rows, keys = plan.rows, plan.keys
    wide = np.zeros((-(-problem.seq_q // rows) * rows, -(-problem.seq_k // keys) * keys), bool)
    for step in range(row[COUNT]):
        number = row[MIDDLE]
        if step < EDGE:
            number = row[LEFT + step]
        elif row[COUNT] - 1 - step < EDGE:
            number = row[RIGHT + row[COUNT] - 1 - step]
        tile = np.ones((rows, keys), bool)
        if number:
            tile = split.tiles[number - 1].transpose(1, 0, 2).reshape(rows, keys) > 0
        at, to = (row[FIRST] + step) * rows, row[TILE] * keys
        wide[at : at + rows, to : to + keys] = tile
    assert not wide[problem.seq_q :].any() and not wide[:, problem.seq_k :].any()
    return wide[: problem.seq_q, : problem.seq_k]


@pytest.mark.parametrize("variant", scheduler.VARIANTS)
@pytest.mark.parametrize("fields", PROBLEMS)
def test_every_visible_pair_once(fields, variant):
    problem = KernelProblem(2, 4, head_dim=64, cores=6, **fields)
    plan = plans(problem, False)[0]
    split = scheduler.split(problem, plan, variant)
    total = np.zeros((2 * problem.kv_heads, problem.seq_q, problem.seq_k), int)
    owners = {}
    for core, items in enumerate(split.table):
        for row in items[items[:, COUNT] > 0]:
            total[row[KV_HEAD]] += _seen(problem, plan, split, row)
            owners.setdefault((row[SLOT], row[HEAD]), set()).add(core)
            assert row[SLOT] < split.slots
    assert np.array_equal(total, np.broadcast_to(problem.band.dense(), total.shape))
    if variant != "atomic":
        assert all(len(cores) == 1 for cores in owners.values())


@pytest.mark.parametrize(("variant", "heads"), (("deterministic", 32), ("split", 1), ("split", 40), ("atomic", 3)))
def test_causal_work_is_balanced(variant, heads):
    problem = KernelProblem(1, heads, 12288, 12288, 64, causal=True)
    split = scheduler.split(problem, plans(problem, False)[0], variant)
    assert split.cores == 32
    assert max(split.units) <= 1.1 * np.mean(split.units)


def test_accumulators_stay_below_their_limit():
    problem = KernelProblem(1, 16, 65536, 65536, 128, kv_heads=1)
    plan = plans(problem, False)[0]
    split = scheduler.split(problem, plan, "split")
    size = 4 * np.prod(scheduler.accumulator_shape(problem, plan, split.slots))
    assert size <= max(scheduler.ACCUMULATOR_LIMIT, size // split.slots)


def test_heads_that_share_a_bias_share_a_core():
    problem = KernelProblem(2, 4, 500, 500, 64, alibi="bias", bias_heads=4, cores=8)
    plan = plans(problem, True)[0]
    split = scheduler.split(problem, plan, "split")
    owners = {}
    for core, items in enumerate(split.table):
        for row in items[items[:, COUNT] > 0]:
            owners.setdefault((row[HEAD] % 4, row[TILE]), set()).add(core)
    assert all(len(cores) == 1 for cores in owners.values())


def test_range_with_more_partial_tiles_than_the_table_holds_is_refused():
    # Queries of a block of 1000 stand at keys that begin in the middle of a tile.
    problem = KernelProblem(1, 1, 8192, 8192, 32, causal=True, prev_blocks=1, block=1000, tiling="rows16keys32")
    with pytest.raises(ValueError, match="prev_blocks, next_blocks, block"):
        scheduler.split(problem, plans(problem, False)[0], "deterministic")
