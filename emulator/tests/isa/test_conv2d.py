"""conv2d and fixpipe."""

from __future__ import annotations

import numpy as np
import pytest
from tikemu.errors import TikMemoryError, TikParamError, TikWarning

from emulator.tests.support.bench import Bench, check, recorded, refuses
from emulator.tests.support.cube_layout import RNG, assert_close, expected_product, matmul_case, unpacked, up, values


def direct_convolution(fm, weight, stride, pad, dilation, pad_value):
    """Convolve fm with weight, one output element at a time."""
    c1, height, width, c0 = fm.shape
    _, kernel_h, kernel_w, cout, _ = weight.shape
    left, right, top, bottom = pad
    image = np.full((c1, height + top + bottom, width + left + right, c0), pad_value, np.float64)
    image[:, top : top + height, left : left + width] = fm
    out_h = (image.shape[1] - dilation[0] * (kernel_h - 1) - 1) // stride[0] + 1
    out_w = (image.shape[2] - dilation[1] * (kernel_w - 1) - 1) // stride[1] + 1
    result = np.zeros((cout // 16, out_h * out_w, 16))
    for y in range(out_h):
        for x in range(out_w):
            y0, x0 = y * stride[0], x * stride[1]
            patch = image[
                :,
                y0 : y0 + dilation[0] * (kernel_h - 1) + 1 : dilation[0],
                x0 : x0 + dilation[1] * (kernel_w - 1) + 1 : dilation[1],
            ]
            result[:, y * out_w + x] = np.einsum("chwi,chwoi->o", patch, weight.astype(np.float64)).reshape(-1, 16)
    return result


CONVOLUTIONS = [
    {"fm": (2, 6, 7), "kernel": (3, 3), "cout": 32, "stride": [1, 1], "pad": [1, 1, 1, 1], "dilation": [1, 1]},
    {"fm": (1, 9, 8), "kernel": (2, 3), "cout": 16, "stride": [2, 3], "pad": [0, 2, 1, 0], "dilation": [1, 1]},
    {"fm": (3, 11, 10), "kernel": (3, 2), "cout": 48, "stride": [1, 2], "pad": [2, 1, 0, 3], "dilation": [2, 3]},
    {"fm": (5, 4, 4), "kernel": (1, 1), "cout": 16, "stride": [1, 1], "pad": [0, 0, 0, 0], "dilation": [1, 1]},
    {"fm": (1, 36, 36), "kernel": (1, 1), "cout": 32, "stride": [1, 1], "pad": [0, 0, 0, 0], "dilation": [1, 1]},
]


@pytest.mark.parametrize("case", CONVOLUTIONS)
@pytest.mark.parametrize("dtype,small", [("float16", False), ("int8", False), ("float16", True), ("int8", True)])
@pytest.mark.parametrize("pad_value", [0, 3])
def test_conv2d(strict, bench, case, dtype, small, pad_value):
    c1, height, width = case["fm"]
    c0 = 4 if small else 32 // np.dtype(dtype).itemsize
    c1 = 1 if small else c1
    fm, weight = values(dtype, c1, height, width, c0), values(dtype, c1, *case["kernel"], case["cout"], c0)
    expected = direct_convolution(fm, weight, case["stride"], case["pad"], case["dilation"], pad_value)
    howo = expected.shape[1]
    dst = bench.tensor("L0C", "float32" if dtype == "float16" else "int32", (case["cout"] // 16, up(howo), 16))
    ops = bench.call(
        "conv2d",
        dst,
        bench.tensor("L1", dtype, fm.shape, fm),
        bench.tensor("L1", dtype, weight.shape, weight),
        list(fm.shape),
        list(weight.shape),
        case["stride"],
        case["pad"],
        case["dilation"],
        pad_value,
    )
    result = dst.values[:, :howo]
    if dtype == "int8":
        np.testing.assert_array_equal(result, expected)
    else:
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-3)
    assert dst.defined[:, :howo].all()
    assert dst.defined.sum() == expected.size
    assert {op.pipe for op in ops} == {"MTE1", "M"}


def test_conv2d_bias_and_accumulation(strict, bench):
    fm, weight = values("int8", 1, 5, 5, 32), values("int8", 1, 3, 3, 16, 32)
    bias = RNG.integers(-99, 99, 16).astype(np.int32)
    args = (
        bench.tensor("L1", "int8", fm.shape, fm),
        bench.tensor("L1", "int8", weight.shape, weight),
        list(fm.shape),
        list(weight.shape),
        [1, 1],
        [0, 0, 0, 0],
        [1, 1],
        0,
    )
    dst = bench.tensor("L0C", "int32", (1, 16, 16))
    bench.call("conv2d", dst, *args, True, bench.tensor("L1", "int32", 16, bias))
    bench.call("conv2d", dst, *args, False)
    once = direct_convolution(fm, weight, [1, 1], [0, 0, 0, 0], [1, 1], 0)
    np.testing.assert_array_equal(dst.values[:, :9], 2 * once + bias)


def test_conv2d_is_checked():
    dst, fm, weight = recorded("float32", "L0C"), recorded("float16", "L1"), recorded("float16", "L1")
    good = {
        "fm_shape": [2, 8, 8, 16],
        "kernel_shape": [2, 3, 3, 32, 16],
        "stride": [1, 1],
        "pad": [0, 0, 0, 0],
        "dilation": [1, 1],
    }
    check("conv2d", dst, fm, weight, **good)
    for wrong in (
        {"stride": [64, 1]},
        {"stride": [0, 1]},
        {"pad": [0, 0, 0, 256]},
        {"dilation": [1, 256]},
        {"fm_shape": [257, 8, 8, 16]},
        {"fm_shape": [2, 8, 16]},
        {"kernel_shape": [2, 3, 3, 24, 16]},
        {"kernel_shape": [1, 3, 3, 32, 16]},
        {"fm_shape": [2, 2, 8, 16]},
        {"fm_shape": [2, 8, 8, 4]},
        {"kernel_shape": [2, 256, 3, 32, 16]},
    ):
        refuses(TikParamError, None, "conv2d", dst, fm, weight, **{**good, **wrong})


def accumulator(bench, dtype, n1, m):
    """Return random sums in L0C; their padding is undefined."""
    x = RNG.standard_normal((n1, up(m), 16)) * 50
    src = bench.tensor("L0C", dtype, x.shape)
    src.at(0, (n1, m, 16), (up(m) * 16, 16, 1)).store(x[:, :m].astype(dtype))  # padding stays undefined
    return x[:, :m].astype(dtype), src


@pytest.mark.parametrize("target", ["GM", "UB"])
@pytest.mark.parametrize("m", [30, 16, 1, 100])
@pytest.mark.parametrize("dst_stride", [0, 3])
@pytest.mark.parametrize("free", [262144, 20480], ids=["at once", "in pieces"])
@pytest.mark.parametrize(
    "dtype,mode,factor,bias,relu",
    [
        ("float32", None, None, False, False),
        ("int32", None, None, False, False),
        ("float32", "fp322fp16", None, False, False),
        ("int32", "int322fp16", 0.3, False, False),
        ("float32", None, None, True, True),
        ("int32", None, None, True, True),
        ("float32", "fp322fp16", None, True, True),
        ("int32", "int322fp16", -1.5, True, True),
        ("float32", "fp322fp16", None, False, True),
    ],
)
def test_fixpipe(strict, bench, target, m, dst_stride, free, dtype, mode, factor, bias, relu):
    n1 = 3
    x, src = accumulator(bench, dtype, n1, m)
    out = "float16" if mode else dtype
    pitch = m * 16 + dst_stride * 32 // np.dtype(out).itemsize
    dst = bench.tensor(target, out, n1 * pitch, np.full(n1 * pitch, 77))
    params = {}
    if mode:
        params["quantize_params"] = {"mode": mode, "mode_param": factor}
    result = x
    if bias:
        b = RNG.integers(-40, 40, n1 * 16).astype(dtype)
        params["bias"] = bench.tensor("L1", dtype, n1 * 16, b)
        result = result + b.reshape(n1, 1, 16)
    if relu:
        params["relu"] = True
    if mode:
        result = (result.astype(np.float64) * (factor or 1)).astype(np.float16)
    if relu:
        result = np.maximum(result, 0)
    ops = bench.call("fixpipe", dst, src, n1, m * 16 * 4 // 32, dst_stride, 0, params or None, free_bytes={"UB": free})
    expected = np.full((n1, pitch), 77, out)
    expected[:, : m * 16] = result.reshape(n1, -1)
    np.testing.assert_array_equal(dst.values.reshape(n1, pitch), expected)
    assert "V" in {op.pipe for op in ops} and ("MTE3" in {op.pipe for op in ops}) == (target == "GM")
    pieces = sum(op.name == "fixpipe.tensor_mov" for op in ops)
    in_float16 = mode is not None and not bias  # three columns of 112 rows take 10752 bytes, otherwise 21504 or more
    assert (pieces > 1) == (free == 20480 and m == 100 and not in_float16)


def test_fixpipe_is_checked():
    dst, src = recorded("float32", "GM"), recorded("float32", "L0C")
    check("fixpipe", dst, src, 4095, 65534, 65535, 0)
    half = recorded("float16", "GM")
    for args, kwargs, match in (
        ((dst, src, 0, 2, 0, 0), {}, "cburst_num"),
        ((dst, src, 1, 3, 0, 0), {}, "even"),
        ((dst, src, 1, 2, 65536, 0), {}, "dst_stride"),
        ((dst, src, 1, 2, 0, 1), {}, "src_stride"),
        ((half, src, 1, 2, 0, 0), {}, "needs quantize_params"),
        ((half, src, 1, 2, 0, 0), {"extend_params": {"quantize_params": {"mode": "int322fp16"}}}, "takes src int32"),
        (
            (half, recorded("int32", "L0C"), 1, 2, 0, 0),
            {"extend_params": {"quantize_params": {"mode": "int322fp16"}}},
            "mode_param",
        ),
        ((half, src, 1, 2, 0, 0), {"extend_params": {"quantize_params": {"mode": "fp322int8"}}}, "mode"),
        ((dst, src, 1, 2, 0, 0), {"extend_params": {"relux": True}}, "relux"),
        ((dst, src, 1, 2, 0, 0), {"extend_params": {"bias": recorded("float32", "UB")}}, "in L1"),
        ((dst, src, 1, 2, 0, 0), {"extend_params": {"bias": recorded("int32", "L1")}}, "dtype of src"),
        ((dst, src, 1, 2, 0, 0), {"extend_params": 3}, "dict"),
        ((recorded("float32", "L1"), src, 1, 2, 0, 0), {}, "dst must be in"),
        ((dst, recorded("float32", "UB"), 1, 2, 0, 0), {}, "src must be in"),
    ):
        refuses(TikParamError, match, "fixpipe", *args, **kwargs)


NEEDS = "needs 4096 bytes of UB for itself, but the live tensors leave 4095"


@pytest.mark.usefixtures("no_warnings")
@pytest.mark.parametrize("strict", [False, True])
def test_fixpipe_needs_room_for_a_column(strict):
    bench = Bench(strict)
    _, src = accumulator(bench, "float32", 1, 64)
    args = ("fixpipe", bench.tensor("GM", "float32", 1024), src, 1, 128, 0, 0)
    bench.bind(*args, free_bytes={"UB": 4096})
    told = pytest.raises(TikMemoryError, match=NEEDS) if strict else pytest.warns(TikWarning, match=NEEDS)
    with told:
        bench.bind(*args, free_bytes={"UB": 4095})


def test_matmul_takes_smaller_tiles_where_less_of_l0_is_free(strict, bench):
    a, b, a_l1, b_l1, dst = matmul_case(bench, 64, 256, 64, "float16")
    for free, products in ((65536, 1), (32768, 2), (8192, 8)):
        ops = bench.bind("matmul", dst, a_l1, b_l1, 64, 256, 64, free_bytes={"L0A": free, "L0B": 65536})
        assert sum(op.pipe == "M" for op in ops) == products
        written = [access for op in ops for access in op.writes if access.operand.memory.kind == "L0A"]
        assert max(access.region.end for access in written) <= free
        for op in ops:
            bench.execute(op)
        assert_close(unpacked(dst.values, 64, 64), expected_product(a, b))
    bench.refuses(TikMemoryError, "of L0A", "matmul", dst, a_l1, b_l1, 64, 256, 64, free_bytes={"L0A": 0, "L0B": 65536})
