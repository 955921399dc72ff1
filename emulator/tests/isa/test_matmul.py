"""matmul and fixpipe: products of any size as loads, products and moves."""

import numpy as np
import pytest
from tikemu.errors import TikBoundsError, TikMemoryError

from emulator.tests.support.cube_layout import RNG, assert_close, expected_product, matmul_case, unpacked, up


@pytest.mark.parametrize("dtype", ["float16", "int8"])
@pytest.mark.parametrize(
    "m,k,n",
    [
        (30, 64, 160),
        (16, 16, 16),
        (1, 40, 20),
        (7, 19, 33),
        (128, 128, 128),
        (256, 200, 256),
        (1100, 48, 40),
        (20, 2100, 16),
        (16, 33, 1100),
    ],
)
def test_matmul(strict, bench, dtype, m, k, n):
    a, b, a_l1, b_l1, dst = matmul_case(bench, m, k, n, dtype)
    ops = bench.call("matmul", dst, a_l1, b_l1, m, k, n)
    assert_close(unpacked(dst.values, m, n), expected_product(a, b))
    assert {op.pipe for op in ops} == {"MTE1", "M"}
    assert sum(op.macs for op in ops) == m * k * n
    loaded = max(op.writes[0].region.end - op.writes[0].region.start for op in ops if op.pipe == "MTE1")
    assert loaded <= 32768
    k0 = 32 // np.dtype(dtype).itemsize
    assert sum(op.cycles for op in ops if op.pipe == "M") == up(m) // 16 * (up(k, k0) // k0) * (up(n) // 16)


def test_tiles_alternate_between_the_halves_of_l0(bench):
    """Double buffering (D28a): the loads of a tile do not wait for the product of the tile before."""
    _, _, a_l1, b_l1, dst = matmul_case(bench, 128, 512, 128, "float16")
    products = [op for op in bench.bind("matmul", dst, a_l1, b_l1, 128, 512, 128) if op.pipe == "M"]
    assert len(products) == 4
    for side in (0, 1):
        starts = [op.reads[side].region.start for op in products]
        assert starts == [0, 32768, 0, 32768]


@pytest.mark.parametrize("kind", ["L1", "UB"])
@pytest.mark.parametrize("dtype", ["float16", "int8"])
def test_matmul_bias_is_added_once_to_every_row(strict, bench, kind, dtype):
    m, k, n = 30, 48, 40
    a, b, a_l1, b_l1, dst = matmul_case(bench, m, k, n, dtype)
    bias = RNG.integers(-1000, 1000, up(n)).astype(dst.dtype)
    held = bench.tensor(kind, dst.dtype, up(n), bias)
    bench.call("matmul", dst, a_l1, b_l1, m, k, n, True, held)
    expected = expected_product(a, b, np.tile(bias[:n], (m, 1)))
    assert_close(unpacked(dst.values, m, n), expected)
    bench.call("matmul", dst, a_l1, b_l1, m, k, n, False, held)
    assert_close(unpacked(dst.values, m, n), expected_product(a, b, expected))


def test_matmul_stays_inside_its_operands(bench):
    _, _, a_l1, b_l1, dst = matmul_case(bench, 16, 16, 16, "float16")
    bench.refuses(TikBoundsError, None, "matmul", dst, a_l1, b_l1, 17, 16, 16)
    bench.refuses(TikBoundsError, None, "matmul", dst, a_l1, b_l1, 16, 17, 16)


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


# --------------------------------------------------------------------------------------------------------- fixpipe
def accumulator(bench, dtype, n1, m):
    """Return random sums in L0C; their padding is undefined."""
    x = RNG.standard_normal((n1, up(m), 16)) * 50
    src = bench.tensor("L0C", dtype, x.shape)
    src.at(0, (n1, m, 16), (up(m) * 16, 16, 1)).store(x[:, :m].astype(dtype))  # padding stays undefined
    return x[:, :m].astype(dtype), src


@pytest.mark.spread(2)
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
