"""Whole-tensor APIs: values against NumPy, shapes and aliasing, and the instructions they become."""

from dataclasses import replace

import numpy as np
import pytest
from tikemu.errors import TikAlignError, TikParamError, TikUnsupportedError

from emulator.tests.support.arrays import RNG, once, values
from emulator.tests.support.bench import Runtime, check, recorded, refuses, touched

BINARY = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide, "max": np.maximum, "min": np.minimum}


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
def test_two_sources(strict, bench, name, dtype, shape, scalar):
    x, y = values(dtype, shape), values(dtype, shape, 1, 50)
    number = dtype == "int32" and 7 or -2.5
    src0, dst = bench.tensor("UB", dtype, shape, x), bench.tensor("UB", dtype, shape)
    src1 = number if scalar else bench.tensor("UB", dtype, shape, y)
    ops = bench.call(f"h_{name}", dst, src0, src1)
    expected = once(BINARY[name](x.astype(np.float64), number if scalar else y.astype(np.float64)), dtype)
    np.testing.assert_array_equal(dst.values, expected)
    assert {op.pipe for op in ops} == {"V"}


@pytest.mark.parametrize(
    "name,function", [("exp", np.exp), ("ln", np.log), ("abs", np.abs), ("sin", np.sin), ("cos", np.cos)]
)
@pytest.mark.parametrize("dtype", ["float16", "float32"])
@pytest.mark.filterwarnings("ignore::tikemu.errors.TikWarning")
def test_one_source(bench, name, function, dtype):
    x = values(dtype, (3, 200), 0.1, 9)
    dst = bench.tensor("UB", dtype, x.shape)
    bench.call(f"h_{name}", dst, bench.tensor("UB", dtype, x.shape, x))
    np.testing.assert_array_equal(dst.values, once(function(x.astype(np.float64)), dtype))


@pytest.mark.parametrize("name", ["sin", "cos"])
def test_trigonometric_functions_are_questionable(name):
    x = recorded("float16", "UB")
    assert "not documented" in check(f"h_{name}", x, x)[0]
    refuses(TikUnsupportedError, None, f"h_{name}", x, x, strict=True)


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
def test_cast(strict, bench, source, target, mode):
    x = values(source, (5, 70), 0, 99)
    src, dst = bench.tensor("UB", source, 350, x), bench.tensor("UB", target, 350)
    bench.call("h_cast", dst, src, mode)
    rounded = {"round": np.rint, "to-zero": np.trunc, "none": np.rint, "": np.rint}[mode](x.astype(np.float64))
    expected = rounded if np.dtype(target).kind in "iu" else x.astype(np.float64)
    np.testing.assert_array_equal(dst.values.reshape(5, 70), expected.astype(target))


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32", "uint16"])
def test_duplicate(bench, dtype):
    whole = bench.tensor("UB", dtype, (4, 5, 32), np.zeros(640))
    bench.call("h_duplicate", whole.at(160, (1, 5, 32)), 3)
    expected = np.zeros((4, 5, 32))
    expected[1] = 3
    np.testing.assert_array_equal(whole.values, expected)


@pytest.mark.parametrize("elements", [1, 64, 127, 128, 129, 128 * 255, 128 * 255 + 1, 128 * 400 + 5])
@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_contiguous_tensors_become_full_repeats_and_a_tail(bench, elements, dtype):
    """A call becomes ceil(full / 255) instructions and one for the tail (vector.md 4.3)."""
    lanes = 128 if dtype == "float16" else 64
    x = bench.tensor("UB", dtype, elements, np.ones(elements))
    ops = bench.bind("h_exp", x, x)
    full, tail = divmod(elements, lanes)
    assert len(ops) == -(-full // 255) + (tail > 0)
    per_repeat = 4 if dtype == "float16" else 2
    assert sum(op.cycles for op in ops) == (full + (tail > 0)) * per_repeat
    assert ops[-1].reads[0].region.end == x.address + elements * np.dtype(dtype).itemsize


def test_casts_use_the_lanes_of_the_wider_type(bench):
    src, dst = bench.tensor("UB", "float16", 1000, np.ones(1000)), bench.tensor("UB", "float32", 1000)
    ops = bench.bind("h_cast", dst, src, "none")
    assert [len(touched(op.reads[0].region)) // 2 for op in ops] == [960, 40]


@pytest.mark.parametrize(
    "rows,columns,pitch,count", [(9, 100, 112, 1), (300, 16, 48, 2), (9, 200, 208, 18), (3, 16, 256 * 16, 3)]
)
def test_strided_slices(bench, rows, columns, pitch, count):
    """Rows that fit a repeat take one instruction; longer rows take one run of instructions each."""
    whole = bench.tensor("UB", "float16", (rows, pitch), values("float16", (rows, pitch)))
    before = whole.values
    view = whole.at(0, (rows, columns), (pitch, 1))
    ops = bench.call("h_mul", view, view, 3.0)
    expected = before.copy()
    expected[:, :columns] = (before[:, :columns].astype(np.float64) * 3).astype(np.float16)
    np.testing.assert_array_equal(whole.values, expected)
    assert len(ops) == count


def test_slices_of_three_axes(bench):
    x, y = values("float16", (3, 4, 32)), values("float16", (2, 3, 16))
    whole = bench.tensor("UB", "float16", x.shape, x)
    other = bench.tensor("UB", "float16", y.shape, y)
    view = whole.at(32 + 16, (2, 3, 16), (128, 32, 1))
    bench.call("h_add", view, view, other)
    expected = x.copy()
    expected[:2, 1:, 16:] = (x[:2, 1:, 16:].astype(np.float32) + y).astype(np.float16)
    np.testing.assert_array_equal(whole.values, expected)


def test_ranks_may_differ_in_axes_of_extent_one(bench):
    x = values("float16", (4, 6, 16))
    s, row = bench.tensor("UB", "float16", x.shape, x), bench.tensor("UB", "float16", (6, 16), np.ones(96))
    bench.call("h_sub", s.at(96, (1, 6, 16)), s.at(96, (1, 6, 16)), row)
    np.testing.assert_array_equal(s.values[1], (x[1].astype(np.float32) - 1).astype(np.float16))
    np.testing.assert_array_equal(s.values[2], x[2])


def test_shapes_must_agree(bench):
    with pytest.raises(TikParamError, match=r"equal shapes.*dst \(4, 16\), src0 \(4, 16\), src1 \(16,\)"):
        check(
            "h_add",
            recorded("float16", "UB", shape=(4, 16)),
            recorded("float16", "UB", shape=(4, 16)),
            recorded("float16", "UB", shape=(16,)),
        )
    check("h_add", recorded("float16", "UB", shape=(1, 64)), recorded("float16", "UB", shape=(64, 1)), 1.0)
    with pytest.raises(TikParamError, match="equal shapes"):
        bench.call("h_exp", Runtime(bench.tensor("UB", "float16", 32)), bench.tensor("UB", "float16", 48))


def test_a_source_may_be_the_destination_but_not_overlap_it(bench):
    x = bench.tensor("UB", "float16", 320, np.arange(320))
    first, second = x.at(0, (160,)), x.at(160, (160,))
    bench.call("h_add", first, first, second)
    np.testing.assert_array_equal(first.values, np.arange(160) * 2 + 160)
    bench.refuses(TikParamError, "overlap in part", "h_add", first, second, x.at(16, (160,)))
    floats = replace(x.at(0, (160,)), dtype="float32")
    bench.refuses(TikParamError, "overlap in part", "h_cast", x.at(0, (160,)), floats, "none")


def test_rows_must_start_at_blocks(bench):
    x = bench.tensor("UB", "float16", (4, 40), np.ones(160))
    bench.refuses(TikAlignError, "80 bytes apart", "h_exp", x.at(0, (4, 10), (40, 1)), x.at(0, (4, 10), (40, 1)))
    bench.refuses(TikAlignError, None, "h_exp", Runtime(x.at(8, (16,))), Runtime(x.at(8, (16,))))


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
def test_compare_and_select(strict, bench, mode, function, dtype, elements, scalar):
    x, y = (RNG.integers(-3, 3, elements).astype(dtype) for _ in range(2))
    src0 = bench.tensor("UB", dtype, elements, x)
    src1 = 1.0 if scalar else bench.tensor("UB", dtype, elements, y)
    mask = bench.tensor("UB", "uint8", -(-elements // 8))
    bench.call("h_cmpv", mask, src0, src1, mode)
    chosen = function(x, 1.0 if scalar else y)
    np.testing.assert_array_equal(np.unpackbits(mask.values, bitorder="little")[:elements], chosen)
    dst = bench.tensor("UB", dtype, elements)
    bench.call("h_sel", dst, src0, src1, mask)
    (op,) = bench.bind("h_sel", dst, src0, src1, mask)
    assert op.cycles == 3 * -(-elements * np.dtype(dtype).itemsize // 256)
    np.testing.assert_array_equal(dst.values, np.where(chosen, x, 1.0 if scalar else y))


def test_a_mask_has_a_bit_an_element(bench):
    data, small = bench.tensor("UB", "float16", 256, np.ones(256)), bench.tensor("UB", "uint16", 15)
    bench.refuses(TikParamError, "256 bits", "h_cmpv", small, data, data, "GT")
