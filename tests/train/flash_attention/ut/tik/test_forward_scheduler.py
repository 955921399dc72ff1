"""The work table says what visibility says, and spreads the work evenly."""

import numpy as np
import pytest
from flash_attention.kernels.tik import KernelProblem
from flash_attention.kernels.tik.common.work_split import plane
from flash_attention.kernels.tik.forward import scheduler
from flash_attention.kernels.tik.forward.tiling import candidates
from hypothesis import given, settings
from hypothesis import strategies as st


def _row_blocks(work):
    """(core, item row, words) of every active row block."""
    for core in range(work.cores):
        for row in work.table[core]:
            for a in range(2):
                words = row[scheduler.ROW_BLOCK + a * scheduler.ROW_BLOCK_FIELDS :][: scheduler.ROW_BLOCK_FIELDS]
                if words[scheduler.ROWS]:
                    yield core, row, words


def _number(words, tile: int) -> int:
    if tile - words[scheduler.FIRST] < scheduler.EDGE:
        return words[scheduler.LEFT + tile - words[scheduler.FIRST]]
    if words[scheduler.LAST] - tile < scheduler.EDGE:
        return words[scheduler.RIGHT + words[scheduler.LAST] - tile]
    return 0


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_table_and_tiles_give_the_visibility_of_the_problem(data):
    draw = data.draw
    problem = KernelProblem(
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
        block=draw(st.sampled_from((64, 128))),
        cores=draw(st.integers(1, 5)),
    )
    plan = candidates(problem)[draw(st.integers(0, 4))]
    work = scheduler.split(problem, plan)
    seen = np.zeros((problem.seq_q, problem.seq_k), bool)
    for _, _, words in _row_blocks(work):
        start = words[scheduler.START]
        rows = min(plan.rows, problem.seq_q - start)
        for tile in range(words[scheduler.FIRST], words[scheduler.LAST] + 1):
            number = _number(words, tile)
            keys = min(plan.keys, problem.seq_k - tile * plan.keys)
            block = np.ones((plan.rows, plan.keys), bool)
            if number:
                block = work.tiles[number - 1].transpose(1, 0, 2).reshape(plan.rows, plan.keys) > 0
            assert not block[:, keys:].any()  # keys that do not exist are hidden
            seen[start : start + rows, tile * plan.keys : tile * plan.keys + keys] |= block[:rows, :keys]
    assert np.array_equal(seen, problem.band.dense())


def test_every_row_block_of_every_head_is_done_once():
    problem = KernelProblem(3, 6, 500, 300, 64, kv_heads=2, causal=True, cores=7)
    plan = candidates(problem)[0]
    work = scheduler.split(problem, plan)
    done = [(row[scheduler.HEAD], words[scheduler.START]) for _, row, words in _row_blocks(work)]
    assert len(done) == len(set(done)) == 18 * 4
    for _, row, _ in _row_blocks(work):
        assert row[scheduler.KV_HEAD] == row[scheduler.HEAD] // 6 * 2 + row[scheduler.HEAD] % 6 // 3


@pytest.mark.parametrize(("heads", "seq"), ((32, 4096), (8, 4096), (1, 8192), (3, 2048)))
def test_causal_work_is_balanced(heads, seq):
    problem = KernelProblem(1, heads, seq, seq, 128, causal=True)
    work = scheduler.split(problem, candidates(problem)[0])
    longest = max(block[scheduler.LAST] - block[scheduler.FIRST] + 1 for _, _, block in _row_blocks(work))
    mean = sum(work.units) / 32
    # No core does more than its share by more than one item can be long.
    assert max(work.units) <= max(1.06 * mean, 2 * longest)


def test_tiles_out_of_sight_are_never_visited():
    problem = KernelProblem(1, 1, 4096, 4096, 64, window_left=200, window_right=0)
    work = scheduler.split(problem, candidates(problem)[0])
    assert all(words[scheduler.LAST] - words[scheduler.FIRST] + 1 <= 4 for _, _, words in _row_blocks(work))
    assert sum(work.units) < 32 * 4


def test_distances_count_tokens_after_the_query():
    problem = KernelProblem(1, 1, 300, 300, 32, alibi="computed", slopes=(0.5,))
    plan = candidates(problem)[0]
    work = scheduler.split(problem, plan)
    for _, _, words in _row_blocks(work):
        for tile in range(words[scheduler.FIRST], words[scheduler.LAST] + 1):
            keys = tile * plan.keys + np.arange(plan.keys)
            after = keys[None, :] - (words[scheduler.START] + np.arange(plan.rows))[:, None]
            if words[scheduler.CROSS] <= tile < words[scheduler.AFTER]:
                number = words[scheduler.DISTANCE + tile - words[scheduler.CROSS]]
                tile_values = work.distances[number - 1].transpose(1, 0, 2).reshape(plan.rows, plan.keys)
                assert np.array_equal(tile_values, np.maximum(after, 0))
            else:
                assert (after <= 0).all() if tile < words[scheduler.CROSS] else (after >= 0).all()


def test_planes_of_inputs_that_batches_or_heads_share():
    """(batches, heads) of the input, then which plane batch 1 and head 2 of a problem read."""
    planes = {(2, 3): 1 * 3 + 2, (1, 3): 2, (2, 1): 1, (1, 1): 0}
    assert {sizes: plane(*sizes, 1, 2) for sizes in planes} == planes
