"""Lists of tiles under a block mask: whom they name, on which cores, and that kernels visit nothing else."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
from flash_attention.call import Call
from flash_attention.call.block_mask import BlockMask, dense
from flash_attention.kernels.tik import KernelProblem, describe, host_integers, operators
from flash_attention.kernels.tik.backward import items as backward_items
from flash_attention.kernels.tik.backward import kept_sums
from flash_attention.kernels.tik.backward import schedule as backward
from flash_attention.kernels.tik.common import tile_lists
from flash_attention.kernels.tik.forward import items as forward_items
from flash_attention.kernels.tik.forward import schedule as forward
from flash_attention.measuring import tik_kernels

from tests.train.flash_attention.support import cases
from tests.train.flash_attention.support.calls import changed, make_kernel_problem
from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.ut.tik.support.passes import both_passes, random_data
from tests.train.flash_attention.ut.tik.test_backward import run_case


def problem_and_mask(tile=128, planes=(1, 1), density=0.3, seed=0, heads=2, batch=1, seq=(900, 700), **fields):
    """Return a problem with a block mask, and the mask."""
    seq_q, seq_k = seq
    shape = *planes, -(-seq_q // tile), -(-seq_k // tile)
    mask = (np.random.default_rng(seed).random(shape) < density).astype(np.uint8)
    tiles = {"block_mask_shape": shape, "block_mask_tile": tile}
    return make_kernel_problem(batch, heads, seq_q, seq_k, 64, **{"cores": 5, **tiles, **fields}), mask


KINDS = {
    "random": {},
    "causal": {"causal": True, "causal_alignment": "bottom_right"},
    "window": {"window_left": 200, "window_right": 40},
    "heads": {"planes": (1, 4), "heads": 4, "kv_heads": 2},
    "items": {"planes": (2, 1), "batch": 2},
    "all": {"planes": (2, 4), "batch": 2, "heads": 4, "kv_heads": 1, "causal": True},
    "by key": {"planes": (1, 4), "heads": 4, "kv_heads": 4, "bias": "per_key", "bias_grad": True},
}


def table_of(problem: KernelProblem, stage: str, mask: np.ndarray) -> np.ndarray:
    """Return the work table of a stage."""
    if problem.keeps_tiles:
        return operators.known_table(problem, stage, mask)
    return operators.list_table(host_integers, problem, stage)(mask)


def visits(problem: KernelProblem, mask: np.ndarray, stage: str) -> list[tuple]:
    """Return (core, head, row block, key tile) of the visits of a stage. Heads count over all items."""
    result: list[tuple] = []
    words = table_of(problem, stage, mask)
    schedule, rows = (forward, forward_items) if stage == "forward" else (backward, backward_items)
    plan, split = schedule.choose(problem).plan, schedule.choose(problem).split
    size, places = split.words.size, tile_lists.CODES * (2 * plan.ways if plan.ways > 1 else 1)
    table = words[:size].view(rows.LISTED_ITEM.dtype).reshape(split.table.shape)
    for core, items in enumerate(table):
        for item in items:
            if stage == "forward":
                for block in item["row_blocks"][: plan.row_blocks]:
                    entries = words[block["list"][0] :][: block["last"] + 1 - block["first"]]
                    assert not len(entries) or entries[0] // places == block["sample"]
                    assert (entries % tile_lists.CODES > 0).all()
                    for entry in entries:
                        result.append((core, item["head"], block["start"] // plan.rows, entry // places))
                continue
            own, tiles = backward_items.own_lists(problem), backward_items.query_tiles(problem, plan)
            named = places * kept_sums.codes(plan.sums)
            for entry in words[item["list"][0] :][: item["count"]]:
                member, tile = divmod(entry // named, tiles)
                for other in [member] if own else range(problem.call.group):
                    result.append((core, item["head"] + other, tile, item["tile"]))
            assert item["steps"] == item["count"] * (1 if own else problem.call.group)
    return result


@pytest.mark.spread
@pytest.mark.parametrize("tile", (64, 128, pytest.param(256, marks=pytest.mark.slow)))
@pytest.mark.parametrize(
    "kind", [kind if kind != "items" else pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS]
)
@pytest.mark.parametrize("stage", ("forward", "grad"))
@pytest.mark.parametrize("keeps", (False, True), ids=("data", "known"))
def test_every_visible_tile_is_visited_once_and_no_other(keeps, stage, kind, tile):
    for density in (0.05, 0.95):
        problem, mask = problem_and_mask(tile, density=density, **KINDS[kind])
        problem = replace(problem, keeps_tiles=keeps, scattered=keeps and tile_lists.scattered(mask, tile))
        plan = (forward if stage == "forward" else backward).choose(problem).plan
        shown = (dense(mask, tile, problem.call.seq_q, problem.call.seq_k) != 0) & problem.call.band.dense()
        shown = np.broadcast_to(shown, (problem.call.batch, problem.call.heads, *shown.shape[2:]))
        seen = {
            (batch * problem.call.heads + head, row // plan.rows, key // plan.keys)
            for batch, head, row, key in zip(*np.nonzero(shown))
        }
        found = [place for _, *place in visits(problem, mask, stage)]
        assert len(set(map(tuple, found))) == len(found)
        more = set(map(tuple, found)) - seen
        assert seen <= set(map(tuple, found))
        # A row block, or a key tile, that sees nothing visits one tile, in which everything is hidden.
        side = 1 if stage == "forward" else 2
        lonely = {(place[0], place[side]) for place in more}
        assert not lonely & {(place[0], place[side]) for place in seen}
        assert all(place[3 - side] == 0 for place in more)


def test_words_hold_the_numbers_of_very_many_tiles():
    for keeps in (False, True):
        problem, mask = problem_and_mask(seq=(256, 2**18 + 128), density=0.02, heads=1, cores=1)
        problem = replace(problem, keeps_tiles=keeps)
        plan = forward.choose(problem).plan
        assert plan.row_blocks == 2 and plan.ways > 2 * keeps
        found = {(block, tile) for _, _, block, tile in visits(problem, mask, "forward")}
        assert found == set(zip(*np.nonzero(mask[0, 0])))
    tiles = {"block_mask_shape": (1, 512, 1, 1), "block_mask_tile": 64}
    with pytest.raises(ValueError, match="512 heads in a list"):
        backward.choose(make_kernel_problem(1, 512, 64, 64, 16, kv_heads=1, **tiles))


@pytest.mark.parametrize(
    "case",
    (
        # The scores of some row blocks exceed their samples by far, so that these row blocks are computed once more.
        Case(block_mask="heads", tile=128, seq_q=640, seq_k=500, head_dim=128, values="outlier"),
        Case(block_mask="shared", heads=4, kv_heads=2, seq_q=400, seq_k=520, mask="causal", alibi="computed"),
        Case(block_mask="heads", seq_q=500, seq_k=450, head_dim=128, density=0.3, values="outlier"),
        # Sums of query gradients stay in L0C and in the Unified Buffer.
        Case(block_mask="heads", heads=2, seq_q=1400, seq_k=490, head_dim=128, density=0.3),
        Case(block_mask="heads", heads=4, kv_heads=2, seq_q=700, seq_k=490, head_dim=64, density=0.3, mask="causal"),
        # The last row block visits many tiles more than its partner.
        Case(block_mask="heads", tile=128, seq_q=512, seq_k=4352, head_dim=128, density=0.1, values="outlier"),
        pytest.param(
            Case(block_mask="heads", tile=128, heads=4, kv_heads=2, seq_q=300, seq_k=640, mask="padding", dropout=0.2),
            marks=pytest.mark.slow,
        ),
        pytest.param(
            Case(block_mask="all", batch=2, tile=256, seq_q=600, seq_k=600, alibi="bias"), marks=pytest.mark.slow
        ),
    ),
    ids=str,
)
def test_tiles_that_stay_on_chip_are_the_right_ones(tik, execute, case):
    chosen = {"cores": 1, "keeps_tiles": True, "scattered": case.tile == 64}
    problem = replace(describe.kernel_problem(case.call), **chosen)
    plan = backward.choose(problem).plan
    assert forward.choose(problem).plan.ways > 1 or plan.ways > 1
    assert case.tile > 64 or plan.ways == 1 or (plan.product_sums > 1 and plan.vector_sums > 1)
    cases.check(case, run_case(tik, execute, case, **chosen))


def test_key_tiles_are_narrow_if_visible_tiles_of_64_lie_apart():
    apart, pairs = np.tile(np.eye(2, dtype=np.uint8), (1, 1, 4, 4)), np.zeros((1, 1, 8, 9), np.uint8)
    pairs[..., :2] = pairs[..., 8:] = 1
    assert tile_lists.scattered(apart, 64) and not tile_lists.scattered(apart, 128)
    assert not tile_lists.scattered(pairs, 64) and not tile_lists.scattered(np.ones_like(pairs), 64)
    for mask, keys in ((BlockMask(apart[..., :7], 64), 64), (BlockMask(pairs, 64), 128)):
        named = {"block_mask_shape": mask.tiles.shape, "block_mask_tile": mask.tile, "block_mask_key": mask.key}
        call = Call(1, 2, 512, 64 * mask.tiles.shape[-1], 64, dtype="float16", **named)
        problem = describe.kernel_problem(call)
        assert problem.keeps_tiles and problem.scattered == (keys == 64)
        assert [schedule.choose(problem).plan.keys for schedule in (forward, backward)] == [keys, keys]


@pytest.mark.parametrize("stage", ("forward", "grad"))
def test_cores_share_visited_tiles_and_not_rows(stage):
    """Half of the rows see all tiles, the other half hardly any."""
    problem, mask = problem_and_mask(seq=(4096, 4096), density=0.05, heads=8, cores=8)
    mask[..., :16, :] = 1
    if stage == "grad":
        mask = np.ascontiguousarray(mask.swapaxes(2, 3))
    cores = [core for core, *_ in visits(problem, mask, stage)]
    counts = np.bincount(cores, minlength=8)
    assert counts.max() < 1.1 * counts.mean()


@pytest.mark.parametrize("alibi", ("none", pytest.param("given", marks=pytest.mark.slow)))
def test_another_mask_needs_no_other_kernel(tik, execute, alibi):
    programs = {}

    def run(instance, feed, outputs):
        return execute(programs.setdefault(tuple(outputs), instance), feed, outputs)

    for draw in (0, 1):
        sizes = {"heads": 4, "kv_heads": 2, "seq_q": 300, "seq_k": 200, "head_dim": 64, "tile": 128}
        case = Case(block_mask="heads", alibi=alibi, draw=draw, **sizes)
        assert describe.lists_tiles(case.call) and not describe.makes_mask(case.call)
        cases.check(case, run_case(tik, run, case))


@pytest.mark.parametrize("tile", (128, pytest.param(256, marks=pytest.mark.slow)))
def test_tiles_that_nobody_visits_are_not_touched(tik, execute_nan, tile):
    """Their keys and values may be NaN."""
    problem, mask = problem_and_mask(tile, heads=1, seq=(3 * tile, 3 * tile + 50), density=0.5)
    mask[..., 1, :] = mask[..., 2] = 0
    data = {**random_data(problem), "block_mask": mask}
    expected, _ = both_passes(tik, execute_nan, problem, data)
    rows, keys = slice(tile, 2 * tile), slice(2 * tile, 3 * tile)
    data["key"][:, :, keys] = data["value"][:, :, keys] = np.nan
    found, _ = both_passes(tik, execute_nan, problem, data)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    assert not found["output"][:, :, rows].any() and not found["d_query"][:, :, rows].any()
    assert not found["d_key"][:, :, keys].any() and not found["d_value"][:, :, keys].any()
    assert (found["logsumexp"][:, :, rows] < -1e38).all()


@pytest.mark.parametrize("keeps", (False, True), ids=("data", "known"))
def test_steep_slopes_find_their_largest_scores_at_once(on_emulator, keeps):
    """The sample of a row block is the nearest tile; else the row block would be computed twice."""
    problem = tik_kernels.problem_of(512, 64, causal=True, alibi=True)
    mask = np.ones((1, 1, 4, 4), np.uint8)
    listed = replace(changed(problem, block_mask_shape=mask.shape, block_mask_tile=128), keeps_tiles=keeps)
    work = table_of(listed, "forward", mask)
    cycles = [
        tik_kernels.simulate(tik_kernels.build(one), given={"work": work}, numerics=True).cycles
        for one in (problem, listed)
    ]
    assert cycles[1] < 1.2 * cycles[0]


@pytest.mark.parametrize("stage", ("forward", "backward"))
def test_hidden_tiles_cost_no_time(on_emulator, stage):
    problem = tik_kernels.problem_of(2048, 64, block_mask_shape=(1, 1, 16, 16), block_mask_tile=128)
    cycles = []
    for density in (0.25, 1.0):
        mask = (np.random.default_rng(0).random((1, 1, 16, 16)) < density).astype(np.uint8)
        kernel = tik_kernels.build(problem, stage)
        work = operators.list_table(host_integers, problem, tik_kernels.OPERATORS[stage][0])(mask)
        cycles.append(tik_kernels.simulate(kernel, given={"work": work}).cycles)
    assert cycles[0] < 0.45 * cycles[1]


@pytest.mark.parametrize("stage", ("forward", "grad"))
@pytest.mark.parametrize("heads", (1, 8))
def test_making_lists_takes_memory_in_proportion_to_the_mask(stage, heads):
    peaks = []
    for seq in (8192, 16384):
        problem, mask = problem_and_mask(planes=(1, heads), heads=8, seq=(seq, seq), cores=32)
        make = operators.list_table(host_integers, problem, stage)
        tracemalloc.start()
        make(mask)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    assert peaks[1] < 5 * peaks[0]  # for four times as many tiles
