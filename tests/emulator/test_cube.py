"""Fractal loads and the matrix product against the index formulas of the documents, one element at a time."""

from __future__ import annotations

import numpy as np
import pytest
from tikemu.errors import (
    TikAlignError,
    TikBoundsError,
    TikParamError,
    TikUnsupportedArgumentError,
    TikUnsupportedError,
    TikWarning,
)

from tests.emulator.core_bench import CoreBench as Bench
from tests.emulator.core_bench import check, recorded, touched

RNG = np.random.default_rng(11)


def up(value: int, unit: int = 16) -> int:
    return -(-value // unit) * unit


# cube.md 2: offsets in elements
def offset_a(r, c, k, k0):
    k1 = up(k, k0) // k0
    return ((r // 16) * k1 + c // k0) * 16 * k0 + (r % 16) * k0 + c % k0


def offset_b(r, c, n, k0):
    n1 = up(n) // 16
    return ((r // k0) * n1 + c // 16) * 16 * k0 + (c % 16) * k0 + r % k0


def offset_c(r, c, m):
    m1 = up(m) // 16
    return ((c // 16) * m1 + r // 16) * 256 + (r % 16) * 16 + c % 16


def offset_nz(r, c, rows, c0):
    return ((c // c0) * up(rows) + r) * c0 + c % c0


def scatter(matrix, size, offset):
    """A matrix placed by a formula; the rest is noise."""
    flat = RNG.integers(-9, 9, size).astype(matrix.dtype)
    for r in range(matrix.shape[0]):
        for c in range(matrix.shape[1]):
            flat[offset(r, c)] = matrix[r, c]
    return flat


def gather(flat, rows, columns, offset):
    return np.array([[flat[offset(r, c)] for c in range(columns)] for r in range(rows)])


def block_product(a, b, c, k0):
    """D26a: per block of K the exact products, summed in float64, rounded to float32, added to the accumulator."""
    result = c.astype(np.float32)
    for first in range(0, a.shape[1], k0):
        part = a[:, first : first + k0].astype(np.float64) @ b[first : first + k0].astype(np.float64)
        result = (result + part.astype(np.float32)).astype(np.float32)
    return result


class Product:
    """Operands of one mmad in the cube's memories."""

    def __init__(self, m, k, n, types=("float32", "float16", "float16"), strict=False, low=-100, high=100):
        self.m, self.k, self.n, self.types = m, k, n, types
        self.k0 = 32 // np.dtype(types[1]).itemsize
        self.bench = Bench(strict)
        self.a, self.b = self.values(types[1], (m, k), low, high), self.values(types[2], (k, n), low, high)
        self.c = self.values(types[0], (m, n), low, high)
        k_up = up(k, self.k0)
        if m == 1:
            flat_a = np.concatenate([self.a[0], np.full(16 * k_up - k, 77, self.a.dtype)])
        else:
            flat_a = scatter(self.a, up(m) * k_up, lambda r, c: offset_a(r, c, k, self.k0))
        self.dst = self.bench.tensor(
            "L0C", types[0], up(m) * up(n), scatter(self.c, up(m) * up(n), lambda r, c: offset_c(r, c, m))
        )
        self.left = self.bench.tensor("L0A", types[1], up(m) * k_up, flat_a)
        self.right = self.bench.tensor(
            "L0B", types[2], k_up * up(n), scatter(self.b, k_up * up(n), lambda r, c: offset_b(r, c, n, self.k0))
        )

    @staticmethod
    def values(dtype, shape, low, high):
        if np.dtype(dtype).kind == "f":
            return (RNG.standard_normal(shape) * 3).astype(dtype)
        limits = np.iinfo(dtype)
        return RNG.integers(max(low, limits.min), min(high, limits.max), shape, endpoint=True).astype(dtype)

    def run(self, is_bias):
        return self.bench.call("mmad", self.dst, self.left, self.right, self.m, self.k, self.n, is_bias)

    def result(self):
        return gather(self.bench.read(self.dst), self.m, self.n, lambda r, c: offset_c(r, c, self.m))


SHAPES = [(16, 16, 16), (48, 64, 32), (30, 70, 40), (2, 3, 5), (17, 33, 1), (1, 70, 40), (1, 16, 16), (128, 128, 128)]


@pytest.mark.parametrize("m,k,n", SHAPES)
@pytest.mark.parametrize("is_bias", [0, 1])
def test_mmad_float32(m, k, n, is_bias):
    case = Product(m, k, n)
    (op,) = case.run(is_bias)
    expected = block_product(case.a, case.b, case.c * is_bias, 16)
    np.testing.assert_array_max_ulp(case.result(), expected, 1)
    assert (case.result() == expected).mean() > 0.99  # a different order inside a float64 sum hardly ever shows
    assert op.pipe == "M"
    assert op.cycles == -(-m // 16) * -(-k // 16) * -(-n // 16)
    assert op.macs == m * k * n
    assert op.accumulate == bool(is_bias)


@pytest.mark.parametrize("m,k,n", SHAPES)
@pytest.mark.parametrize("types", [("int32", "int8", "int8"), ("int32", "uint8", "int8"), ("uint32", "uint8", "uint8")])
@pytest.mark.parametrize("is_bias", [0, 1])
def test_mmad_integers_are_exact(m, k, n, types, is_bias):
    case = Product(m, k, n, types, low=-128, high=255)
    (op,) = case.run(is_bias)
    expected = case.a.astype(np.int64) @ case.b.astype(np.int64) + case.c.astype(np.int64) * is_bias
    np.testing.assert_array_equal(case.result(), expected)
    assert op.cycles == -(-m // 16) * -(-k // 32) * -(-n // 16)


@pytest.mark.parametrize("m,k,n", SHAPES)
@pytest.mark.parametrize("is_bias", [False, True])
def test_mmad_float16_accumulator_rounds_once_per_call(m, k, n, is_bias):
    case = Product(m, k, n, ("float16", "float16", "float16"))
    case.run(is_bias)
    expected = block_product(case.a, case.b, case.c * is_bias, 16).astype(np.float16)
    np.testing.assert_array_max_ulp(case.result(), expected, 1)


@pytest.mark.parametrize(
    "types,start,expected",
    [(("int32", "int8", "int8"), 2**31 - 5, 2**31 - 1), (("uint32", "uint8", "uint8"), 2**32 - 5, 2**32 - 1)],
)
def test_integer_accumulators_saturate(types, start, expected):
    case = Product(16, 32, 16, types, low=1, high=9)
    case.bench.store(case.dst, np.full(256, start, types[0]))
    case.run(1)
    assert (case.result() == expected).all()
    if types[0] == "int32":
        case = Product(16, 32, 16, types, low=1, high=9)
        case.bench.store(case.left, -case.bench.read(case.left))
        case.bench.store(case.dst, np.full(256, -(2**31) + 5))
        case.run(1)
        assert (case.result() == -(2**31)).all()


def test_float_results_saturate_and_nan_becomes_zero():
    largest = np.finfo(np.float32).max
    case = Product(16, 16, 16)
    a, b = np.zeros((16, 16), np.float16), np.eye(16, dtype=np.float16)
    a[0, 0], a[1, 1], a[2, 2] = np.inf, -np.inf, np.nan
    b[np.eye(16) == 0] = 1e-3
    case.bench.store(case.left, a)
    case.bench.store(case.right, b.T)
    case.run(0)
    result = case.result()
    assert (result[0] == largest).all() and (result[1] == -largest).all() and (result[2] == 0).all()
    case.bench.store(case.dst, np.full(256, largest))
    case.bench.store(case.left, np.full(256, 60000))
    case.bench.store(case.right, np.full(256, 60000))
    case.run(1)
    assert (case.result() == largest).all()


def test_every_update_of_the_accumulator_saturates():
    """+infinity in the first block of K leaves the largest number, to which the second block adds -infinity."""
    case = Product(16, 32, 16)
    a = np.zeros((16, 32), np.float16)
    a[:, 0], a[:, 16] = np.inf, -np.inf
    case.bench.store(case.left, scatter(a, 512, lambda r, c: offset_a(r, c, 32, 16)))
    case.bench.store(case.right, np.ones(512))
    case.run(0)
    assert (case.result() == -np.finfo(np.float32).max).all()


def test_whole_fractals_must_lie_inside_the_operands():
    """17 rows take two fractals, although one row of the second holds data."""
    bench = Bench()
    dst = bench.tensor("L0C", "float32", 32 * 32)
    whole = {kind: bench.tensor(kind, "float16", 1024, np.ones(1024)) for kind in ("L0A", "L0B")}
    bench.bind("mmad", dst, whole["L0A"], whole["L0B"], 17, 16, 17, 0)
    for kind, argument in (("L0A", "src_fm"), ("L0B", "src_filter")):
        operands = {**whole, kind: bench.tensor(kind, "float16", 256 + 16, np.ones(272))}
        with pytest.warns(TikWarning, match=f"{argument} .*padding of its allocation"):
            bench.bind("mmad", dst, operands["L0A"], operands["L0B"], 17, 16, 17, 0)


def test_lanes_beyond_k_are_ignored():
    """D26c, with NaN and infinity in the padding lanes."""
    m, k, n = 20, 19, 18
    case = Product(m, k, n)
    for tensor, rows, offset in (
        (case.left, up(m), lambda r, c: offset_a(r, c, k, 16)),
        (case.right, up(n), lambda r, c: offset_b(c, r, n, 16)),
    ):
        flat = case.bench.read(tensor)
        for r in range(rows):
            for c in range(k, up(k)):
                flat[offset(r, c)] = np.nan if r % 2 else np.inf
        case.bench.store(tensor, flat)
    case.run(0)
    np.testing.assert_array_max_ulp(case.result(), block_product(case.a, case.b, case.c * 0, 16), 1)


def test_mmad_adds_blocks_of_16_in_ascending_order():
    """2^24 + 1 + 1 + ... in float32: every block sum of 1 is lost, a block sum of 2 is not."""
    case = Product(16, 64, 16)
    a = np.zeros((16, 64), np.float16)
    a[:, 0] = 2.0**12
    a[:, [16, 32, 48, 49]] = 1
    b = np.ones((64, 16), np.float16)
    b[0] = 2.0**12
    case.bench.store(case.left, scatter(a, 1024, lambda r, c: offset_a(r, c, 64, 16)))
    case.bench.store(case.right, scatter(b, 1024, lambda r, c: offset_b(r, c, 16, 16)))
    case.run(0)
    assert (case.result() == 2.0**24 + 2).all()


@pytest.mark.parametrize("sizes", [(0, 16, 16), (16, 0, 16), (16, 16, 0)])
def test_mmad_of_size_zero_does_nothing(sizes):
    case = Product(16, 16, 16)
    assert case.bench.bind("mmad", case.dst, case.left, case.right, *sizes, 0) == ()


def test_strides_come_from_the_arguments_not_from_the_tensors():
    case = Product(32, 32, 32)
    inner = Product(16, 16, 16)
    bench = case.bench
    bench.store(Bench.at(case.left, 0, (256,)), inner.bench.read(inner.left))
    bench.store(Bench.at(case.right, 0, (256,)), inner.bench.read(inner.right))
    bench.call("mmad", case.dst, case.left, case.right, 16, 16, 16, 0)
    result = gather(bench.read(case.dst), 16, 16, lambda r, c: offset_c(r, c, 16))
    np.testing.assert_array_max_ulp(result, block_product(inner.a, inner.b, inner.c * 0, 16), 1)


def test_mmad_checks_capacity():
    case = Product(32, 32, 32)
    case.bench.tensor("L0A", "float16", 4096)
    case.bench.tensor("L0B", "float16", 4096)
    case.bench.tensor("L0C", "float32", 4096)
    for sizes, argument in (((33, 32, 32), "src_fm"), ((32, 33, 32), "src_fm"), ((32, 32, 33), "src_filter")):
        with pytest.raises(TikBoundsError, match=argument):
            case.bench.bind("mmad", case.dst, case.left, case.right, *sizes, 0)
    with pytest.raises(TikBoundsError, match="dst_fm"):
        case.bench.bind("mmad", Bench.at(case.dst, 256), case.left, case.right, 32, 32, 32, 0)


@pytest.mark.parametrize(
    "types",
    [
        ("float32", "float32", "float32"),
        ("int32", "int8", "uint8"),
        ("float32", "int8", "int8"),
        ("int32", "float16", "float16"),
        ("int32", "int16", "int16"),
    ],
)
def test_mmad_refuses_other_types(types):
    operands = [recorded(dtype, memory) for dtype, memory in zip(types, ("L0C", "L0A", "L0B"))]
    with pytest.raises(TikUnsupportedError):
        check("mmad", *operands, 16, 16, 16, 0)


def test_mmad_arguments_are_checked():
    dst, left, right = recorded("float32", "L0C"), recorded("float16", "L0A"), recorded("float16", "L0B")
    check("mmad", dst, left, right, 16, 16, 16, 0)
    check("mmad", dst, left, right, 4095, 0, 1, True, 0, False, None)
    for sizes in ((4096, 1, 1), (1, -1, 1), (1, 1, 4096)):
        with pytest.raises(TikParamError, match="must be in"):
            check("mmad", dst, left, right, *sizes, 0)
    with pytest.raises(TikParamError, match="is_bias"):
        check("mmad", dst, left, right, 1, 1, 1, 2)
    with pytest.raises(TikParamError, match="src_fm must be in L0A"):
        check("mmad", dst, right, right, 1, 1, 1, 0)
    for reserved in ({"fm_offset": 1}, {"en_weight_offset": True}, {"smask": 3}, {"unit_flag": 1}):
        with pytest.raises(TikUnsupportedArgumentError, match=next(iter(reserved))):
            check("mmad", dst, left, right, 1, 1, 1, 0, **reserved)
    case = Product(16, 16, 16)
    with pytest.raises(TikAlignError, match="512"):
        case.bench.bind("mmad", case.dst, Bench.at(case.left, 16), case.right, 16, 16, 16, 0)
    with pytest.raises(TikAlignError, match="1024"):
        case.bench.bind("mmad", Bench.at(case.dst, 128), case.left, case.right, 16, 16, 16, 0)


# -------------------------------------------------------------------------------------------------- strict: padding
@pytest.mark.parametrize("m,k,n", [(30, 70, 40), (16, 16, 16), (1, 20, 17), (2, 3, 5)])
@pytest.mark.parametrize("is_bias", [0, 1])
def test_padding_of_the_result_is_undefined(m, k, n, is_bias):
    """Strict: only valid lanes are read, only valid rows and columns become defined."""
    case = Product(m, k, n, strict=True)
    bench = case.bench
    for tensor, rows, columns, offset in (
        (case.left, m, k, (lambda r, c: c) if m == 1 else lambda r, c: offset_a(r, c, k, 16)),
        (case.right, k, n, lambda r, c: offset_b(r, c, n, 16)),
        (case.dst, m, n, lambda r, c: offset_c(r, c, m)),
    ):
        bits = np.zeros(tensor.shape[0], bool)
        for r in range(rows):
            for c in range(columns):
                bits[offset(r, c)] = True
        size = np.dtype(tensor.dtype).itemsize
        tensor.memory.defined[tensor.start : tensor.start + size * len(bits)] = np.repeat(bits, size)
        if tensor is case.dst:
            expected = bits
    case.run(is_bias)
    np.testing.assert_array_equal(bench.defined(case.dst), expected)
    np.testing.assert_array_max_ulp(case.result(), block_product(case.a, case.b, case.c * is_bias, 16), 1)


@pytest.mark.parametrize("which", ["left", "right", "dst"])
def test_undefined_lanes_are_reported(which):
    case = Product(20, 20, 20, strict=True)
    case.run(1)
    case.bench.store(case.dst, np.zeros(case.dst.shape))
    tensor = getattr(case, which)
    last = {"left": offset_a(19, 19, 20, 16), "right": offset_b(19, 19, 20, 16), "dst": offset_c(19, 19, 20)}[which]
    size = np.dtype(tensor.dtype).itemsize
    tensor.memory.defined[tensor.start + last * size] = 0
    with pytest.raises(AssertionError, match="undefined"):
        case.run(1)
    if which == "dst":
        case.run(0)


def test_nan_operands_are_reported_in_strict_mode():
    case = Product(20, 20, 20, strict=True)
    flat = case.bench.read(case.left)
    flat[offset_a(3, 20, 20, 16)] = np.nan  # a lane beyond k
    flat[offset_a(20, 3, 20, 16)] = np.nan  # a row beyond m
    case.bench.store(case.left, flat)
    case.run(0)
    flat[offset_a(3, 19, 20, 16)] = np.nan
    case.bench.store(case.left, flat)
    with pytest.raises(TikParamError, match="NaN"):
        case.run(0)


# --------------------------------------------------------------------------------------------------------- load2dv1
@pytest.mark.parametrize("dtype", ["float16", "int8", "uint16"])
@pytest.mark.parametrize(
    "source,target,pipe",
    [("L1", "L0A", "MTE1"), ("L1", "L0B", "MTE1"), ("GM", "L0A", "MTE2"), ("GM", "L0B", "MTE2"), ("GM", "L1", "MTE2")],
)
@pytest.mark.parametrize("index,repeats,stride", [(0, 1, 0), (2, 3, 1), (1, 4, 2), (5, 3, 0)])
def test_load2d(dtype, source, target, pipe, index, repeats, stride):
    bench = Bench()
    per_fractal = 512 // np.dtype(dtype).itemsize
    values = RNG.integers(0, 100, 10 * per_fractal)
    src = bench.tensor(source, dtype, values.shape, values)
    dst = bench.tensor(target, dtype, values.shape, np.zeros(values.shape))
    (op,) = bench.call("load2dv1", dst, src, index, repeats, stride, 0)
    expected = np.zeros(values.shape)
    for r in range(repeats):
        s = (index + r * stride) * per_fractal
        expected[r * per_fractal : (r + 1) * per_fractal] = values[s : s + per_fractal]
    np.testing.assert_array_equal(bench.read(dst), expected)
    assert op.pipe == pipe
    if source == "L1":
        assert op.cycles == repeats * 512 / {"L0A": 512, "L0B": 256}[target]
    else:
        assert op.transfer.bursts * op.transfer.burst_bytes == repeats * 512
    assert len(touched(op.reads[0].region)) == 512 * (repeats if stride else 1)
    assert len(touched(op.writes[0].region)) == 512 * repeats


@pytest.mark.parametrize("target", ["L0A", "L0B"])
def test_load2d_transposes_each_fractal(target):
    bench = Bench()
    values = RNG.integers(0, 1000, (6, 16, 16))
    src, dst = bench.tensor("L1", "float16", 1536, values), bench.tensor(target, "float16", 1536)
    bench.call("load2dv1", dst, src, 1, 3, 2, 0, True)
    np.testing.assert_array_equal(bench.read(dst)[:768].reshape(3, 16, 16), values[1:6:2].transpose(0, 2, 1))


def test_load2d_decreasing_addresses():
    bench = Bench()
    values = np.arange(6 * 256)
    src, dst = bench.tensor("GM", "float16", 1536, values), bench.tensor("L1", "float16", 1536)
    bench.call("load2dv1", dst, src, 5, 3, 2, 0, False, "dec")
    np.testing.assert_array_equal(bench.read(dst)[:768].reshape(3, 256), values.reshape(6, 256)[[5, 3, 1]])
    with pytest.raises(TikBoundsError):
        bench.call("load2dv1", dst, src, 3, 3, 2, 0, False, "dec")
    assert check("load2dv1", recorded("float16", "L0A"), recorded("float16", "L1"), 0, 1, 0, 0, False, "dec")


def test_load2d_source_is_aligned_to_blocks_and_whole():
    bench = Bench()
    src, dst = bench.tensor("L1", "float16", 512, np.arange(512)), bench.tensor("L0A", "float16", 512)
    bench.call("load2dv1", dst, bench.at(src, 16), 0, 1, 0, 0)
    np.testing.assert_array_equal(bench.read(dst)[:256], np.arange(16, 272))
    with pytest.raises(TikBoundsError):
        bench.call("load2dv1", dst, bench.at(src, 16), 1, 1, 0, 0)
    with pytest.raises(TikAlignError, match="32"):
        bench.call("load2dv1", dst, bench.at(src, 8), 0, 1, 0, 0)
    with pytest.raises(TikAlignError, match="512"):
        bench.call("load2dv1", bench.at(dst, 16), src, 0, 1, 0, 0)
    with pytest.raises(TikBoundsError):
        bench.call("load2dv1", dst, src, 0, 3, 0, 0)
    assert bench.bind("load2dv1", dst, src, 0, 0, 1, 0) == ()


def test_load2d_arguments_are_checked():
    dst, src = recorded("float16", "L0A"), recorded("float16", "L1")
    check("load2dv1", dst, src, 0, 255, 65535, 0, False, "inc")
    for args in ((0, 0, 0, 0), (0, 256, 0, 0), (65536, 1, 0, 0), (0, 1, 65536, 0)):
        with pytest.raises(TikParamError, match="must be in"):
            check("load2dv1", dst, src, *args)
    with pytest.raises(TikUnsupportedError, match="16-bit"):
        check("load2dv1", recorded("int8", "L0B"), recorded("int8", "L1"), 0, 1, 1, 0, True)
    with pytest.raises(TikUnsupportedError, match="if_transpose"):
        check("load2dv1", dst, recorded("float16", "GM"), 0, 1, 1, 0, True)
    with pytest.raises(TikUnsupportedError):
        check("load2dv1", recorded("float32", "L0A"), recorded("float32", "L1"), 0, 1, 1, 0)
    with pytest.raises(TikParamError, match="src must be in"):
        check("load2dv1", dst, recorded("float16", "UB"), 0, 1, 1, 0)
    with pytest.raises(TikUnsupportedError, match="L1 to L1"):
        check("load2dv1", recorded("float16", "L1"), src, 0, 1, 1, 0)


def test_load2d_carries_defined_bits():
    bench = Bench(strict=True)
    src, dst = bench.tensor("L1", "float16", 512), bench.tensor("L0A", "float16", 512)
    bench.store(bench.at(src, 256 + 3 * 16, (16,)), np.ones(16))
    bench.call("load2dv1", dst, src, 0, 2, 1, 0, True)
    expected = np.zeros((2, 16, 16), bool)
    expected[1, :, 3] = True
    np.testing.assert_array_equal(bench.defined(dst).reshape(2, 16, 16), expected)


# ------------------------------------------------------------------------------------------------- recipes (cube 4.1)
def to_nz(x):
    """(R, C) to (C1, R, 16)."""
    rows, columns = x.shape
    return x.reshape(rows, columns // 16, 16).transpose(1, 0, 2)


def load_a(bench, l0a, x, m, k, recipe):
    if recipe == "A as NZ":
        l1 = bench.tensor("L1", "float16", m * k, to_nz(x))
        for i in range(m // 16):
            bench.call("load2dv1", bench.at(l0a, i * k * 16), bench.at(l1, i * 256), 0, k // 16, m // 16, 0, False)
    else:
        l1 = bench.tensor("L1", "float16", m * k, to_nz(x.T))
        bench.call("load2dv1", l0a, l1, 0, m * k // 256, 1, 0, True)


def load_b(bench, l0b, x, k, n, recipe):
    if recipe == "B as NZ":
        l1 = bench.tensor("L1", "float16", k * n, to_nz(x))
        for i in range(k // 16):
            bench.call("load2dv1", bench.at(l0b, i * n * 16), bench.at(l1, i * 256), 0, n // 16, k // 16, 0, True)
    else:
        l1 = bench.tensor("L1", "float16", k * n, to_nz(x.T))
        bench.call("load2dv1", l0b, l1, 0, n * k // 256, 1, 0, False)


@pytest.mark.parametrize("m,k,n", [(16, 16, 16), (32, 48, 64), (64, 32, 16)])
@pytest.mark.parametrize("left", ["A as NZ", "A transposed as NZ"])
@pytest.mark.parametrize("right", ["B as NZ", "B transposed as NZ"])
def test_operand_recipes_give_the_product(m, k, n, left, right):
    bench = Bench(strict=True)
    a, b = RNG.standard_normal((m, k)).astype(np.float16), RNG.standard_normal((k, n)).astype(np.float16)
    l0a, l0b = bench.tensor("L0A", "float16", m * k), bench.tensor("L0B", "float16", k * n)
    l0c, ub = bench.tensor("L0C", "float32", m * n), bench.tensor("UB", "float16", m * n)
    load_a(bench, l0a, a, m, k, left)
    load_b(bench, l0b, b, k, n, right)
    bench.call("mmad", l0c, l0a, l0b, m, k, n, 0)
    bench.call("tensor_mov", ub, l0c, "m", 1, m * n // 256, 0, 0)
    result = bench.read(ub).reshape(n // 16, m, 16).transpose(1, 0, 2).reshape(m, n)
    expected = block_product(a, b, np.zeros((m, n)), 16).astype(np.float16)
    np.testing.assert_array_max_ulp(result, expected, 1)


def test_k_slice_recipes_accumulate_the_product():
    m, k, n = 48, 64, 32
    bench = Bench(strict=True)
    a, b = RNG.standard_normal((m, k)).astype(np.float16), RNG.standard_normal((k, n)).astype(np.float16)
    a_l1, b_l1 = bench.tensor("L1", "float16", m * k, to_nz(a)), bench.tensor("L1", "float16", k * n, to_nz(b))
    l0a, l0b = bench.tensor("L0A", "float16", m * 16), bench.tensor("L0B", "float16", 16 * n)
    l0c = bench.tensor("L0C", "float32", m * n)
    for s in range(k // 16):
        bench.call("load2dv1", l0a, bench.at(a_l1, s * m * 16), 0, m // 16, 1, 0, False)
        bench.call("load2dv1", l0b, bench.at(b_l1, s * 256), 0, n // 16, k // 16, 0, True)
        bench.call("mmad", l0c, l0a, l0b, m, 16, n, int(s > 0))
    result = gather(bench.read(l0c), m, n, lambda r, c: offset_c(r, c, m))
    np.testing.assert_array_max_ulp(result, block_product(a, b, np.zeros((m, n)), 16), 1)


def test_product_of_a_product():
    """C as it leaves L0C is the NZ operand of the next product (cube.md 2): (A B) D."""
    m, k, n, p = 32, 48, 64, 16
    bench = Bench(strict=True)
    a, b, d = (RNG.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n), (n, p)))
    l0a, l0b = bench.tensor("L0A", "float16", m * n), bench.tensor("L0B", "float16", k * n)
    l0c, ub = bench.tensor("L0C", "float32", m * n), bench.tensor("UB", "float16", m * n)
    load_a(bench, l0a, a, m, k, "A as NZ")
    load_b(bench, l0b, b, k, n, "B as NZ")
    bench.call("mmad", l0c, l0a, l0b, m, k, n, 0)
    bench.call("data_move", ub, l0c, 0, 1, m * n // 256, 0, 0, 1)
    l1 = bench.tensor("L1", "float16", m * n)
    bench.call("data_move", l1, ub, 0, 1, m * n // 16, 0, 0)
    for i in range(m // 16):
        bench.call("load2dv1", bench.at(l0a, i * n * 16), bench.at(l1, i * 256), 0, n // 16, m // 16, 0, False)
    load_b(bench, l0b, d, n, p, "B as NZ")
    bench.call("mmad", l0c, l0a, l0b, m, n, p, 0)
    result = gather(bench.read(l0c), m, p, lambda r, c: offset_c(r, c, m))
    middle = block_product(a, b, np.zeros((m, n)), 16).astype(np.float16)
    np.testing.assert_allclose(result, middle.astype(np.float64) @ d.astype(np.float64), rtol=2e-3, atol=2e-2)


# --------------------------------------------------------------------------------------------------------- load3dv1
def documented_load3d(dst, src, a):
    """cube.md 9, the loop as printed."""
    left, right, _, _ = a["padding"]
    height, width, c0 = a["l1_h"], a["l1_w"], 32 // src.itemsize
    x, y = a["left_top_w"], a["left_top_h"]
    fw, fh, c1 = a["fetch_filter_w"], a["fetch_filter_h"], a["c1_index"]
    image = src.reshape(-1, height, width, c0)
    for r in range(a["repeat_time"]):
        xx, yy = x, y
        fractal = np.full((16, c0), a.get("pad_value", 0), src.dtype)
        for row in range(16):
            hh, ww = yy + fh * a["dilation_filter_h"], xx + fw * a["dilation_filter_w"]
            if 0 <= hh < height and 0 <= ww < width:
                fractal[row] = image[c1, hh, ww]
            xx += a["stride_w"]
            if xx + (a["filter_w"] - 1) * a["dilation_filter_w"] > width - 1 + right:
                xx, yy = -left, yy + a["stride_h"]
        first = r * a["jump_stride"] * 16 * c0
        dst[first : first + 16 * c0] = fractal.reshape(-1)
        if a["repeat_mode"] == 1:
            x, y = xx, yy
        else:
            fw += 1
            if fw == a["filter_w"]:
                fw, fh = 0, fh + 1
            if fh == a["filter_h"]:
                fh, c1 = 0, c1 + 1


def window(**changes):
    args = {
        "padding": [1, 1, 1, 1],
        "l1_h": 6,
        "l1_w": 7,
        "c1_index": 0,
        "fetch_filter_w": 0,
        "fetch_filter_h": 0,
        "left_top_w": -1,
        "left_top_h": -1,
        "stride_w": 1,
        "stride_h": 1,
        "filter_w": 3,
        "filter_h": 3,
        "dilation_filter_w": 1,
        "dilation_filter_h": 1,
        "jump_stride": 1,
        "repeat_mode": 1,
        "repeat_time": 3,
    }
    return {**args, **changes}


WINDOWS = [
    window(),
    window(fetch_filter_w=2, fetch_filter_h=1),
    window(c1_index=1, fetch_filter_w=1),
    window(stride_w=2, stride_h=2, repeat_time=1),
    window(padding=[0, 2, 1, 0], left_top_w=0, repeat_time=2),
    window(left_top_w=3, left_top_h=2, repeat_time=2),
    window(repeat_mode=0, repeat_time=18),
    window(repeat_mode=0, repeat_time=5, fetch_filter_w=1, fetch_filter_h=2, left_top_w=2, left_top_h=1),
    window(dilation_filter_w=2, dilation_filter_h=2, repeat_time=1),
    window(jump_stride=3),
    window(filter_w=1, filter_h=1, padding=[0, 0, 0, 0], left_top_w=0, left_top_h=0),
    window(repeat_time=4),
    window(stride_w=5, stride_h=1, repeat_time=2),
    window(pad_value=5),
    window(filter_w=2, filter_h=3, padding=[2, 1, 0, 2], left_top_w=-2, left_top_h=0, stride_w=3, repeat_time=2),
]


@pytest.mark.parametrize("args", WINDOWS)
@pytest.mark.parametrize("dtype", ["float16", "int8", "uint8"])
@pytest.mark.parametrize("target", ["L0A", "L0B", "UB"])
def test_load3d(args, dtype, target):
    bench = Bench()
    c0 = 32 // np.dtype(dtype).itemsize
    values = RNG.integers(0, 100, (2, 6, 7, c0))
    src = bench.tensor("L1", dtype, values.size, values)
    dst = bench.tensor(target, dtype, 20 * 16 * c0, np.full(20 * 16 * c0, 9))
    expected = bench.read(dst)
    documented_load3d(expected, bench.read(src), args)
    (op,) = bench.call("load3dv1", dst, src, **args)
    np.testing.assert_array_equal(bench.read(dst), expected)
    assert op.pipe == "MTE1"


def test_load3d_reads_exactly_the_blocks_it_needs():
    bench = Bench()
    src = bench.tensor("L1", "float16", 2 * 6 * 7 * 16, np.arange(1344))
    dst = bench.tensor("UB", "float16", 20 * 256)
    for args in WINDOWS:
        (op,) = bench.bind("load3dv1", dst, src, **args)
        numbered = np.repeat(np.arange(1, 85), 16)
        out = np.zeros(20 * 256, np.int16)
        documented_load3d(out, numbered.astype(np.int16), {**args, "pad_value": 0})
        needed = set(np.unique(out)) - {0}
        assert set(touched(op.reads[0].region) // 32 + 1) == needed


def test_load3d_marks_rows_past_the_image_undefined():
    bench = Bench(strict=True)
    src = bench.tensor("L1", "float16", 6 * 7 * 16, np.ones(672))
    dst = bench.tensor("UB", "float16", 3 * 256)
    bench.call("load3dv1", dst, src, **window())  # 42 output positions, 48 rows
    np.testing.assert_array_equal(bench.defined(dst).reshape(48, 16).all(axis=1), np.arange(48) < 42)


def test_load3d_with_a_point_kernel_turns_nz_into_zz():
    """cube.md 9: a 1x1 kernel without padding is the NZ to zZ conversion of an A operand."""
    m, k = 32, 48
    bench = Bench()
    a = RNG.standard_normal((m, k)).astype(np.float16)
    src, dst = bench.tensor("L1", "float16", m * k, to_nz(a)), bench.tensor("L0A", "float16", m * k)
    for i in range(m // 16):
        bench.call(
            "load3dv1",
            bench.at(dst, i * k * 16),
            src,
            **window(
                padding=[0, 0, 0, 0],
                l1_h=1,
                l1_w=m,
                filter_w=1,
                filter_h=1,
                left_top_w=16 * i,
                left_top_h=0,
                repeat_mode=0,
                repeat_time=k // 16,
            ),
        )
    np.testing.assert_array_equal(gather(bench.read(dst), m, k, lambda r, c: offset_a(r, c, k, 16)), a)


def test_load3d_is_checked():
    dst, src = recorded("float16", "L0A"), recorded("float16", "L1")
    check("load3dv1", dst, src, **window())
    for wrong in (
        {"stride_w": 64},
        {"padding": [0, 0, 0]},
        {"padding": [0, 0, 0, 256]},
        {"l1_h": 0},
        {"filter_w": 0},
        {"left_top_w": -256},
        {"jump_stride": 0},
        {"repeat_mode": 2},
        {"repeat_time": 256},
        {"fetch_filter_h": 255},
        {"c1_index": 4096},
        {"csize": 1},
    ):
        with pytest.raises(TikParamError, match=next(iter(wrong))):
            check("load3dv1", dst, src, **window(**wrong))
    bench = Bench()
    short = bench.tensor("L1", "float16", 6 * 7 * 16, np.ones(672))
    out = bench.tensor("UB", "float16", 3 * 256)
    with pytest.raises(TikBoundsError, match="src"):
        bench.call("load3dv1", out, short, **window(c1_index=1))
    with pytest.raises(TikBoundsError, match="dst"):
        bench.call("load3dv1", out, short, **window(jump_stride=2))


def test_decreasing_mode_elsewhere_warns_and_increases():
    assert check("load2dv1", recorded("float16", "L0A"), recorded("float16", "L1"), 1, 1, 1, 0, False, "dec")
    bench = Bench()
    src, dst = bench.tensor("L1", "float16", 768, np.arange(768)), bench.tensor("L0A", "float16", 512)
    bench.call("load2dv1", dst, src, 1, 2, 1, 0, False, "dec")
    np.testing.assert_array_equal(bench.read(dst), np.arange(256, 768))
