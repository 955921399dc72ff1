"""Small TIK programs around one helper of the kernels each."""

import numpy as np
import pytest
from flash_attention.kernels.tik.common import alibi, mask, score_terms
from flash_attention.kernels.tik.forward import load, row_reference
from flash_attention.kernels.tik.layout import from_nz, to_nz

from tests.train.flash_attention.support.calls import make_kernel_problem
from tests.train.flash_attention.ut.tik.support.programs import Program, copy_in, copy_out
from tests.train.flash_attention.ut.tik.support.stored_arrays import pack_bias, pack_keys


def _random(*shape, sigma=1.0, seed=0):
    """Return normal random float16 elements times ``sigma``."""
    return (np.random.default_rng(seed).standard_normal(shape) * sigma).astype(np.float16)


def _score_program(tik, execute, problem, query, key, **inputs) -> Program:
    """Return a program that takes one tile of queries and keys and gives one tile."""
    arrays = {"query": to_nz(query[None]), "key": to_nz(key[None]), **inputs}
    size = len(query) * -(-len(key) // 16) * 16
    return Program(tik, execute, problem, arrays, {"result": ("float32", (size,))})


def _load_operands(core) -> None:
    """Move row block 0 and key tile 0 to L1, terms initialised."""
    score_terms.initialise(core)
    zero = core.scalar("int32", "zero", 0)
    base = core.scalar("int64", "base", 0)
    load.fetch_query(core, core.on.stage[0], base, zero, core.plan.rows)
    load.place_query(core, row_reference.query_slots(core, 0), core.on.stage[0], zero)
    load.load_key(core, load.key_slot(core, 0), base, zero, None)


def _scores_out(core) -> None:
    """Move all segments of the scores to global memory, as (keys / 16, rows, 16)."""
    load.query_to_l0(core, core.on.query[0], row_reference.query_terms(core, 0)[0][0])
    for segment, width in enumerate(core.plan.segments):
        load.key_to_l0(core, load.key_slot(core, 0), segment)
        score_terms.key_terms_to_l0(core, core.on.key_terms[0], segment)
        row_reference.scores(core, segment, segment)
        target = core.on.scores[segment]
        start, column = core.plan.segment_start(segment) * core.plan.rows, 16 * core.plan.rows
        for at in range(0, width * core.plan.rows, column):
            core.tik.tensor_mov(core.on.score[0], target[at], "m", 1, column // 256, 0, 0)
            core.tik.data_move(core.gm["result"][start + at], core.on.score[0], 0, 1, column // 8, 0, 0)


def _unpack(flat, rows: int, columns: int) -> np.ndarray:
    """Return a matrix out of its NZ layout."""
    return from_nz(np.asarray(flat).reshape(columns // 16, rows // 16, 16, 16), rows, columns)


@pytest.mark.parametrize("tile", (0, 511))
def test_terms_add_alibi_by_distance_precisely(tik, execute, tile):
    # The last key tile of 64K: positions around 65 408, slopes that float16 does not hold.
    length, slope = 65536, 2.0**-0.7
    problem = make_kernel_problem(
        1, 1, 128, length, 16, causal=True, causal_alignment="bottom_right", alibi=True, slopes=(slope,)
    )
    positions = score_terms.key_positions(problem)[tile * 8 : tile * 8 + 8]
    arrays = {
        "slopes": score_terms.slope_table(problem),
        "row_numbers": np.arange(128, dtype=np.float32),
        "positions": positions,
    }
    program = _score_program(
        tik, execute, problem, np.zeros((128, 16), np.float16), np.zeros((128, 16), np.float16), **arrays
    )
    with program.body() as core:
        score_terms.initialise(core)
        alibi.initialise(core)
        zero = core.scalar("int32", "zero", 0)
        slopes = row_reference.QuerySlopes(core)
        slopes.load(zero)
        slopes.row_block(zero + problem.call.offset, 0, zero)
        core.fill(core.on.stage[0], 0.0, 2048)
        for slot in (core.on.query[0], *(tensor for tensor, _ in load.key_slot(core, 0))):
            core.tik.data_move(slot, core.on.stage[0], 0, 1, slot.shape[0] // 16, 0, 0)
        core.tik.data_move(core.on.key_terms[0], core.gm["positions"], 0, 1, 128, 0, 0)
        _scores_out(core)
    scores = _unpack(program.run()["result"], 128, 128)
    query = length - 128 + np.arange(128)[:, None]
    expected = -slope * (query - (tile * 128 + np.arange(128))[None, :])
    assert np.abs(scores - expected / problem.post_scale).max() <= 2.0**-21 * np.abs(expected).max() + 1e-6


def test_visibility_and_masks_zero_probabilities_and_lower_scores(tik, execute):
    problem = make_kernel_problem(1, 1, 128, 128, 16, mask="per_score", causal=True)
    visible = np.tri(128, dtype=np.float16)
    hidden = (np.random.default_rng(0).random((128, 128)) < 0.3).astype(np.float16)
    values = _random(128, 128, sigma=3.0)
    values[0, 0], values[5, 100] = 65504, 65504
    nz = {name: to_nz(array).reshape(-1) for name, array in (("v", visible), ("h", hidden), ("x", values))}
    program = Program(tik, execute, problem, nz, {"zeroed": ("float16", (16384,)), "lowered": ("float16", (16384,))})
    with program.body() as core:
        score = core.on.score[0].reinterpret_cast_to("float16")
        copy_in(core, core.on.visible[0], "v", 1024)
        copy_in(core, core.on.hidden[0], "h", 1024)
        copy_in(core, score, "x", 1024)
        for at, half in zip(range(0, 16384, 4096), core.on.probability_piece):
            core.tik.data_move(half, core.gm["x"][at], 0, 1, 256, 0, 0)
            mask.hide_visible(core, half, at, 4096)
            mask.hide_explicit(core, half, at, 4096)
            core.tik.data_move(core.gm["zeroed"][at], half, 0, 1, 256, 0, 0)
        mask.lower_explicit(core, score, 0, 16384)
        mask.lower_visible(core, score, 0, 16384, False)
        copy_out(core, "lowered", score, 1024)
    results = program.run()
    seen = (visible > 0) & (hidden == 0)
    assert np.array_equal(_unpack(results["zeroed"], 128, 128), np.where(seen, values, 0))
    assert np.array_equal(_unpack(results["lowered"], 128, 128), np.where(seen, values, np.float16(-65504)))


def test_float16_terms_add_up():
    for value in (0.1, 1 / 3, 40.7, 2.0**-9 * 1.23456):
        assert sum(score_terms.terms(value, 2)) == pytest.approx(value, rel=2.0**-21, abs=2.0**-25)
        assert sum(score_terms.terms(value, 3)) == pytest.approx(value, rel=2.0**-31, abs=2.0**-25)


def test_bias_and_mask_per_key_are_terms_of_the_scores(tik, execute):
    problem = make_kernel_problem(1, 1, 16, 40, 48, bias="per_key", mask="per_key")
    bias, hidden = _random(1, 1, 1, 40, sigma=5.0), np.zeros((1, 1, 1, 40), np.float16)
    hidden[..., 30:] = 1
    given = bias.copy()
    given[..., 20:30] = -np.inf
    query, key = _random(16, 48), _random(40, 48, seed=1)
    inputs = {"key_bias": pack_bias(given), "key_mask": pack_keys(hidden)}
    program = _score_program(tik, execute, problem, query, key, **inputs)
    with program.body() as core:
        _load_operands(core)
        zero = core.scalar("int32", "zero", 0)
        score_terms.load_key_terms(core, core.on.key_terms[0], score_terms.Planes(zero, zero), zero)
        _scores_out(core)
    scores = _unpack(program.run()["result"], 16, 48)[:, :40] * problem.post_scale
    expected = query.astype(np.float64) @ key.T.astype(np.float64) * problem.call.scale + bias[0, 0]
    assert np.allclose(scores[:, :20], expected[:, :20], rtol=1e-5, atol=1e-4)
    assert (scores[:, 20:] < -200000).all()
