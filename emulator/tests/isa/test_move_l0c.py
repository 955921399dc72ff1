"""Moves between L0C and the Unified Buffer, broadcasts into L0C, and atomic addition."""

import numpy as np
import pytest
from tikemu.errors import TikAlignError, TikUnsupportedArgumentError, TikUnsupportedError

from emulator.tests.support.arrays import PLAIN_PATHS, RNG, bytes_of
from emulator.tests.support.bench import Runtime, call_views, check, refuses

#: float32 values, and what float16 makes of them: ties to even, saturation, NaN to 0; worked out by hand.
ROUNDED = (
    (0.5 + 2.0**-12, 0.5),
    (0.5 + 3 * 2.0**-12, 0.5 + 2.0**-10),
    (65504, 65504),
    (65519.996, 65504),
    (65520, 65504),
    (-1e30, -65504),
    (np.inf, 65504),
    (-np.inf, -65504),
    (np.nan, 0),
    (2.0**-25, 0),
    (2.0**-24, 2.0**-24),
    (3 * 2.0**-25, 2.0**-23),
    (-0.0, -0.0),
    (1 + 2.0**-11, 1),
    (1 + 3 * 2.0**-11, 1 + 2.0**-9),
    (0, 0),
)
EDGES = np.array([value for value, _ in ROUNDED], np.float32)
EDGES_AS_HALF = np.array([half for _, half in ROUNDED], np.float16)


def accumulator(bench, dtype, fractals):
    """Return random sums in L0C; float32 ones begin with values at the borders of float16."""
    values = RNG.standard_normal(fractals * 256) * 100
    if dtype == "float32":
        values[:16] = EDGES
    return bench.tensor("L0C", dtype, fractals * 256, values.astype(dtype))


@pytest.mark.parametrize(
    "nburst,burst,src_stride,dst_stride", [(1, 1, 0, 0), (1, 6, 0, 0), (3, 2, 1, 0), (2, 3, 0, 4), (2, 1, 2, 3)]
)
@pytest.mark.parametrize(
    "source,target,options",
    [
        ("float32", "float32", {}),
        ("float16", "float16", {}),
        ("int32", "int32", {}),
        ("float32", "float16", {}),
        ("int32", "float16", {"deqscale": -0.37}),
        ("float16", "float16", {"deqscale": 3.0}),
        ("float32", "float32", {"relu": True}),
        ("float32", "float16", {"relu": True}),
        ("int32", "int32", {"relu": True}),
    ],
)
def test_tensor_mov_matrix_mode(bench, nburst, burst, src_stride, dst_stride, source, target, options):
    src = accumulator(bench, source, 10)
    dst = bench.tensor("UB", target, 10 * 256, np.full(2560, 7))
    (op,) = bench.agree("tensor_mov", dst, src, "m", nburst, burst, dst_stride, src_stride, **options)
    assert op.pipe == "V"
    assert op.cycles == nburst * burst * 256 * np.dtype(source).itemsize / 256


def test_conversion_rounds_to_even_and_saturates(bench):
    src, dst = accumulator(bench, "float32", 1), bench.tensor("UB", "float16", 256)
    bench.call("data_move", dst, src, 0, 1, 1, 0, 0, 1)
    np.testing.assert_array_equal(dst.values[:16], EDGES_AS_HALF)
    assert np.signbit(dst.values[12])


@pytest.mark.parametrize(
    "source,target,extra",
    [("float32", "float32", ()), ("float16", "float16", ()), ("float32", "float16", (1,)), ("int32", "int32", ())],
)
def test_data_move_from_l0c_counts_fractals_and_takes_src_stride_first(bench, source, target, extra):
    src, dst = accumulator(bench, source, 8), bench.tensor("UB", target, 8 * 256, np.full(2048, 7))
    bench.agree("data_move", dst, src, 0, 2, 2, 1, 3, *extra)


def test_tensor_mov_vector_mode_packs_first_rows(bench):
    src, dst = accumulator(bench, "float32", 6), bench.tensor("UB", "float32", 128, np.full(128, 7))
    bench.agree("tensor_mov", dst, src, "v", 6, 1, 0, 0)
    np.testing.assert_array_equal(dst.values[:96].reshape(6, 16), src.values.reshape(6, 16, 16)[:, 0])
    bench.agree("tensor_mov", dst, src, "v", 3, 1, 1, 1)
    for burst in (2, Runtime(2)):
        bench.refuses(TikUnsupportedError, "burst 1 only", "tensor_mov", dst, src, "v", 1, burst, 0, 0)


@pytest.mark.parametrize("source,target,pipe", PLAIN_PATHS)
def test_tensor_mov_normal_mode_takes_dst_stride_first(bench, source, target, pipe):
    src = bench.tensor(source, "int32", 512, np.arange(512))
    dst = bench.tensor(target, "int32", 512, np.full(512, -1))
    (op,) = bench.agree("tensor_mov", dst, src, "", 3, 2, 5, 1)
    assert op.pipe == pipe


@pytest.mark.parametrize("path", ["GM UB", "UB GM", "GM L1", "L1 UB", "UB L1", "UB UB", "UB L0C"])
@pytest.mark.parametrize("mode", [0, 1])
def test_the_8th_argument_of_other_moves(path, mode):
    """No page gives it a meaning there: it has no effect, with a warning, and strict mode refuses it (D22a)."""
    source, target = path.split()
    views = call_views("float16", "float16", target, source)
    assert any(
        f"{mode} has no effect from {source} to {target}" in said
        for said in check("data_move", *views, 0, 1, 1, 0, 0, mode)
    )
    assert not check("data_move", *views, 0, 1, 1, 0, 0, None)
    refuses(TikUnsupportedArgumentError, "8th", "data_move", *views, 0, 1, 1, 0, 0, mode, strict=True)
    refuses(TikUnsupportedArgumentError, "8th, 0 or 1", "data_move", *views, 0, 1, 1, 0, 0, 2)


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
@pytest.mark.parametrize("nburst,burst_len,src_gap,dst_gap", [(1, 1, 0, 0), (1, 5, 0, 0), (3, 1, 1, 2), (2, 2, 3, 1)])
def test_broadcast_ub_to_l0c(bench, dtype, nburst, burst_len, src_gap, dst_gap):
    src, dst = bench.tensor("UB", dtype, 256, bytes_of(dtype, 256)), bench.tensor("L0C", dtype, 12 * 256)
    (op,) = bench.agree("broadcast_ub_to_l0c", dst, src, nburst, burst_len, src_gap, dst_gap)
    assert op.pipe == "V"
    assert op.cycles == nburst * burst_len * np.dtype(dtype).itemsize


def test_operands_of_a_broadcast(bench):
    dst, src = bench.tensor("L0C", "float32", 512), bench.tensor("UB", "float32", 16)
    bench.refuses(TikAlignError, "1024", "broadcast_ub_to_l0c", Runtime(dst.at(128)), src, 1, 1, 0, 0)


def test_atomic_add_accumulates_float32_with_saturation(bench):
    start = np.array([1, 1e8, 3.4e38, -3.4e38, 2**24, 0, 0, 0], np.float32)
    add = np.array([2, 1, 3.4e38, -3.4e38, 1, -0.5, 0, 7], np.float32)
    gm, ub = bench.tensor("GM", "float32", 8, start), bench.tensor("UB", "float32", 8, add)
    for value in (1, "float32"):
        gm.store(start)
        bench.agree("set_atomic_add", value)
        (op,) = bench.agree("data_move", gm, ub, 0, 1, 1, 0, 0)
        assert op.transfer.direction == "atomic"
        largest = np.finfo(np.float32).max
        np.testing.assert_array_equal(
            gm.values, np.array([3, 100000001, largest, -largest, 2**24, -0.5, 0, 7], np.float32)
        )
    bench.agree("set_atomic_add", 0)
    bench.agree("data_move", gm, ub, 0, 1, 1, 0, 0)
    np.testing.assert_array_equal(gm.values, add)


def test_atomic_add_concerns_moves_from_ub_to_global_memory_only(bench):
    bench.call("set_atomic_add", 1)
    ub = bench.tensor("UB", "float16", 16, np.ones(16))
    gm = bench.tensor("GM", "float16", 16, np.full(16, 2))
    bench.call("data_move", ub, gm, 0, 1, 1, 0, 0)
    np.testing.assert_array_equal(ub.values, np.full(16, 2))
    bench.refuses(TikUnsupportedError, "float32 only, got float16", "data_move", gm, ub, 0, 1, 1, 0, 0)
    for dtype in ("float16", "float32"):
        l1, target = bench.tensor("L1", dtype, 16, np.full(16, 5)), bench.tensor("GM", dtype, 16, np.full(16, 2))
        bench.call("data_move", target, l1, 0, 1, 1, 0, 0)
        np.testing.assert_array_equal(target.values[:8], np.full(8, 5))
    bench.call("set_atomic_add", 0)
    bench.call("data_move", gm, ub, 0, 1, 1, 0, 0)
