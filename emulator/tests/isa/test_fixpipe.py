"""fixpipe."""

import numpy as np
import pytest
from tikemu.errors import TikMemoryError, TikParamError, TikWarning

from emulator.tests.support.bench import Bench, check, recorded, refuses
from emulator.tests.support.cube_layout import RNG, up


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
