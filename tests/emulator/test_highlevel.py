"""Whole-tensor APIs: values against NumPy, shapes and aliasing, and the instructions they become."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tikemu import numerics
from tikemu.errors import TikAlignError, TikBoundsError, TikParamError, TikUnsupportedError, TikWarning

from tests.emulator.core_bench import CoreBench as Bench
from tests.emulator.core_bench import check, recorded, touched

RNG = np.random.default_rng(3)


def values(dtype, shape, low=-50.0, high=50.0):
    return RNG.uniform(low, high, shape).astype(dtype)


def once(x, dtype):
    """A float64 result rounded once, saturated."""
    if np.dtype(dtype).kind != "f":
        return x.astype(dtype)
    limit = float(np.finfo(dtype).max)
    return np.clip(np.nan_to_num(x, nan=0.0, posinf=limit, neginf=-limit), -limit, limit).astype(dtype)


BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum}


# ----------------------------------------------------------------------------------------------------- element-wise
@pytest.mark.parametrize(
    "name,dtype",
    [
        (name, dtype)
        for name in BINARY
        for dtype in ("float16", "float32", "int32")
        if (name, dtype) != ("div", "int32")
    ],
)
@pytest.mark.parametrize("shape", [(1,), (128,), (5, 128), (3, 7, 16), (20000,)])
@pytest.mark.parametrize("scalar", [False, True])
def test_two_sources(name, dtype, shape, scalar):
    bench = Bench(strict=True)
    x, y = values(dtype, shape), values(dtype, shape, 1, 50)
    number = dtype == "int32" and 7 or -2.5
    src0, dst = bench.tensor("UB", dtype, shape, x), bench.tensor("UB", dtype, shape)
    src1 = number if scalar else bench.tensor("UB", dtype, shape, y)
    ops = bench.call(f"h_{name}", dst, src0, src1)
    expected = once(BINARY[name](x.astype(np.float64), number if scalar else y.astype(np.float64)), dtype)
    np.testing.assert_array_equal(bench.read(dst), expected)
    assert {op.pipe for op in ops} == {"V"}


@pytest.mark.parametrize(
    "name,function", [("exp", np.exp), ("ln", np.log), ("abs", np.abs), ("sin", np.sin), ("cos", np.cos)]
)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.filterwarnings("ignore::tikemu.errors.TikWarning")
def test_one_source(name, function, dtype):
    bench = Bench()
    x = values(dtype, (3, 200), 0.1, 9)
    dst = bench.tensor("UB", dtype, x.shape)
    bench.call(f"h_{name}", dst, bench.tensor("UB", dtype, x.shape, x))
    np.testing.assert_array_equal(bench.read(dst), once(function(x.astype(np.float64)), dtype))


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_trigonometric_functions_are_questionable(name):
    x = recorded("float16", "UB")
    assert "not documented" in check(f"h_{name}", x, x)[0]
    with pytest.raises(TikUnsupportedError):
        check(f"h_{name}", x, x, strict=True)


@pytest.mark.parametrize(
    "source,target,mode",
    [
        ("float16", "float32", "none"),
        ("float32", "float16", "none"),
        ("float32", "int32", "round"),
        ("float32", "int32", "to-zero"),
        ("int32", "float32", "none"),
        ("int32", "float16", "none"),
        ("float16", "int32", "to-zero"),
        ("float16", "int8", "none"),
        ("uint8", "float16", ""),
    ],
)
def test_cast(source, target, mode):
    bench = Bench(strict=True)
    x = values(source, (5, 70), 0, 99)
    src, dst = bench.tensor("UB", source, 350, x), bench.tensor("UB", target, 350)
    bench.call("h_cast", dst, src, mode)
    rounded = {"round": np.rint, "to-zero": np.trunc, "none": np.rint, "": np.rint}[mode](x.astype(np.float64))
    expected = rounded if np.dtype(target).kind in "iu" else x.astype(np.float64)
    np.testing.assert_array_equal(bench.read(dst).reshape(5, 70), expected.astype(target))


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "uint16"])
def test_duplicate(dtype):
    bench = Bench()
    whole = bench.tensor("UB", dtype, (4, 5, 32), np.zeros(640))
    bench.call("h_duplicate", bench.at(whole, 160, (1, 5, 32)), 3)
    expected = np.zeros((4, 5, 32))
    expected[1] = 3
    np.testing.assert_array_equal(bench.read(whole), expected)


@pytest.mark.parametrize("elements", [1, 64, 127, 128, 129, 128 * 255, 128 * 255 + 1, 128 * 400 + 5])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_contiguous_tensors_become_full_repeats_and_a_tail(elements, dtype):
    """vector.md 4.3: ceil(full / 255) instructions and one for the tail."""
    bench = Bench()
    lanes = 128 if dtype == "float16" else 64
    x = bench.tensor("UB", dtype, elements, np.ones(elements))
    ops = bench.bind("h_exp", x, x)
    full, tail = divmod(elements, lanes)
    assert len(ops) == -(-full // 255) + (tail > 0)
    per_repeat = 4 if dtype == "float16" else 2
    assert sum(op.cycles for op in ops) == (full + (tail > 0)) * per_repeat
    assert ops[-1].reads[0].region.end == x.address + elements * np.dtype(dtype).itemsize


def test_casts_use_the_lanes_of_the_wider_type():
    bench = Bench()
    src, dst = bench.tensor("UB", "float16", 1000, np.ones(1000)), bench.tensor("UB", "float32", 1000)
    ops = bench.bind("h_cast", dst, src, "none")
    assert [len(touched(op.reads[0].region)) // 2 for op in ops] == [960, 40]


# ------------------------------------------------------------------------------------------------------------ slices
@pytest.mark.parametrize(
    "rows,columns,pitch,count", [(9, 100, 112, 1), (300, 16, 48, 2), (9, 200, 208, 18), (3, 16, 256 * 16, 3)]
)
def test_strided_slices(rows, columns, pitch, count):
    """One instruction for rows that fit a repeat, else one run of instructions per row."""
    bench = Bench()
    whole = bench.tensor("UB", "float16", (rows, pitch), values("float16", (rows, pitch)))
    before = bench.read(whole)
    view = bench.at(whole, 0, (rows, columns), (pitch, 1))
    ops = bench.call("h_mul", view, view, 3.0)
    expected = before.copy()
    expected[:, :columns] = (before[:, :columns].astype(np.float64) * 3).astype(np.float16)
    np.testing.assert_array_equal(bench.read(whole), expected)
    assert len(ops) == count


def test_slices_of_three_axes():
    bench = Bench()
    x, y = values("float16", (3, 4, 32)), values("float16", (2, 3, 16))
    whole = bench.tensor("UB", "float16", x.shape, x)
    other = bench.tensor("UB", "float16", y.shape, y)
    view = bench.at(whole, 32 + 16, (2, 3, 16), (128, 32, 1))
    bench.call("h_add", view, view, other)
    expected = x.copy()
    expected[:2, 1:, 16:] = (x[:2, 1:, 16:].astype(np.float32) + y).astype(np.float16)
    np.testing.assert_array_equal(bench.read(whole), expected)


def test_ranks_may_differ_in_axes_of_extent_one():
    bench = Bench()
    x = values("float16", (4, 6, 16))
    s, row = bench.tensor("UB", "float16", x.shape, x), bench.tensor("UB", "float16", (6, 16), np.ones(96))
    bench.call("h_sub", bench.at(s, 96, (1, 6, 16)), bench.at(s, 96, (1, 6, 16)), row)
    np.testing.assert_array_equal(bench.read(s)[1], (x[1].astype(np.float32) - 1).astype(np.float16))
    np.testing.assert_array_equal(bench.read(s)[2], x[2])


def test_shapes_must_agree():
    with pytest.raises(TikParamError, match=r"equal shapes.*dst \(4, 16\), src0 \(4, 16\), src1 \(16,\)"):
        check(
            "h_add",
            recorded("float16", "UB", shape=(4, 16)),
            recorded("float16", "UB", shape=(4, 16)),
            recorded("float16", "UB", shape=(16,)),
        )
    check("h_add", recorded("float16", "UB", shape=(1, 64)), recorded("float16", "UB", shape=(64, 1)), 1.0)
    bench = Bench()
    with pytest.raises(TikParamError, match="equal shapes"):
        bench.call("h_exp", bench.tensor("UB", "float16", 32), bench.tensor("UB", "float16", 48))


def test_a_source_may_be_the_destination_but_not_overlap_it():
    bench = Bench()
    x = bench.tensor("UB", "float16", 320, np.arange(320))
    first, second = bench.at(x, 0, (160,)), bench.at(x, 160, (160,))
    bench.call("h_add", first, first, second)
    np.testing.assert_array_equal(bench.read(first), np.arange(160) * 2 + 160)
    with pytest.raises(TikParamError, match="overlap in part"):
        bench.call("h_add", first, second, bench.at(x, 16, (160,)))
    floats = replace(bench.at(x, 0, (160,)), dtype="float32")
    with pytest.raises(TikParamError, match="overlap in part"):
        bench.call("h_cast", bench.at(x, 0, (160,)), floats, "none")


def test_rows_must_start_at_blocks():
    bench = Bench()
    x = bench.tensor("UB", "float16", (4, 40), np.ones(160))
    with pytest.raises(TikAlignError, match="80 bytes apart"):
        bench.call("h_exp", bench.at(x, 0, (4, 10), (40, 1)), bench.at(x, 0, (4, 10), (40, 1)))
    with pytest.raises(TikAlignError):
        bench.call("h_exp", bench.at(x, 8, (16,)), bench.at(x, 8, (16,)))


@pytest.mark.parametrize(
    "name,args",
    [
        ("h_div", [("int32", "UB")] * 3),
        ("h_add", [("int16", "UB")] * 3),
        ("h_exp", [("int32", "UB")] * 2),
        ("h_add", [("float16", "L1")] * 3),
        ("h_abs", [("int8", "UB")] * 2),
    ],
)
def test_types(name, args):
    with pytest.raises(TikParamError):
        check(name, *(recorded(dtype, memory) for dtype, memory in args))


def test_cast_pairs_and_modes_are_checked():
    with pytest.raises(TikUnsupportedError, match="round_mode"):
        check("h_cast", recorded("float32", "UB"), recorded("float16", "UB"), "floor")
    with pytest.raises(TikUnsupportedError):
        check("h_cast", recorded("int16", "UB"), recorded("float16", "UB"), "none")
    check("h_cast", dst=recorded("float16", "UB"), src=recorded("int32", "UB"), round_mode="none")


# --------------------------------------------------------------------------------------------------- compare, select
@pytest.mark.parametrize(
    "mode,function",
    [
        ("LT", np.less),
        ("GT", np.greater),
        ("GE", np.greater_equal),
        ("LE", np.less_equal),
        ("EQ", np.equal),
        ("NE", np.not_equal),
    ],
)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("elements", [256, 100, 1])
@pytest.mark.parametrize("scalar", [False, True])
def test_compare_and_select(mode, function, dtype, elements, scalar):
    bench = Bench(strict=True)
    x, y = (RNG.integers(-3, 3, elements).astype(dtype) for _ in range(2))
    src0 = bench.tensor("UB", dtype, elements, x)
    src1 = 1.0 if scalar else bench.tensor("UB", dtype, elements, y)
    mask = bench.tensor("UB", "uint8", -(-elements // 8))
    bench.call("h_cmpv", mask, src0, src1, mode)
    chosen = function(x, 1.0 if scalar else y)
    np.testing.assert_array_equal(np.unpackbits(bench.read(mask), bitorder="little")[:elements], chosen)
    dst = bench.tensor("UB", dtype, elements)
    bench.call("h_sel", dst, src0, src1, mask)
    np.testing.assert_array_equal(bench.read(dst), np.where(chosen, x, 1.0 if scalar else y))


def test_select_and_compare_are_checked():
    x, mask = recorded("float16", "UB"), recorded("uint16", "UB")
    check("h_cmpv", mask, x, x, "GT")
    with pytest.raises(TikParamError, match="cmp_mode"):
        check("h_cmpv", mask, x, x, "gt")
    with pytest.raises(TikParamError, match="mask_tensor"):
        check("h_cmpv", x, x, x, "GT")
    bench = Bench()
    data, small = bench.tensor("UB", "float16", 256, np.ones(256)), bench.tensor("UB", "uint16", 15)
    with pytest.raises(TikParamError, match="256 bits"):
        bench.call("h_cmpv", small, data, data, "GT")


# -------------------------------------------------------------------------------------------------------------- copy
@pytest.mark.parametrize(
    "source,target,pipe",
    [
        ("GM", "UB", "MTE2"),
        ("UB", "GM", "MTE3"),
        ("UB", "UB", "V"),
        ("GM", "L1", "MTE2"),
        ("UB", "L1", "MTE3"),
        ("L1", "UB", "MTE1"),
    ],
)
def test_data_move_of_slices(source, target, pipe):
    bench = Bench(strict=True)
    x = values("float16", (6, 5, 48))
    src, dst = bench.tensor(source, "float16", x.shape, x), bench.tensor(target, "float16", (2, 3, 16))
    ops = bench.call("h_data_move", dst, bench.at(src, 240 * 2 + 48 + 16, (2, 3, 16), (240, 48, 1)))
    np.testing.assert_array_equal(bench.read(dst), x[2:4, 1:4, 16:32])
    assert [op.pipe for op in ops] == [pipe] * 2


def test_data_move_of_whole_tensors_is_one_burst():
    bench = Bench(strict=True)
    x = values("float32", (4, 64))
    gm, ub = bench.tensor("GM", "float32", x.shape, x), bench.tensor("UB", "float32", 256)
    (op,) = bench.call("h_data_move", ub, gm)
    np.testing.assert_array_equal(bench.read(ub), x.reshape(-1))
    assert (op.transfer.bursts, op.transfer.burst_bytes) == (1, 1024)
    out = bench.tensor("GM", "float32", (8, 64), np.zeros((8, 64)))
    bench.call("h_data_move", bench.at(out, 64 * 3, (4, 32), (64, 1)), bench.at(ub, 0, (4, 32)))
    np.testing.assert_array_equal(bench.read(out)[3:7, :32], x.reshape(-1)[:128].reshape(4, 32))


def test_data_move_is_checked():
    with pytest.raises(TikParamError, match="number of elements"):
        check("h_data_move", recorded("float16", "UB", shape=(32,)), recorded("float16", "GM", shape=(48,)))
    with pytest.raises(TikParamError, match="dtype"):
        check("h_data_move", recorded("float32", "UB"), recorded("float16", "GM"))
    with pytest.raises(TikUnsupportedError):
        check("h_data_move", recorded("float16", "GM"), recorded("float16", "GM"))
    bench = Bench()
    gm, ub = bench.tensor("GM", "float16", (4, 40), np.ones(160)), bench.tensor("UB", "float16", (4, 16))
    with pytest.raises(TikAlignError, match="whole blocks"):
        bench.call("h_data_move", bench.at(ub, 0, (4, 10), (16, 1)), bench.at(gm, 0, (4, 10), (40, 1)))
    with pytest.warns(TikWarning, match="20 bytes are copied as whole blocks, 32 bytes"):
        bench.call("h_data_move", bench.at(ub, 0, (10,)), bench.at(gm, 0, (10,)))


# -------------------------------------------------------------------------------------------------------- reductions
def tree(row, dtype):
    """D11a: adjacent pairs inside repeats, then over the sums of the repeats; every node rounded and saturated."""
    lanes = 256 // np.dtype(dtype).itemsize
    row = list(np.asarray(row, np.float64))
    while True:
        sums = []
        for first in range(0, len(row), lanes):
            nodes = row[first : first + lanes] + [0.0] * (lanes - len(row[first : first + lanes]))
            while len(nodes) > 1:
                nodes = [float(once(np.float64(a + b), dtype)) for a, b in zip(nodes[0::2], nodes[1::2])]
            sums += nodes
        row = sums
        if len(row) == 1:
            return row[0]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("shape", [(1, 16), (20, 16), (300, 32), (7, 100), (5, 128), (6, 500), (2, 20000)])
def test_reduce_sum_of_rows_is_the_documented_tree(dtype, shape):
    bench = Bench(strict=True)
    pitch = -(-shape[1] // 16) * 16
    x = values(dtype, shape)
    src = bench.at(bench.tensor("UB", dtype, (shape[0], pitch)), 0, shape, (pitch, 1))
    bench.store(src, x)
    dst = bench.tensor("UB", dtype, shape[0])
    bench.call("h_reduce_sum", dst, src, 1)
    np.testing.assert_array_equal(bench.read(dst), [tree(row, dtype) for row in x])


@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.parametrize("name,function", [("max", np.max), ("min", np.min)])
@pytest.mark.parametrize(
    "shape", [(1, 16), (20, 16), (7, 8), (300, 32), (13, 100), (5, 128), (6, 500), (9, 31), (2100, 16), (3, 5)]
)
def test_reduce_max_and_min_of_rows(dtype, name, function, shape):
    bench = Bench(strict=True)
    pitch = -(-shape[1] // 16) * 16
    x = values(dtype, shape)
    src = bench.at(bench.tensor("UB", dtype, (shape[0], pitch)), 0, shape, (pitch, 1))
    bench.store(src, x)
    dst = bench.tensor("UB", dtype, shape[0])
    bench.call(f"h_reduce_{name}", dst, src, axis=(1))
    np.testing.assert_array_equal(bench.read(dst), function(x, axis=1))


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
def test_reduce_along_any_axis(dtype, shape, axis):
    bench = Bench(strict=True)
    x = RNG.integers(-20, 20, shape).astype(dtype)
    src = bench.tensor("UB", dtype, shape, x)
    for name, function in (("sum", np.sum), ("max", np.max), ("min", np.min)):
        expected = function(x.astype(np.float64), axis=axis)
        dst = bench.tensor("UB", dtype, expected.shape)
        bench.call(f"h_reduce_{name}", dst, src, axis)
        np.testing.assert_array_equal(bench.read(dst), expected)
    if dtype == "float16":
        dst = bench.tensor("UB", "int32", expected.shape)
        bench.call("h_reduce_argmax", dst, src, axis)
        np.testing.assert_array_equal(bench.read(dst), np.argmax(x, axis=axis))


@pytest.mark.parametrize("shape", [(20, 16), (5, 128), (4, 300), (1, 2000)])
@pytest.mark.parametrize("index", ["int32", "uint16"])
def test_reduce_argmax_takes_the_lowest_index(shape, index):
    bench = Bench(strict=True)
    pitch = -(-shape[1] // 16) * 16
    x = RNG.integers(-4, 4, shape).astype(np.float16)
    x[0, shape[1] * 2 // 3], x[0, -1] = 5, 5  # the largest twice, and not in the first repeat of a long row
    src = bench.at(bench.tensor("UB", "float16", (shape[0], pitch)), 0, shape, (pitch, 1))
    bench.store(src, x)
    dst = bench.tensor("UB", index, shape[0])
    bench.call("h_reduce_argmax", dst, src, 1)
    np.testing.assert_array_equal(bench.read(dst), np.argmax(x, axis=1))


def test_sums_along_the_first_axis_pair_adjacent_rows():
    bench = Bench()
    x = values("float16", (5, 16), 1000, 3000)
    src, dst = bench.tensor("UB", "float16", x.shape, x), bench.tensor("UB", "float16", 16)
    bench.call("h_reduce_sum", dst, src, 0)

    def add(a, b):
        return once(a.astype(np.float64) + b, "float16")

    np.testing.assert_array_equal(bench.read(dst), add(add(add(x[0], x[1]), add(x[2], x[3])), x[4]))


def test_sixteen_wide_rows_need_one_block_reduction():
    """The hand-lowered equivalent: vcgmax over M / 8 repeats (vector.md 4.3)."""
    bench = Bench()
    src, dst = bench.tensor("UB", "float16", (64, 16), np.ones(1024)), bench.tensor("UB", "float16", 64)
    (op,) = bench.bind("h_reduce_max", dst, src, 1)
    (by_hand,) = bench.bind("vcgmax", 128, dst, src, 8, 1, 1, 8)
    assert op.name == "h_reduce_max.vcgmax"
    assert op.cycles == by_hand.cycles


def test_reductions_are_checked():
    src = recorded("float16", "UB", shape=(8, 32))
    check("h_reduce_max", recorded("float16", "UB", shape=(8,)), src, 1)
    with pytest.raises(TikParamError, match="without axis 1"):
        check("h_reduce_max", recorded("float16", "UB", shape=(32,)), src, 1)
    with pytest.raises(TikParamError, match="axis must be one int"):
        check("h_reduce_max", recorded("float16", "UB", shape=(8,)), src, 2)
    with pytest.raises(TikUnsupportedError):
        check("h_reduce_argmax", recorded("int32", "UB", shape=(8,)), recorded("float32", "UB", shape=(8, 32)), 1)
    bench = Bench()
    x = bench.tensor("UB", "float16", (4, 40), np.ones(160))
    with pytest.raises(TikAlignError, match="80 bytes apart"):
        bench.call("h_reduce_sum", bench.tensor("UB", "float16", 4), x, 1)
    with pytest.raises(TikParamError, match="overlap"):
        bench.call("h_reduce_max", bench.at(x, 0, (32,)), bench.at(x, 0, (4, 32)), 0)
    with pytest.raises(TikBoundsError):
        bench.call("h_exp", bench.at(x, 0, (32768,)), bench.at(x, 0, (32768,)))


def test_reference_tree_agrees_with_numerics():
    x = values("float32", (64,))
    assert tree(x, "float32") == numerics.tree_sum(x, 6, False)[0]
