"""Layout TH: heads are columns of one matrix of tokens, read and written in its FRACTAL_NZ form."""

import numpy as np
import pytest
from flash_attention.kernels.tik import KernelProblem, layout
from flash_attention.kernels.tik.forward.tiling import candidates
from flash_attention.kernels.tik.hardware import Buffer
from flash_attention.kernels.tik.layout import placement
from flash_attention.kernels.tik.problem import LAYOUTS
from flash_attention.kernels.tik.recorder import Core

from tests.train.flash_attention.support.calls import make_kernel_problem
from tests.train.flash_attention.ut.tik.support import stored_arrays
from tests.train.flash_attention.ut.tik.support.passes import both_passes, forward, random_arrays, random_data


def _problem(sizes, **given) -> KernelProblem:
    """Return a problem on three cores."""
    return make_kernel_problem(*sizes, cores=3, **given)


def _padding(problem: KernelProblem, name: str, stored: np.ndarray) -> np.ndarray:
    """Return the rows of a stored matrix of tokens that are no tokens: (columns / 16, rows, 16)."""
    return stored.reshape(len(stored), -1, 16)[:, placement(problem, name).shape[0] :]


def test_padding_of_inputs_is_not_read_and_that_of_outputs_is_zero(tik, execute):
    problem = _problem((3, 2, 15, 18, 32), layout="TH")
    assert (placement(problem, "query").padding, placement(problem, "key").padding) == (3, 10)
    clean, _ = both_passes(tik, execute, problem, random_data(problem))

    def spoil(name: str, stored: np.ndarray) -> None:
        if name in ("query", "key", "value", "output", "d_output"):
            _padding(problem, name, stored)[...] = np.nan

    results, stored = both_passes(tik, execute, problem, random_data(problem), spoil)
    for name, expected in clean.items():
        np.testing.assert_array_equal(results[name], expected, err_msg=name)
    for name in ("output", "d_query", "d_key", "d_value"):
        assert not _padding(problem, name, stored[name]).any(), name


@pytest.mark.parametrize("name", LAYOUTS)
def test_an_item_of_nan_spoils_no_other(tik, execute_nan, name):
    """Behind a short last tile, its slot on chip still holds the end of the tile before, here of another item."""
    problem = make_kernel_problem(
        2, 1, 190, 170, 16, window_left=20, window_right=10, cores=3, tiling="single32", layout=name
    )
    arrays = random_arrays(problem)
    expected = forward(tik, execute_nan, problem, *arrays)
    for array in arrays:
        array[0] = np.nan
    found = forward(tik, execute_nan, problem, *arrays)
    for got, wanted in zip(found, expected):
        np.testing.assert_array_equal(got[1], wanted[1])
        assert not np.array_equal(got[0], wanted[0])


def test_head_dims_that_share_blocks_between_heads_are_refused():
    with pytest.raises(ValueError, match="head_dim: got 40 with layout TH, allowed are multiples of 16"):
        make_kernel_problem(1, 1, 16, 16, 40, layout="TH")
    with pytest.raises(ValueError, match="layout: got 'SBH', allowed are BNSD, TH"):
        make_kernel_problem(1, 1, 16, 16, 16, layout="SBH")


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("tensor", ["query", "d_value"])
def test_a_placement_finds_every_row(name, tensor):
    problem = _problem((3, 4, 20, 37, 32), kv_heads=2, layout=name)
    seq, heads = (20, 4) if tensor == "query" else (37, 2)
    array = np.random.default_rng(0).standard_normal((3, heads, seq, 32)).astype(np.float16)
    stored, place = stored_arrays.to_stored(problem, tensor, array), placement(problem, tensor)
    blocks = stored.reshape(-1, 16)
    for b, h, c, r in ((0, 0, 0, 0), (2, 1, 1, seq - 1), (1, heads - 1, 0, 5)):
        number = b * place.batch + h * place.head + c * place.column + r
        assert np.array_equal(blocks[number], array[b, h, r, 16 * c : 16 * c + 16])
        assert number == (b * heads + h) * place.head + b * place.skew + c * place.column + r
    assert np.array_equal(stored_arrays.from_stored(problem, tensor, stored), array)


@pytest.mark.parametrize("tokens", [48, 65600], ids=["one-move", "beyond-the-field"])
def test_rows_of_a_head_are_moved_out_of_and_into_the_matrix(tik, execute, tokens):
    problem = _problem((tokens // 16, 2, 16, 16, 32), layout="TH")
    batch, head, rows, height = tokens // 16 - 1, 1, 5, 16
    matrix = np.random.default_rng(0).standard_normal((tokens, 64)).astype(np.float16)
    shape, instance = layout.nz_shape(tokens, 64), tik.Tik(disable_debug=False)
    gm = {name: instance.Tensor("float16", shape, tik.scope_gm, name) for name in ("query", "output")}
    core = Core(tik, instance, problem, candidates(problem)[0], gm)
    with instance.new_stmt_scope():
        core.allocate([Buffer("rows", "UB", "float16", 2 * height * 16)])
        number = core.scalar("int32", "head", batch * 2 + head)
        start = core.start("query", number, core.batch_of(number))
        core.fill(core.on.rows[0], 0.0, 2 * height * 16)
        with instance.for_range(0, shape[0] * shape[1] // 2) as pair:  # zeros elsewhere
            instance.data_move(gm["output"][pair * 512], core.on.rows[0], 0, 1, 2 * height, 0, 0)
        core.load((core.on.rows[0], 0), "query", start, rows, height)
        core.store("output", start, (core.on.rows[0], 0), rows, height)
    expected = np.zeros_like(matrix)
    where = slice(batch * 16, batch * 16 + rows), slice(head * 32, head * 32 + 32)
    expected[where] = matrix[where]
    instance.BuildCCE(kernel_name="program", inputs=[gm["query"]], outputs=[gm["output"]])
    found = execute(instance, {"query": np.ascontiguousarray(layout.to_nz(matrix))}, ["output"])["output"]
    np.testing.assert_array_equal(layout.from_nz(found, tokens, 64), expected)
