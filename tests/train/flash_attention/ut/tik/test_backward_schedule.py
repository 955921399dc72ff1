"""Work of the backward operator: every visible pair once, one owner per accumulator, balanced cores."""

import numpy as np
import pytest
from flash_attention.kernels.tik import KernelProblem
from flash_attention.kernels.tik.backward import data_tables
from flash_attention.kernels.tik.backward import schedule as backward_work
from flash_attention.kernels.tik.backward.items import DISTANCES, EDGE
from flash_attention.kernels.tik.backward.tiling import plans

from tests.train.flash_attention.support.calls import ALIBI_FIELDS, make_kernel_problem

PROBLEMS = (
    {"seq_q": 700, "seq_k": 700, "causal": True},
    {"seq_q": 300, "seq_k": 1500, "causal": True, "causal_alignment": "bottom_right", "kv_heads": 2},
    {"seq_q": 900, "seq_k": 500, "window_left": 100, "window_right": 30},
    {"seq_q": 900, "seq_k": 901, "prev_blocks": 1, "next_blocks": 0, "tile": 100},
    {"seq_q": 70, "seq_k": 1200, "window_left": 10, "window_right": 10},
    {"seq_q": 2000, "seq_k": 170},
    {"seq_q": 641, "seq_k": 100},
    {"seq_q": 1200, "seq_k": 1200, "causal": True, "prev_blocks": 0, "tile": 1000},
)


def _planned(*sizes, **fields) -> tuple:
    """Return a problem, the plan that comes first for it, and its work."""
    problem = make_kernel_problem(*sizes, **fields)
    plan = plans(problem)[0]
    return problem, plan, backward_work.split(problem, plan)


def _rows(split):
    """Return the (core, row) of every item."""
    return ((core, row) for core, items in enumerate(split.table) for row in items[items["count"] > 0])


def _seen(problem: KernelProblem, plan, split, row) -> np.ndarray:
    """Return the scores that the table gives an item: bool (queries, keys) of the whole problem."""
    call = problem.call
    rows, keys = plan.rows, plan.keys
    wide = np.zeros((-(-call.seq_q // rows) * rows, -(-call.seq_k // keys) * keys), bool)
    for step in range(row["count"]):
        number = row["middle"]
        if step < EDGE:
            number = row["left"][step]
        elif row["count"] - 1 - step < EDGE:
            number = row["right"][row["count"] - 1 - step]
        tile = np.ones((rows, keys), bool)
        if number:
            tile = split.tiles[number - 1].transpose(1, 0, 2).reshape(rows, keys) == 0
        at, to = (row["first"] + step) * rows, row["tile"] * keys
        wide[at : at + rows, to : to + keys] = tile
    assert not wide[call.seq_q :].any() and not wide[:, call.seq_k :].any()
    return wide[: call.seq_q, : call.seq_k]


@pytest.mark.parametrize("fields", PROBLEMS)
def test_every_visible_pair_once(fields):
    problem, plan, split = _planned(2, 4, head_dim=64, cores=6, **fields)
    total = np.zeros((2 * problem.call.kv_heads, problem.call.seq_q, problem.call.seq_k), int)
    owners = {}
    for core, row in _rows(split):
        total[row["kv_head"]] += _seen(problem, plan, split, row)
        owners.setdefault((row["slot"], row["head"]), set()).add(core)
        assert row["slot"] < split.slots
    assert np.array_equal(total, np.broadcast_to(problem.call.band.dense(), total.shape))
    assert all(len(cores) == 1 for cores in owners.values())


@pytest.mark.parametrize("group", (1, 2))
@pytest.mark.parametrize("fields", PROBLEMS)
def test_every_query_tile_has_one_last_visitor(fields, group):
    problem, plan, split = _planned(2, 2, head_dim=64, cores=1, **{**fields, "kv_heads": 2 // group})
    tiles = -(-problem.call.seq_q // plan.rows)
    seen = problem.call.band.dense().any(1)
    # If the first or last rows see nothing, some tiles may have no visitor at all.
    assert split.writes_d_query or not all(
        seen[tile * plan.rows : (tile + 1) * plan.rows].any() for tile in range(tiles)
    )
    if not split.writes_d_query:
        assert not split.table["final_end"].any()
        return
    for items in split.table:
        visits, finals = {}, {}
        for number, row in enumerate(items[items["count"] > 0]):
            assert (
                row["final"] >= row["first"]
                and row["final_end"] <= row["first"] + row["count"]
                or row["final_end"] == 0
            )
            visits.update(((row["head"], tile), number) for tile in range(row["first"], row["first"] + row["count"]))
            finals.update(((row["head"], tile), number) for tile in range(row["final"], row["final_end"]))
        assert visits == finals
        assert len(visits) == tiles * len({head for head, _ in visits})


def test_several_cores_of_a_head_leave_its_sums_to_the_last_pass():
    for cores in (2, 6):
        problem = make_kernel_problem(1, 2, 1024, 1024, 64, cores=cores)
        assert backward_work.choose(problem).split.writes_d_query == (cores == 2)


@pytest.mark.parametrize("heads", (32, 1, 40, 3))
def test_causal_work_is_balanced(heads):
    problem, _, split = _planned(1, heads, 12288, 12288, 64, causal=True)
    assert max(split.units) <= 1.1 * sum(split.units) / problem.cores


@pytest.mark.parametrize(("heads", "cores", "limit"), ((33, 32, 1.2), (32, 30, 1.2), (5, 3, 1.1)))
@pytest.mark.parametrize("causal", (False, True))
def test_a_few_heads_too_many_are_shared_by_two_cores_each(heads, cores, limit, causal):
    # Tiles of 192 keys; with whole heads the busiest core would have twice its share, or nearly.
    problem = make_kernel_problem(1, heads, 2048, 2048, 128, causal=causal, cores=cores)
    split = backward_work.choose(problem).split
    assert split.slots == 2 and not split.writes_d_query
    assert max(split.units) < limit * sum(split.units) / cores
    items = np.concatenate([share[share["count"] > 0] for share in split.table])
    places = {(row["kv_head"], row["tile"]) for row in items}
    assert len(items) == len(places) == heads * 11
    owners = {}
    for core, row in _rows(split):
        owners.setdefault((row["head"], row["slot"]), set()).add(core)
    assert {len(cores) for cores in owners.values()} == {1}


def test_runs_are_as_even_as_neighbours_allow():
    assert backward_work._cuts([4, 3, 2, 1], 4) == [(0, 1), (1, 2), (2, 4)]
    hands = backward_work._runs([["a"], ["b"]], [3, 2, 1], 3)
    assert hands.span == 5
    assert hands.shares == [
        [(0, [("a", 0), ("a", 1)])],
        [(1, [("a", 2)]), (0, [("b", 0)])],
        [(1, [("b", 1), ("b", 2)])],
    ]
    assert backward_work._runs([["a"], ["b"]], [3, 2, 1], 2).span == 6


@pytest.mark.parametrize("head_dim", (64, 128, 256))
@pytest.mark.parametrize("causal", (False, True))
def test_few_heads_have_smaller_key_tiles(head_dim, causal):
    few, many = (
        backward_work.choose(make_kernel_problem(1, heads, 1024, 1024, head_dim, causal=causal)) for heads in (1, 32)
    )
    assert few.plan.keys < many.plan.keys
    # A name keeps its tiles.
    named = make_kernel_problem(1, 1, 1024, 1024, head_dim, causal=causal, tiling=many.plan.strategy)
    wide = backward_work.choose(named)
    assert wide.plan == many.plan
    assert max(few.split.units) * few.plan.area < 0.9 * max(wide.split.units) * wide.plan.area


def test_accumulators_stay_below_their_limit():
    problem = make_kernel_problem(1, 16, 65536, 65536, 128, kv_heads=1)
    plan = plans(problem)[0]
    split = backward_work.split(problem, plan)
    size = 4 * np.prod(backward_work.accumulator_shape(problem, plan, split.slots))
    assert size <= max(data_tables.ACCUMULATOR_LIMIT, size // split.slots)


def test_heads_that_share_a_bias_share_a_core():
    problem = make_kernel_problem(2, 4, 500, 500, 64, bias="per_score", bias_planes=(1, 4), cores=8, bias_grad=True)
    plan = plans(problem)[0]
    split = backward_work.split(problem, plan)
    owners = {}
    for core, row in _rows(split):
        owners.setdefault((row["head"] % 4, row["tile"]), set()).add(core)
    assert all(len(cores) == 1 for cores in owners.values())


def test_gradient_of_a_bias_per_score_leaves_the_float32_products_out():
    for wanted in (False, True):
        problem = make_kernel_problem(1, 1, 512, 512, 128, bias="per_score", bias_grad=wanted)
        assert plans(problem)[0].pipeline.single != wanted


def test_a_window_that_narrow_query_tiles_cannot_number_gets_another_strategy():
    problem = make_kernel_problem(1, 1, 2048, 2048, 208, window_left=200, cores=1)
    narrow = next(plan for plan in plans(problem) if plan.strategy == "rows16keys128")
    with pytest.raises(backward_work.PartialTilesError):
        backward_work.split(problem, narrow)
    assert backward_work.choose(problem).plan.strategy != narrow.strategy


# In turn: the keys of a block of 1000 queries begin in the middle of a tile; the middle tiles differ; a block ends
# before the last row with the same tile number.
@pytest.mark.parametrize(
    ("seq", "fields"),
    (
        (8192, {"causal": True, "prev_blocks": 1}),
        (4000, {"prev_blocks": 1}),
        (4000, {"next_blocks": 1}),
        (4000, {"prev_blocks": 1, "next_blocks": 1}),
        (18 * 64, {"tile": 10 * 64 - 1, "prev_blocks": 0, "next_blocks": 0, "tiling": "rows64keys192"}),
    ),
    ids=str,
)
def test_ranges_with_more_tiles_than_the_table_holds_are_refused(seq, fields):
    problem = make_kernel_problem(1, 1, seq, seq, 32, **{"tile": 1000, "tiling": "rows16keys32", **fields})
    with pytest.raises(ValueError, match="prev_blocks, next_blocks, tile"):
        backward_work.split(problem, plans(problem)[0])


# The first item of a head loads the tiles that are kept. None are kept if it leaves out the first or the last tile, or
# if the heads of a group take turns in a tile.
@pytest.mark.parametrize(
    ("fields", "kept"),
    (
        ({"seq_q": 140}, (0, 4)),
        ({"seq_q": 368, "causal": True, "causal_alignment": "bottom_right"}, (0, 0)),
        ({"seq_q": 128, "window_left": 193, "causal_alignment": "bottom_right"}, (0, 4)),
        ({"seq_q": 128, "window_left": 192, "causal_alignment": "bottom_right"}, (0, 0)),
        ({"seq_q": 140, "kv_heads": 1}, (0, 0)),
    ),
    ids=str,
)
def test_kept_tiles_are_those_that_every_first_item_of_a_head_loads(fields, kept):
    given = {"batch": 1, "heads": 2, "seq_k": 336, "head_dim": 256, "cores": 1, "tiling": "rows32keys112"}
    assert backward_work.choose(make_kernel_problem(**given, **fields)).split.kept == kept


# Query tiles of 16 that stand askew beside key tiles of 128 would need nine distances.
_ASKEW = {"seq_q": 300, "seq_k": 232, "head_dim": 256, "softcap": 30.0, "causal_alignment": "bottom_right"}


@pytest.mark.parametrize("fields", (*ALIBI_FIELDS, _ASKEW), ids=str)
def test_distances_count_tokens_after_the_query(fields):
    problem = make_kernel_problem(1, 1, **{"head_dim": 32, "alibi": True, **fields})
    choice = backward_work.choose(problem)
    plan, split = choice.plan, choice.split
    for row in split.table[split.table["count"] > 0]:
        assert row["first"] <= row["cross"] <= row["before"] <= row["first"] + row["count"]
        assert row["before"] - row["cross"] <= DISTANCES
        for tile in range(row["first"], row["first"] + row["count"]):
            queries = tile * plan.rows + problem.call.offset + np.arange(plan.rows)
            after = row["tile"] * plan.keys + np.arange(plan.keys)[None, :] - queries[:, None]
            if row["cross"] <= tile < row["before"]:
                values = split.distances[row["distance"][tile - row["cross"]] - 1].transpose(1, 0, 2)
                np.testing.assert_array_equal(values.reshape(plan.rows, plan.keys), np.maximum(after, 0))
                assert (after < 0).any() and (after > 0).any()  # others need no tile
            else:
                assert (after >= 0).all() if tile < row["cross"] else (after <= 0).all()


def test_no_distances_where_nothing_comes_after_its_query():
    problem = make_kernel_problem(1, 1, 300, 300, 32, alibi=True, causal=True)
    assert not len(backward_work.split(problem, plans(problem)[0]).distances)


def test_the_gradient_of_a_bias_per_key_has_sums_of_its_own():
    biased = make_kernel_problem(1, 1, 100, 100, 32, bias="per_key", bias_grad=True)
    assert backward_work.choose(biased).plan.bias_kind == "per_key"
