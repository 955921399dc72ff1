"""Row blocks of 96 and 112 queries, which divide no key tile: right with every rule, and chosen if they help."""

import dataclasses

import numpy as np
import pytest
from flash_attention.call import Varlen
from flash_attention.kernels.tik import describe
from flash_attention.kernels.tik.common.work_split import overlapped
from flash_attention.kernels.tik.forward import schedule
from flash_attention.kernels.tik.forward.tiling import STRATEGIES, buffers, candidates
from flash_attention.kernels.tik.hardware import excess
from flash_attention.kernels.tik.layout import BLOCK
from flash_attention.measuring import tik_kernels

from tests.train.flash_attention.support import case_list, cases
from tests.train.flash_attention.support.calls import make_kernel_problem
from tests.train.flash_attention.support.cases import Case
from tests.train.flash_attention.ut.tik.support import stored_arrays
from tests.train.flash_attention.ut.tik.support.passes import forward, random_arrays
from tests.train.flash_attention.ut.tik.support.programs import build_forward
from tests.train.flash_attention.ut.tik.support.shared_cases import check_closely, check_shards, run_forward

# Lengths around the row blocks and the tiles; half_scores from 512 keys on.
ONE = {"heads": 1, "kv_heads": 1}
CASES = (
    Case(seq_q=260, seq_k=260, head_dim=160, mask="causal", heads=2, kv_heads=1),
    Case(seq_q=200, seq_k=333, head_dim=160, mask="causal", alignment="bottom_right", **ONE),
    Case(seq_q=333, seq_k=200, head_dim=160, mask="causal", alignment="bottom_right", **ONE),
    Case(seq_q=225, seq_k=530, head_dim=192, heads=1, kv_heads=1),
    Case(seq_q=225, seq_k=530, head_dim=176, mask="causal", heads=1, kv_heads=1, values="large"),
    Case(batch=2, seq_q=97, seq_k=150, head_dim=144, mask="3d", dropout=0.1),
    Case(batch=2, seq_q=113, seq_k=140, head_dim=129, mask="rows", **ONE),
    Case(batch=2, seq_q=193, seq_k=140, head_dim=192, mask="padding", values="outlier", **ONE),
    Case(seq_q=193, seq_k=140, head_dim=160, mask="causal", sinks=True),
    Case(seq_q=300, seq_k=300, head_dim=160, window=(10, 10), **ONE),
    Case(seq_q=300, seq_k=300, head_dim=160, blocks=(1, 0), tiling="sparse_64", mask="causal", **ONE),
    Case(seq_q=200, seq_k=250, head_dim=144, alibi="computed"),
    Case(seq_q=250, seq_k=200, head_dim=144, alibi="computed", mask="causal", dropout=0.2),
    Case(seq_q=200, seq_k=130, head_dim=144, alibi="bias_all", mask="compact"),
    Case(seq_q=200, seq_k=150, head_dim=144, alibi="given"),
    Case(seq_q=210, seq_k=150, head_dim=144, mask="causal", softcap=30.0, **ONE),
    Case(seq_q=230, seq_k=250, head_dim=160, value_dim=128, mask="causal", **ONE),
    Case(seq_q=230, seq_k=250, head_dim=128, value_dim=192, **ONE),
    Case(seq_q=16, seq_k=530, head_dim=192, **ONE),
    Case(seq_q=130, seq_k=5, head_dim=192, mask="causal", **ONE),
)
NAMES = ("pair112", "pair96", "single112", "single96")


def _fits(problem) -> bool:
    """Return True if the strategy that a problem names fits on chip."""
    (plan,) = candidates(problem)
    split = schedule.split(problem, plan)
    return not excess(buffers(problem, plan, split), problem)


EVERYDAY = case_list.covering(case_list.rules_of, CASES)


@pytest.mark.parametrize(
    "case", [pytest.param(one, id=str(one), marks=[pytest.mark.slow] * (one not in EVERYDAY)) for one in CASES]
)
def test_every_rule(tik, execute, case):
    name = next(
        name for name in NAMES[CASES.index(case) % 2 :] if _fits(describe.kernel_problem(case.call, tiling=name))
    )
    pair, single = (run_forward(tik, execute, case, 3, tiling) for tiling in (name, name.replace("pair", "single")))
    cases.check(case, pair)
    np.testing.assert_array_equal(pair.output, single.output)
    np.testing.assert_array_equal(pair.logsumexp, single.logsumexp)


@pytest.mark.parametrize(
    ("head_dim", "tiling", "causal"),
    [
        (256, "pair96", True),
        pytest.param(208, "pair112", False, marks=pytest.mark.slow),
        pytest.param(160, "pair128", True, marks=pytest.mark.slow),
        pytest.param(256, "pair96", False, marks=pytest.mark.slow),
        pytest.param(208, "pair112", True, marks=pytest.mark.slow),
        pytest.param(160, "pair128", False, marks=pytest.mark.slow),
    ],
)
def test_shards_and_runs_have_the_same_bits(tik, execute, head_dim, tiling, causal):
    keys = 200 if head_dim == 256 else 560  # float32 scores, or float16
    whole = make_kernel_problem(2, 4, 450, keys, head_dim, kv_heads=2, causal=causal, cores=5)
    # Four heads of 450 rows are too few items of two row blocks for 30 cores.
    shard = make_kernel_problem(1, 2, 450, keys, head_dim, kv_heads=1, causal=causal, cores=30)
    assert schedule.choose(whole).plan.strategy == tiling or head_dim == 160
    assert schedule.choose(shard).plan.row_blocks == 1
    check_shards(tik, execute, whole, shard)


@pytest.mark.spread
@pytest.mark.parametrize("head_dim", (192, 256))
@pytest.mark.parametrize("causal", (False, True))
def test_sample_that_misses_the_largest_scores_is_found_out(tik, execute, head_dim, causal):
    problem = make_kernel_problem(1, 1, 400, 700, head_dim, causal=causal, cores=1)
    arrays = random_arrays(problem)
    for row in (5, 100, 250, 399):  # of both row blocks of an item; behind the first tile, in no sample
        arrays[1][0, 0, 2 * row // 3] = 8 * arrays[0][0, 0, row]
    check_closely(problem, arrays, *forward(tik, execute, problem, *arrays), 3.0)


@pytest.mark.usefixtures("on_emulator")
def test_sample_is_the_first_half_of_the_first_tile_and_groups_spread_over_the_others(tik):
    """Large scores of sampled keys are found at once. Large scores of other keys make row blocks run again."""
    problem = make_kernel_problem(1, 1, 192, 1024, 256, cores=1, tiling="pair96")
    query, key, value = (array * np.float16(0.1) for array in random_arrays(problem))
    query[..., 0] = 16.0
    row_block = schedule.choose(problem).split.table["row_blocks"][0, 0, 0]
    group, stride = row_block["sample"], row_block["stride"]
    kernel = build_forward(problem, tik)

    def instructions(largest: int) -> int:
        key[..., 0] = np.where(np.arange(1024) == largest, 30.0, 0.0)
        feed = kernel.feed(**stored_arrays.forward_inputs(problem, query, key, value))
        return tik_kernels.simulate(kernel, given=feed, numerics=True).instruction_count

    sampled = [instructions(place) for place in (0, 63, 16 * group, 16 * (group + 3 * stride) + 15)]
    missed = [instructions(place) for place in (16 * group + 16, 16 * (group + 3 * stride) - 1)]
    assert len(set(sampled)) == 1 and min(missed) > 1.5 * sampled[0]


def test_hidden_keys_may_hold_anything(tik, execute_nan):
    """Two row blocks share a sample, which has only keys that the first row block sees."""
    problem = make_kernel_problem(1, 1, 384, 384, 256, causal=True, cores=1, tiling="pair96")
    query, key, value = random_arrays(problem)
    expected, _ = forward(tik, execute_nan, problem, query, key, value)
    # In tiles on the diagonal hidden keys enter products with zeros, so NaN stands only in whole tiles behind them.
    key[..., 256:, :] = value[..., 256:, :] = np.nan
    found, _ = forward(tik, execute_nan, problem, query, key, value)
    np.testing.assert_array_equal(found[..., :192, :], expected[..., :192, :])


def _chosen(seq: int, head_dim: int, **fields) -> str:
    """Return the name of the strategy for 32 heads."""
    return schedule.choose(make_kernel_problem(1, 32, seq, seq, head_dim, **fields)).plan.strategy


def test_which_row_blocks_are_chosen():
    """The largest row blocks that fit on chip are chosen: then most queries share the loaded keys and values."""
    for causal in (False, True):
        assert [_chosen(2048, dim, causal=causal) for dim in (128, 160, 192, 208, 224, 256)] == [
            *("pair128", "pair128", "pair112", "pair112", "pair96", "pair96")
        ]
    # Every row has to see a part of a sample of one tile, so a tile holds all positions of a row block.
    for fields in ({"bias": "per_key"}, {"bias": "per_score"}, {"alibi": True, "slopes": (0.5,) * 32}):
        assert _chosen(2048, 256, **fields) in ("pair64", "single64")
    assert _chosen(2048, 256, window_left=200, window_right=0) == "pair64"
    assert _chosen(2048, 256, window_left=100, window_right=100) == "pair64"
    assert _chosen(2048, 256, window_left=300, window_right=0) == "pair96"
    assert _chosen(2048, 256, window_left=3000) == "pair96"
    # Short sequences: as many items of 192 rows as of 128.
    assert [_chosen(seq, 256) for seq in (100, 128, 256, 257)] == ["pair64", "pair64", "pair64", "pair96"]
    # Vector is the limit, not the memory.
    assert _chosen(2048, 64, softcap=30.0, mask="per_key") == "single128"


def test_no_more_slots_for_output_columns_than_pairs_of_them():
    plans = [schedule.choose(make_kernel_problem(1, 32, 2048, 2048, dim)).plan for dim in (32, 64, 128)]
    assert [plan.staging_slots for plan in plans] == [1, 2, 3]


def test_packed_sequences_have_row_blocks_that_divide_their_blocks():
    problem = make_kernel_problem(1, 2, 2048, 2048, 256, causal=True, layout="BSH", storage=Varlen(count=2))
    assert all(BLOCK % plan.rows == 0 for plan in candidates(problem))
    choice = schedule.choose(problem)
    assert choice.plan.strategy == "pair64"
    assert sum(choice.split.units) == 2 * 2 * 17  # row blocks of an item, heads, items of two sequences at most
    with pytest.raises(ValueError, match="tiling: got 'pair96' with packed sequences, allowed are .*pair64"):
        candidates(dataclasses.replace(problem, tiling="pair96"))


@pytest.mark.parametrize("name", NAMES)
def test_tiles_on_the_diagonal_take_little_room(name):
    """They need a column of 16 keys per diagonal of the rows, and the columns of a tile before and behind these."""
    problem = make_kernel_problem(1, 1, 4096, 4096, 144, causal=True, tiling=name)
    (plan,) = candidates(problem)
    assert len(schedule.split(problem, plan).tiles) < 2 * plan.columns + plan.rows // 16


def test_tiles_overlap_as_far_as_they_can():
    strip, starts = overlapped([(3, 4, 5), (1, 2, 3), (4, 5, 6), (1, 2, 3), (9, 9, 9)])
    assert [strip[start : start + 3] for start in starts] == [[3, 4, 5], [1, 2, 3], [4, 5, 6], [1, 2, 3], [9, 9, 9]]
    assert len(strip) == 9
    assert overlapped([]) == ([], [])


@pytest.mark.parametrize("causal", (False, True))
def test_row_blocks_of_an_item_share_their_sample(causal):
    problem = make_kernel_problem(1, 1, 2000, 2000, 256, causal=causal, cores=1)
    plan, split = schedule.choose(problem).plan, schedule.choose(problem).split
    assert plan.shared_sample and plan.samples == 1
    for blocks in split.table["row_blocks"].reshape(-1, 2):
        pairs = blocks[blocks["first"] <= blocks["last"]]
        samples = {tuple(block[name] for name in ("strided", "sample", "stride")) for block in pairs}
        ((strided, group, stride),) = samples
        if strided:  # keys that the row block with the shortest range sees
            last = (group + stride * (plan.columns // 2 - 1)) * 16 + 15
            assert plan.keys // 2 <= group * 16
            assert last < min(problem.call.band.keys(int(start))[1] for start in pairs["start"])


def test_strategies_whose_rows_divide_no_tile_are_those_of_these_tests():
    assert {name for name, strategy in STRATEGIES.items() if strategy.keys % strategy.rows} == set(NAMES)
