"""Small TIK programs around one helper of the kernels each."""

import numpy as np
import pytest
from flash_attention.kernels.tik import KernelProblem
from flash_attention.kernels.tik.common import alibi, dropout, mask, score_terms
from flash_attention.kernels.tik.forward import load, row_reference, softmax, store
from flash_attention.kernels.tik.forward.schedule import Item
from flash_attention.kernels.tik.forward.score_bound import Verdict
from flash_attention.kernels.tik.hardware import Buffer
from flash_attention.kernels.tik.layout import from_nz, pack_keep_bits, to_nz

from tests.train.flash_attention.support.problems import make_kernel_problem
from tests.train.flash_attention.ut.tik.support.programs import Program, copy_in, copy_out
from tests.train.flash_attention.ut.tik.support.stored_arrays import pack_bias, pack_keys


def _random(*shape, sigma=1.0, seed=0):
    """Return normal random float16 elements times ``sigma``."""
    return (np.random.default_rng(seed).standard_normal(shape) * sigma).astype(np.float16)


def _tile(elements: int) -> Buffer:
    """Return a buffer for a whole tile of float16 in the Unified Buffer. A kernel has it in pieces."""
    return Buffer("tile", "UB", "float16", elements)


def _score_program(tik, execute, problem, query, key, dtype="float32", **inputs) -> Program:
    """Return a program that takes one tile of queries and keys and gives one tile."""
    arrays = {"query": to_nz(query[None]), "key": to_nz(key[None]), **inputs}
    size = len(query) * -(-len(key) // 16) * 16
    return Program(tik, execute, problem, arrays, {"result": (dtype, (size,))})


def _load_operands(core) -> None:
    """Move row block 0 and key tile 0 to L1, terms initialised."""
    core.clear_vectors()
    score_terms.initialise(core)
    zero = core.scalar("int32", "zero", 0)
    base = core.scalar("int64", "base", 0)
    load.fetch_query(core, core.on.stage[0], base, zero, core.plan.rows)
    load.place_query(core, row_reference.query_slots(core, 0), core.on.stage[0], zero)
    load.load_key(core, load.key_slot(core, 0), base, zero, None)


def _scores(core, segment: int, key_terms):
    """Compute scores of the first query tile and some keys in the Unified Buffer."""
    load.key_to_l0(core, load.key_slot(core, 0), segment)
    score_terms.key_terms_to_l0(core, key_terms, segment)
    row_reference.scores(core, segment, segment)
    return core.on.scores[segment]


def _scores_out(core) -> None:
    """Move all segments of the scores to global memory, as (keys / 16, rows, 16)."""
    load.query_to_l0(core, core.on.query[0], row_reference.query_terms(core, 0)[0][0])
    for segment, width in enumerate(core.plan.segments):
        target = _scores(core, segment, core.on.key_terms[0])
        start, column = core.plan.segment_start(segment) * core.plan.rows, 16 * core.plan.rows
        for at in range(0, width * core.plan.rows, column):
            core.tik.tensor_mov(core.on.score[0], target[at], "m", 1, column // 256, 0, 0)
            core.tik.data_move(core.gm["result"][start + at], core.on.score[0], 0, 1, column // 8, 0, 0)


def _unpack(flat, rows: int, columns: int) -> np.ndarray:
    """Return a matrix out of its NZ layout."""
    return from_nz(np.asarray(flat).reshape(columns // 16, rows // 16, 16, 16), rows, columns)


@pytest.mark.parametrize(("rows", "keys", "depth"), ((128, 128, 64), (48, 80, 32), (16, 16, 128), (64, 128, 256)))
def test_scores_are_query_times_key(tik, execute, rows, keys, depth):
    problem = KernelProblem(1, 1, rows, keys, depth, tiling="pair64" if depth > 128 else "pair128")
    query, key = _random(rows, depth), _random(keys, depth, seed=1)
    program = _score_program(tik, execute, problem, query, key)
    with program.body() as core:
        _load_operands(core)
        _scores_out(core)
    scores = _unpack(program.run()["result"], rows, keys)
    expected = (query * np.float16(problem.query_factor)).astype(np.float64) @ key.T.astype(np.float64)
    assert np.allclose(scores, expected, rtol=1e-5, atol=1e-5)


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
        core.clear_vectors()
        score_terms.initialise(core)
        alibi.initialise(core)
        zero = core.scalar("int32", "zero", 0)
        slopes = row_reference.QuerySlopes(core)
        slopes.load(zero)
        slopes.row_block(zero + problem.offset, 0, zero)
        core.fill(core.on.stage[0], 0.0, 2048)
        for slot in (core.on.query[0], *load.key_slot(core, 0)):
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


@pytest.mark.parametrize("head_dim", (64, 128))
def test_limits_of_exponents_lower_scores(tik, execute, head_dim):
    """Tiles of float16 kernels: below the exponential's reach where a key is hidden, and a maximum takes them too."""
    problem = make_kernel_problem(1, 1, 128, 1024, head_dim, causal=True)
    visible, values = np.tri(128, dtype=np.float16), _random(128, 128, sigma=3.0)
    values[0, 0], values[5, 100] = 65504, 65504
    limits = softmax.limits(problem, visible)
    assert np.allclose(limits[visible > 0] * problem.post_scale, softmax.CEILING, rtol=1e-3)
    assert (limits[visible == 0] * problem.post_scale < -60000).all()
    nz = {name: to_nz(array).reshape(-1) for name, array in (("v", limits), ("x", values))}
    program = Program(tik, execute, problem, nz, {"lowered": ("float16", (16384,))})
    with program.body() as core:
        core.clear_vectors()
        row_reference.initialise(core)
        score = core.on.score[0].reinterpret_cast_to("float16")
        copy_in(core, core.on.visible[0], "v", 1024)
        for at in (0, 8192):
            core.tik.data_move(score, core.gm["x"][at], 0, 1, 512, 0, 0)
            mask.lower_visible(core, score, at, 8192, True)
            core.tik.data_move(core.gm["lowered"][at], score, 0, 1, 512, 0, 0)
    lowered = _unpack(program.run()["lowered"], 128, 128)
    assert np.array_equal(lowered, np.where(visible > 0, values, np.float16(-65504)))


@pytest.mark.parametrize(("rows", "keys"), ((128, 128), (48, 80), (16, 16)))
def test_dropout_keeps_what_the_bits_say(tik, execute, rows, keys):
    problem = make_kernel_problem(1, 1, rows, keys, 16, dropout_rate=1000 / 65536)
    bits = np.random.default_rng(0).integers(0, 256, (1, 1, rows, keys // 8)).astype(np.uint8)
    values = _random(rows, keys)
    inputs = {"keep": pack_keep_bits(bits, problem), "x": to_nz(values).reshape(-1)}
    program = Program(tik, execute, problem, inputs, {"y": ("float16", (rows * keys,))})
    with program.body(_tile(rows * keys)) as core:
        core.fill(core.on.zeros[0], 0.0, 128)
        zero, zeros = core.scalar("int32", "zero", 0), core.on.zeros[0]
        dropout.fetch_keep(core, None, zero, zero, zero, rows)
        half = core.on.tile[0]
        copy_in(core, half, "x", rows * keys // 16)
        for at, elements in ((0, rows * keys // 2), (rows * keys // 2, rows * keys // 2)):
            dropout.select(core, half[at:], half[at:], lambda first: zeros, at, elements)
        copy_out(core, "y", half, rows * keys // 16)
    kept = np.unpackbits(bits[0, 0], axis=-1, bitorder="little").astype(bool)
    assert np.array_equal(_unpack(program.run()["y"], rows, keys), np.where(kept, values, 0))


@pytest.mark.parametrize(
    ("depth", "keys", "cut"), ((128, 128, None), (64, 128, 0), (64, 128, 1), (80, 128, None), (32, 512, None))
)
def test_probabilities_are_exponentials_of_scaled_scores(tik, execute, depth, keys, cut):
    problem = KernelProblem(1, 1, 128, keys, depth)
    query, key = _random(128, depth), _random(keys, depth, seed=1)
    arrays = {"query": to_nz(query[None]), "key": to_nz(key[None])}
    program = Program(tik, execute, problem, arrays, {"result": ("float16", (128 * 128,))})
    with program.body(_tile(128 * 128)) as core:
        _load_operands(core)
        softmax.initialise(core)
        softmax.begin_item(core)
        load.query_to_l0(core, core.on.query[0], row_reference.query_terms(core, 0)[0][0])
        scores = [_scores(core, segment, core.on.key_terms[0]) for segment in range(2)]
        slot = core.on.probability[0]
        flags = (core.scalar("int32", name, value) for name, value in (("cut", cut), ("far", 0)))
        verdict = None if cut is None else Verdict(*flags)
        for record in softmax.steps(core, softmax.Unit(0, 0, scores, [], slot, None, None, None, None, (), verdict)):
            record()
        for at in range(0, 16384, 4096):
            core.tik.data_move(core.on.tile[0][at], slot[at], 0, 1, 256, 0, 0)
        copy_out(core, "result", core.on.tile[0], 1024)
    # In L1: per segment of 64 keys (rows / 16, keys / 16, 16, 16).
    stored = program.run()["result"].reshape(2, 8, 4, 16, 16).transpose(1, 3, 0, 2, 4).reshape(128, 128)
    expected = np.exp(query.astype(np.float64) @ key[:128].T.astype(np.float64) * problem.scale)
    error = np.abs(stored / expected - 1)
    # Scores to 5 are rounded up to three times in float16, probabilities once.
    assert error.max() < 2.0**-7


def test_row_totals_become_output_and_logsumexp(tik, execute):
    problem = KernelProblem(1, 1, 128, 128, 32, cores=1)
    left, right = np.abs(_random(128, 64)), _random(64, 32)
    left[7] = 0  # a row that saw nothing
    inputs = {"left": to_nz(left), "right": to_nz(right)}
    outputs = {
        "output": ("float16", (1, 1, 2, 8, 16, 16)),
        "logsumexp": ("float32", (1, 1, 128)),
        "flags": ("int32", (16,)),
    }
    program = Program(tik, execute, problem, inputs, outputs)
    with program.body() as core:
        core.clear_vectors()
        core.fill(core.on.flag[0], 0, 8)
        store.initialise(core)
        core.fill(core.on.current_reference[0], 2.5, 128)
        core.fill(core.on.stage[0], 1.0, 256)
        core.tik.data_move(core.on.fractals[0], core.on.stage[0], 0, 1, 16, 0, 0)
        core.tik.load2dv1(core.on.l0_ones[0], core.on.fractals[0], 0, 4, 0, 0, False)
        # NZ of the left operand by row fractals, of the right one transposed.
        copy_in(core, core.on.probability[0], "left", 512)
        copy_in(core, core.on.value[0], "right", 128)
        for row in range(8):
            core.tik.load2dv1(core.on.l0_probability[0][row * 1024], core.on.probability[0], row, 4, 8, 0, False)
        for group in range(4):
            core.tik.load2dv1(core.on.l0_value[0][group * 512], core.on.value[0], group, 2, 4, 0, True)
        core.tik.mmad(core.on.output[0], core.on.l0_probability[0], core.on.l0_value[0], 128, 64, 32, 0)
        core.tik.mmad(core.on.total[0], core.on.l0_probability[0], core.on.l0_ones[0], 128, 64, 16, 0)
        zero = core.scalar("int32", "zero", 0)

        class Item(dict):
            index = zero

            def origin(self, name):
                return 0

            def stored(self, place):
                return place

        item = Item({"head": zero, ("start", 0): zero, ("rows", 0): zero})
        store.finish(core, item, 0)
        store.store(core, item, 0, 0, 1)
        core.tik.data_move(core.gm["flags"][8], core.on.flag[0], 0, 1, 1, 0, 0)
    results = program.run()
    total = left.astype(np.float64).sum(1)
    output = from_nz(results["output"], 128, 32)[0, 0]
    seen = total > 0
    expected = (left[seen].astype(np.float64) @ right.astype(np.float64)) / total[seen, None]
    assert np.allclose(output[seen], expected, rtol=2.0**-10, atol=1e-6)
    assert np.allclose(results["logsumexp"][0, 0][seen], np.log(total[seen]) + 2.5, rtol=0, atol=2e-6)
    assert not output[7].any() and results["logsumexp"][0, 0, 7] == np.finfo(np.float32).min
    assert results["flags"][0] == round(float(np.float16(total.max())))


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
    expected = query.astype(np.float64) @ key.T.astype(np.float64) * problem.scale + bias[0, 0]
    assert np.allclose(scores[:, :20], expected[:, :20], rtol=1e-5, atol=1e-4)
    assert (scores[:, 20:] < -200000).all()


@pytest.mark.parametrize(("attempt", "offset"), ((0, 0.0), (1, 0.0), (1, 15000.0)))
def test_reference_is_the_row_maximum(tik, execute, attempt, offset):
    # Causal over two tiles: at attempt 0 the second row block samples one tile, at attempt 1 both count.
    problem = make_kernel_problem(1, 1, 128, 256, 64, causal=True, causal_alignment="bottom_right", cores=1)
    query, key = _random(128, 64, sigma=3.0), _random(256, 64, seed=1)
    if offset:
        query[:, 0], key[:, 0] = 500, offset / 500 * 8
    program = Program(
        tik,
        execute,
        problem,
        {"query": to_nz(query[None]), "key": to_nz(key[None])},
        {"reference": ("float32", (128,))},
    )
    for name, array in (("table", program.split.words), ("tiles", program.split.tiles)):
        program.inputs[name] = array
        program.gm[name] = program.instance.Tensor(str(array.dtype), array.shape, tik.scope_gm, name)
    with program.body() as core:
        core.clear_vectors()
        row_reference.initialise(core)
        score_terms.initialise(core)
        core.tik.data_move(core.on.table[0], core.gm["table"], 0, 1, 6, 0, 0)
        core.tik.data_move(core.on.tiles[0], core.gm["tiles"], 0, len(program.split.tiles), 128, 0, 0)
        item = Item(core, "item", True)
        zero = core.scalar("int32", "zero", 0)
        item.load(zero)
        base, at = core.scalar("int64", "base", 0), core.scalar("int32", "at", attempt)
        numbers = [core.scalar("int32", name) for name in ("sweeps", "sweep_tiles", "tile", "number", "distance")]
        misses = program.split.sample_misses
        search = row_reference.Search(at, *numbers, base, base, True, misses, slopes=None, score_bound=None)
        load.fetch_query(core, core.on.stage[0], base, zero, core.plan.rows)
        load.place_query(core, row_reference.query_slots(core, 0), core.on.stage[0], zero)
        row_reference.clear(core, 0, zero)
        row_reference.load_sample(core, item, 0, search)
        row_reference.references(core, item, zero, search)
        copy_out(core, "reference", core.on.next_reference[0], 16)
    result = program.run()["reference"].astype(np.float64)
    scores = query.astype(np.float64) @ key.T.astype(np.float64) / 8
    scores[~problem.band.dense()] = -np.inf
    if attempt:
        assert np.abs(result - scores.max(1)).max() < 0.02 + 2.0**-21 * offset
    else:
        assert np.all(result <= scores.max(1) * (1 + 2.0**-10) + 1e-3)
        assert np.all(result >= scores[:, :16].max(1) - 0.1)
