"""The work table says what visibility says, and spreads the work evenly."""

import numpy as np
import pytest
from flash_attention.kernels.tik import KernelProblem
from flash_attention.kernels.tik.common.work_split import clip, deal, neighbours
from flash_attention.kernels.tik.forward import schedule as forward_work
from flash_attention.kernels.tik.forward.items import EDGE
from flash_attention.kernels.tik.forward.tiling import STRATEGIES, candidates
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.train.flash_attention.support.calls import ALIBI_FIELDS, make_kernel_problem


def _planned(*sizes, **fields) -> tuple:
    """Return a problem, the plan that comes first for it, and its work."""
    problem = make_kernel_problem(*sizes, **fields)
    plan = candidates(problem)[0]
    return problem, plan, forward_work.split(problem, plan)


def _row_blocks(work):
    """Yield the (core, item row, words) of every active row block."""
    for core in range(work.cores):
        for row in work.table[core]:
            for words in row["row_blocks"]:
                if words["rows"]:
                    yield core, row, words


def _number(words, tile: int) -> int:
    """Return the number of a key tile's mask in a work item, 0 for none."""
    if tile - words["first"] < EDGE:
        return words["left"][tile - words["first"]]
    if words["last"] - tile < EDGE:
        return words["right"][words["last"] - tile]
    return 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_table_and_tiles_give_the_visibility_of_the_problem(data):
    draw = data.draw
    problem = make_kernel_problem(
        1,
        1,
        draw(st.integers(1, 700)),
        draw(st.integers(1, 700)),
        32,
        causal=draw(st.booleans()),
        causal_alignment=draw(st.sampled_from(("top_left", "bottom_right"))),
        window_left=draw(st.integers(-1, 300)),
        window_right=draw(st.integers(-1, 300)),
        prev_blocks=draw(st.integers(0, 4)),
        next_blocks=draw(st.integers(0, 4)),
        tile=draw(st.sampled_from((64, 128))),
        cores=draw(st.integers(1, 5)),
        tiling=draw(st.sampled_from(sorted(STRATEGIES))),
    )
    check_visibility(problem, candidates(problem)[0])


def check_visibility(problem: KernelProblem, plan) -> None:
    """Check that the tiles of a table show the problem's band and no more."""
    call = problem.call
    work = forward_work.split(problem, plan)
    expected = call.band.dense()
    seen = np.zeros((call.seq_q, call.seq_k), bool)
    for _, _, words in _row_blocks(work):
        start = words["start"]
        rows = min(plan.rows, call.seq_q - start)
        assert words["first"] <= words["last"]  # or nobody writes the zeros of fully masked rows
        for tile in range(words["first"], words["last"] + 1):
            number = _number(words, tile)
            keys = min(plan.keys, call.seq_k - tile * plan.keys)
            block = np.ones((plan.rows, plan.keys), bool)
            if number:
                columns = work.tiles[number - 1 :][: plan.columns]
                block = columns.transpose(1, 0, 2).reshape(plan.rows, plan.keys) > 0
            assert not block[:, keys:].any()  # keys that do not exist are hidden
            there = expected[start : start + rows, tile * plan.keys : tile * plan.keys + keys]
            assert not (number and keys == plan.keys and there.all())
            assert there.any() or not expected[start : start + rows].any()
            seen[start : start + rows, tile * plan.keys : tile * plan.keys + keys] |= block[:rows, :keys]
    assert np.array_equal(seen, expected)


@pytest.mark.parametrize(
    "fields",
    (
        {"seq_q": 260, "seq_k": 1400, "causal": True, "causal_alignment": "bottom_right"},
        {"seq_q": 700, "seq_k": 128, "window_left": 10},
        {"seq_q": 1100, "seq_k": 1100, "tile": 510, "prev_blocks": 0, "next_blocks": 0},
    ),
    ids=str,
)
def test_visibility_at_either_end_of_a_range(fields):
    """Ranges have two partial tiles behind four whole tiles, or rows that see nothing, or eight partial tiles."""
    problem = make_kernel_problem(1, 1, head_dim=32, **fields)
    check_visibility(problem, candidates(problem)[0])


@pytest.mark.parametrize(("heads", "seq"), ((32, 4096), (8, 4096), (1, 8192), (3, 2048)))
def test_causal_work_is_balanced(heads, seq):
    _, _, work = _planned(1, heads, seq, seq, 128, causal=True)
    longest = max(block["last"] - block["first"] + 1 for _, _, block in _row_blocks(work))
    mean = sum(work.units) / 32
    # No core exceeds its share by more than the longest item.
    assert max(work.units) <= max(1.06 * mean, 2 * longest)


def test_tiles_out_of_sight_are_never_visited():
    _, _, work = _planned(1, 1, 4096, 4096, 64, window_left=200, window_right=0)
    assert all(words["last"] - words["first"] + 1 <= 4 for _, _, words in _row_blocks(work))
    assert sum(work.units) < 32 * 4


@pytest.mark.parametrize("fields", ALIBI_FIELDS)
def test_distances_count_tokens_after_the_query(fields):
    problem, plan, work = _planned(1, 1, head_dim=32, alibi=True, **fields)
    for _, _, words in _row_blocks(work):
        # The table has room for two numbers of tiles.
        assert words["cross"] <= words["after"] <= words["cross"] + 2
        assert words["first"] <= words["cross"] and words["after"] <= words["last"] + 1
        for tile in range(words["first"], words["last"] + 1):
            keys = tile * plan.keys + np.arange(plan.keys)
            after = keys[None, :] - (words["start"] + problem.call.offset + np.arange(plan.rows))[:, None]
            if words["cross"] <= tile < words["after"]:
                number = words["distance"][tile - words["cross"]]
                tile_values = work.distances[number - 1].transpose(1, 0, 2).reshape(plan.rows, plan.keys)
                assert np.array_equal(tile_values, np.maximum(after, 0))
                assert (after < 0).any() and (after > 0).any()  # others need no tile
            else:
                assert (after <= 0).all() if tile < words["cross"] else (after >= 0).all()


def test_no_distances_where_nothing_comes_after_its_query():
    _, _, work = _planned(1, 1, 300, 300, 32, alibi=True, causal=True)
    assert not len(work.distances)
    for _, _, words in _row_blocks(work):
        assert min(words["cross"], words["after"]) > words["last"]


SAMPLED = (
    {"seq_q": 400, "seq_k": 1000},
    {"seq_q": 700, "seq_k": 90},
    {"seq_q": 1200, "seq_k": 1200, "causal": True},
    {"seq_q": 500, "seq_k": 1300, "window_left": 300, "window_right": 40, "causal_alignment": "bottom_right"},
    {"seq_q": 1000, "seq_k": 1000, "prev_blocks": 1, "next_blocks": 1, "tile": 100},
    {"seq_q": 1000, "seq_k": 1000, "causal": True, "alibi": True},
    {"seq_q": 1000, "seq_k": 400, "window_left": 30, "window_right": 30},
    {"seq_q": 40, "seq_k": 16},
    {"seq_q": 40, "seq_k": 32},
    {"seq_q": 600, "seq_k": 600, "window_left": 150, "window_right": 0},
    {"seq_q": 300, "seq_k": 1188, "window_left": 10, "window_right": 0, "causal_alignment": "bottom_right"},
    {
        "seq_q": 300,
        "seq_k": 1188,
        "window_left": 10,
        "window_right": 200,
        "causal_alignment": "bottom_right",
        "alibi": True,
    },
)


@pytest.mark.parametrize("fields", SAMPLED)
def test_first_references_come_from_keys_that_are_seen(fields):
    """The sample has keys that all rows see, spread over these keys; else keys of the tile that most rows see."""
    problem, plan, work = _planned(1, 1, head_dim=32, **fields)
    groups, visible = plan.keys // 16, problem.call.band.dense()
    for _, _, words in _row_blocks(work):
        start, stride = words["sample"], words["stride"]
        first, last = words["first"], words["last"]
        rows = visible[words["start"] :][: plan.rows]
        common = rows.all(axis=0)
        whole = [group for group in range(problem.call.seq_k // 16) if common[group * 16 : group * 16 + 16].all()]
        assert words["strided"] == (problem.call.bias == "none" and len(whole) >= groups > 1)
        if words["strided"]:
            sampled = start + stride * np.arange(groups)
            assert start == whole[0] and set(sampled) <= set(whole) and sampled[-1] + groups > whole[-1] + 1
        elif rows.any():
            tiles = [rows[:, tile * plan.keys : (tile + 1) * plan.keys] for tile in range(last + 1)]
            seen = [(tile.any(axis=1).sum(), tile.sum()) for tile in tiles]
            assert first <= start <= last and words["sample_tile"] == _number(words, start)
            here = (words["start"] + problem.call.offset) // plan.keys
            near = [min(max(tile, first), last) for tile in (here, here + 1)]
            assert seen[start] == (max(seen) if problem.call.bias == "none" else max(seen[tile] for tile in near))


def test_samples_are_no_further_apart_than_an_instruction_reaches():
    problem = make_kernel_problem(1, 1, 16, 1 << 20, 32)
    (words,) = (words for _, _, words in _row_blocks(forward_work.split(problem, candidates(problem)[0])))
    assert words["strided"] == 1 and words["stride"] == 4000


@pytest.mark.parametrize(
    ("tile", "fields"),
    ((1300, {"prev_blocks": 0}), (1300, {"next_blocks": 0}), (520, {"prev_blocks": 0, "next_blocks": 0})),
    ids=str,
)
def test_range_with_more_partial_tiles_than_the_table_holds_is_refused(tile, fields):
    """If a block ends inside a row block, the ranges that the rows see differ by a whole block at either end."""
    wide = make_kernel_problem(1, 1, 2 * tile, 2 * tile, 32, tile=tile, **fields)
    start = tile // 128 * 128
    with pytest.raises(
        ValueError, match=f"next_blocks, tile: partly visible key tiles of rows {start}[.][.]{start + 127}"
    ):
        forward_work.split(wide, candidates(wide)[0])


def test_cores_without_work_are_not_used():
    """If the best tiles leave cores idle, the same tiles in smaller items are chosen if they are faster."""
    few = forward_work.choose(make_kernel_problem(1, 1, 4096, 4096, 128, causal=True))
    assert (few.plan.row_blocks, few.split.cores) == (1, 32)
    many = forward_work.choose(make_kernel_problem(1, 32, 4096, 4096, 128, causal=True))
    assert (many.plan.row_blocks, many.split.cores) == (2, 32)
    assert (few.plan.rows, few.plan.keys) == (many.plan.rows, many.plan.keys)
    # 34 row blocks, one by one, take two of 32 cores as long as their pairs take 17.
    assert forward_work.choose(make_kernel_problem(1, 1, 34 * 128, 512, 128)).plan.row_blocks == 2


def test_plans_that_do_not_fit_are_passed_over(monkeypatch):
    problem = make_kernel_problem(1, 1, 300, 300, 128)
    refused = {candidates(problem)[0].rows * candidates(problem)[0].row_blocks}
    monkeypatch.setattr(forward_work, "buffers", lambda problem, plan, *_: [plan.rows * plan.row_blocks])
    monkeypatch.setattr(forward_work, "excess", lambda parts, _: "too much" if set(parts) & refused else "")
    assert forward_work.choose(problem).plan == candidates(problem)[1]
    monkeypatch.setattr(forward_work, "excess", lambda *_: "too much")
    with pytest.raises(
        ValueError, match="^tiling: no strategy fits this call: pair128 needs too much; single128 needs"
    ):
        forward_work.choose(make_kernel_problem(1, 1, 301, 300, 128))


def test_largest_costs_are_dealt_first():
    assert deal([1, 5, 2, 4, 3], 2) == ([[1, 2, 0], [3, 4]], [8, 7])
    assert deal([1, 1], 5) == ([[0], [1]], [1, 1])


def test_bounds_of_keys_out_of_a_tile_are_all_the_same():
    """Tiles are told apart by their bounds: equal ones share a number."""
    assert clip((10, 90), 64, 64) == (0, 26) and clip((70, 300), 64, 64) == (6, 64)
    assert {clip(bounds, 64, 64) for bounds in ((0, 64), (70, 70), (128, 300), (200, 90))} == {(0, 0)}


def test_items_of_equal_cost_go_to_hands_that_have_their_neighbours():
    shares = neighbours([[0, 2, 5], [1, 3], [4]], [7, 7, 7, 7, 7, 3])
    assert shares == [[0, 1, 5], [2, 3], [4]]


@pytest.mark.parametrize(("heads", "cores", "most"), ((32, 32, 1), (33, 32, 3), (32, 30, 3), (8, 32, 1)))
def test_a_core_that_measures_keys_has_few_heads(heads, cores, most):
    # At head_dim 64 the lengths of all keys of a head are asked for by every core that begins with it.
    work = forward_work.split(*_pairs(heads, 4096, 64, cores))
    of_core = [{row["head"] for row in share if row["end"]} for share in work.table]
    assert max(map(len, of_core)) <= most


@pytest.mark.parametrize(("heads", "seq", "cores", "units"), ((8, 1024, 30, 24), (33, 512, 32, 20), (32, 512, 32, 16)))
def test_items_that_are_left_over_are_taken_apart(heads, seq, cores, units):
    # Pairs of row blocks of 8 or 4 tiles each; with whole ones the busiest core would have 32 and 24 of them.
    work = forward_work.split(*_pairs(heads, seq, 128, cores))
    assert max(work.units) == units and sum(work.units) == heads * (seq // 128) ** 2
    blocks = [(row["head"], words["start"]) for _, row, words in _row_blocks(work)]
    assert len(blocks) == len(set(blocks)) == heads * seq // 128


def _pairs(heads, seq, head_dim, cores):
    """Return a problem and the plan with two row blocks per item."""
    problem = make_kernel_problem(1, heads, seq, seq, head_dim, cores=cores, tiling="pair128")
    return problem, forward_work.choose(problem).plan
