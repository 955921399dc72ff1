"""High-level copies and reductions."""

import numpy as np
import pytest
from tikemu.errors import TikAlignError, TikBoundsError, TikParamError

from emulator.tests.support.arrays import PLAIN_PATHS, RNG, once, values
from emulator.tests.support.naive_values import sums_of_groups


@pytest.mark.parametrize("source,target,pipe", PLAIN_PATHS)
def test_data_move_of_slices(strict, bench, source, target, pipe):
    x = values("float16", (6, 5, 48))
    src, dst = bench.tensor(source, "float16", x.shape, x), bench.tensor(target, "float16", (2, 3, 16))
    ops = bench.call("h_data_move", dst, src.at(240 * 2 + 48 + 16, (2, 3, 16), (240, 48, 1)))
    np.testing.assert_array_equal(dst.values, x[2:4, 1:4, 16:32])
    assert [op.pipe for op in ops] == [pipe] * 2


def test_data_move_of_whole_tensors_is_one_burst(strict, bench):
    x = values("float32", (4, 64))
    gm, ub = bench.tensor("GM", "float32", x.shape, x), bench.tensor("UB", "float32", 256)
    (op,) = bench.call("h_data_move", ub, gm)
    np.testing.assert_array_equal(ub.values, x.reshape(-1))
    assert (op.transfer.bursts, op.transfer.burst_bytes) == (1, 1024)
    out = bench.tensor("GM", "float32", (8, 64), np.zeros((8, 64)))
    bench.call("h_data_move", out.at(64 * 3, (4, 32), (64, 1)), ub.at(0, (4, 32)))
    np.testing.assert_array_equal(out.values[3:7, :32], x.reshape(-1)[:128].reshape(4, 32))


def test_data_move_copies_whole_blocks(bench):
    gm, ub = bench.tensor("GM", "float16", (4, 40), np.ones(160)), bench.tensor("UB", "float16", (4, 16))
    bench.refuses(TikAlignError, "whole blocks", "h_data_move", ub.at(0, (4, 10), (16, 1)), gm.at(0, (4, 10), (40, 1)))
    bench.warns("20 bytes are copied as whole blocks, 32 bytes", "h_data_move", ub.at(0, (10,)), gm.at(0, (10,)))


def padded_rows(bench, x):
    """Return a matrix with rows that start at blocks."""
    pitch = -(-x.shape[1] // 16) * 16
    src = bench.tensor("UB", x.dtype.name, (x.shape[0], pitch)).at(0, x.shape, (pitch, 1))
    src.store(x)
    return src


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(1, 16), (20, 16), (300, 32), (7, 100), (5, 128), (6, 500), (2, 20000)])
def test_reduce_sum_of_rows_is_the_documented_tree(strict, bench, dtype, shape):
    """D11a: adjacent pairs inside repeats are added, then adjacent sums. Each node is rounded and saturated."""
    lanes = 256 // np.dtype(dtype).itemsize
    x = values(dtype, shape)
    dst = bench.tensor("UB", dtype, shape[0])
    bench.call("h_reduce_sum", dst, padded_rows(bench, x), 1)
    np.testing.assert_array_equal(dst.values, [sums_of_groups(row.tolist(), lanes, dtype) for row in x])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name,function", [("max", np.max), ("min", np.min)])
@pytest.mark.parametrize(
    "shape", [(1, 16), (20, 16), (7, 8), (300, 32), (13, 100), (5, 128), (6, 500), (9, 31), (2100, 16), (3, 5)]
)
def test_reduce_max_and_min_of_rows(strict, bench, dtype, name, function, shape):
    x = values(dtype, shape)
    dst = bench.tensor("UB", dtype, shape[0])
    bench.call(f"h_reduce_{name}", dst, padded_rows(bench, x), axis=(1))
    np.testing.assert_array_equal(dst.values, function(x, axis=1))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize(
    "shape,axis",
    [
        ((7, 48), 0),
        ((1, 32), 0),
        ((16, 160), 0),
        ((3, 5, 16), 1),
        ((3, 5, 16), 0),
        ((2, 3, 16), 2),
        ((2, 3, 16), -1),
        ((1, 6, 32), 1),
    ],
)
def test_reduce_along_any_axis(strict, bench, dtype, shape, axis):
    x = RNG.integers(-20, 20, shape).astype(dtype)
    src = bench.tensor("UB", dtype, shape, x)
    for name, function in (("sum", np.sum), ("max", np.max), ("min", np.min)):
        expected = function(x.astype(np.float64), axis=axis)
        dst = bench.tensor("UB", dtype, expected.shape)
        bench.call(f"h_reduce_{name}", dst, src, axis)
        np.testing.assert_array_equal(dst.values, expected)
    if dtype == "float16":
        dst = bench.tensor("UB", "int32", expected.shape)
        bench.call("h_reduce_argmax", dst, src, axis)
        np.testing.assert_array_equal(dst.values, np.argmax(x, axis=axis))


@pytest.mark.parametrize("shape", [(20, 16), (5, 128), (4, 300), (1, 2000)])
@pytest.mark.parametrize("index", ["int32", "uint16"])
def test_reduce_argmax_takes_the_lowest_index(strict, bench, shape, index):
    x = RNG.integers(-4, 4, shape).astype(np.float16)
    x[0, shape[1] * 2 // 3], x[0, -1] = 5, 5  # the largest twice, and not in the first repeat of a long row
    dst = bench.tensor("UB", index, shape[0])
    bench.call("h_reduce_argmax", dst, padded_rows(bench, x), 1)
    np.testing.assert_array_equal(dst.values, np.argmax(x, axis=1))


def test_sums_along_the_first_axis_pair_adjacent_rows(bench):
    x = values("float16", (5, 16), 1000, 3000)
    src, dst = bench.tensor("UB", "float16", x.shape, x), bench.tensor("UB", "float16", 16)
    bench.call("h_reduce_sum", dst, src, 0)

    def add(a, b):
        return once(a.astype(np.float64) + b, "float16")

    np.testing.assert_array_equal(dst.values, add(add(add(x[0], x[1]), add(x[2], x[3])), x[4]))


def test_sixteen_wide_rows_need_one_block_reduction(bench):
    """The call becomes vcgmax over M / 8 repeats, as written by hand (vector.md 4.3)."""
    src, dst = bench.tensor("UB", "float16", (64, 16), np.ones(1024)), bench.tensor("UB", "float16", 64)
    (op,) = bench.bind("h_reduce_max", dst, src, 1)
    (by_hand,) = bench.bind("vcgmax", 128, dst, src, 8, 1, 1, 8)
    assert op.name == "h_reduce_max.vcgmax"
    assert op.cycles == by_hand.cycles


def test_rows_and_bounds_of_reductions(bench):
    x = bench.tensor("UB", "float16", (4, 40), np.ones(160))
    bench.refuses(TikAlignError, "80 bytes apart", "h_reduce_sum", bench.tensor("UB", "float16", 4), x, 1)
    bench.refuses(TikParamError, "overlap", "h_reduce_max", x.at(0, (32,)), x.at(0, (4, 32)), 0)
    bench.refuses(TikBoundsError, None, "h_exp", x.at(0, (32768,)), x.at(0, (32768,)))
