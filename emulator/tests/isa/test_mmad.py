"""mmad: products of fractals, and their padding in strict mode."""

import numpy as np
import pytest
from tikemu.errors import (
    TikAlignError,
    TikBoundsError,
    TikParamError,
    TikWarning,
)

from emulator.tests.support.bench import Bench, Runtime
from emulator.tests.support.cube_layout import RNG, expected_product, gather, offset_a, offset_c, up


def offset_b(r, c, n, k0):
    """Return the offset of element (``r``, ``c``) of a right factor in L0B."""
    n1 = up(n) // 16
    return ((r // k0) * n1 + c // 16) * 16 * k0 + (c % 16) * k0 + r % k0


def scatter(matrix, size, offset):
    """Return a matrix placed by a formula; the rest is noise."""
    flat = RNG.integers(-9, 9, size).astype(matrix.dtype)
    for r in range(matrix.shape[0]):
        for c in range(matrix.shape[1]):
            flat[offset(r, c)] = matrix[r, c]
    return flat


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
        return gather(self.dst.values, self.m, self.n, lambda r, c: offset_c(r, c, self.m))


SHAPES = [(16, 16, 16), (48, 64, 32), (30, 70, 40), (2, 3, 5), (17, 33, 1), (1, 70, 40), (1, 16, 16), (128, 128, 128)]


@pytest.mark.parametrize("m,k,n", SHAPES)
@pytest.mark.parametrize("is_bias", [0, 1])
def test_mmad_float32(m, k, n, is_bias):
    case = Product(m, k, n)
    (op,) = case.run(is_bias)
    expected = expected_product(case.a, case.b, case.c * is_bias)
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
    expected = expected_product(case.a, case.b, case.c * is_bias).astype(np.float16)
    np.testing.assert_array_max_ulp(case.result(), expected, 1)


@pytest.mark.parametrize(
    "types,start,expected",
    [(("int32", "int8", "int8"), 2**31 - 5, 2**31 - 1), (("uint32", "uint8", "uint8"), 2**32 - 5, 2**32 - 1)],
)
def test_integer_accumulators_saturate(types, start, expected):
    case = Product(16, 32, 16, types, low=1, high=9)
    case.dst.store(np.full(256, start, types[0]))
    case.run(1)
    assert (case.result() == expected).all()
    if types[0] == "int32":
        case = Product(16, 32, 16, types, low=1, high=9)
        case.left.store(-case.left.values)
        case.dst.store(np.full(256, -(2**31) + 5))
        case.run(1)
        assert (case.result() == -(2**31)).all()


def test_float_results_saturate_and_nan_becomes_zero():
    largest = np.finfo(np.float32).max
    case = Product(16, 16, 16)
    a, b = np.zeros((16, 16), np.float16), np.eye(16, dtype=np.float16)
    a[0, 0], a[1, 1], a[2, 2] = np.inf, -np.inf, np.nan
    b[np.eye(16) == 0] = 1e-3
    case.left.store(a)
    case.right.store(b.T)
    case.run(0)
    result = case.result()
    assert (result[0] == largest).all() and (result[1] == -largest).all() and (result[2] == 0).all()
    case.dst.store(np.full(256, largest))
    case.left.store(np.full(256, 60000))
    case.right.store(np.full(256, 60000))
    case.run(1)
    assert (case.result() == largest).all()


def test_every_update_of_the_accumulator_saturates():
    """+infinity in the first block of K leaves the largest number, to which the second block adds -infinity."""
    case = Product(16, 32, 16)
    a = np.zeros((16, 32), np.float16)
    a[:, 0], a[:, 16] = np.inf, -np.inf
    case.left.store(scatter(a, 512, lambda r, c: offset_a(r, c, 32, 16)))
    case.right.store(np.ones(512))
    case.run(0)
    assert (case.result() == -np.finfo(np.float32).max).all()


def test_whole_fractals_must_lie_inside_the_operands(bench):
    """17 rows take two fractals, although one row of the second holds data."""
    dst = bench.tensor("L0C", "float32", 32 * 32)
    whole = {kind: bench.tensor(kind, "float16", 1024, np.ones(1024)) for kind in ("L0A", "L0B")}
    bench.bind("mmad", dst, whole["L0A"], whole["L0B"], 17, 16, 17, 0)
    for kind, argument in (("L0A", "src_fm"), ("L0B", "src_filter")):
        operands = {**whole, kind: bench.tensor(kind, "float16", 256 + 16, np.ones(272))}
        with pytest.warns(TikWarning, match=f"{argument} .*padding of its allocation"):
            bench.bind("mmad", dst, operands["L0A"], operands["L0B"], 17, 16, 17, 0)


def test_lanes_beyond_k_are_ignored():
    """D26c holds with NaN and infinity in the padding lanes."""
    m, k, n = 20, 19, 18
    case = Product(m, k, n)
    for tensor, rows, offset in (
        (case.left, up(m), lambda r, c: offset_a(r, c, k, 16)),
        (case.right, up(n), lambda r, c: offset_b(c, r, n, 16)),
    ):
        flat = tensor.values
        for r in range(rows):
            for c in range(k, up(k)):
                flat[offset(r, c)] = np.nan if r % 2 else np.inf
        tensor.store(flat)
    case.run(0)
    np.testing.assert_array_max_ulp(case.result(), expected_product(case.a, case.b, case.c * 0), 1)


def test_mmad_adds_blocks_of_16_in_ascending_order():
    """In 2^24 + 1 + 1 + ... every block sum of 1 is lost in float32, but a block sum of 2 is not."""
    case = Product(16, 64, 16)
    a = np.zeros((16, 64), np.float16)
    a[:, 0] = 2.0**12
    a[:, [16, 32, 48, 49]] = 1
    b = np.ones((64, 16), np.float16)
    b[0] = 2.0**12
    case.left.store(scatter(a, 1024, lambda r, c: offset_a(r, c, 64, 16)))
    case.right.store(scatter(b, 1024, lambda r, c: offset_b(r, c, 16, 16)))
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
    case.left.at(0, (256,)).store(inner.left.values)
    case.right.at(0, (256,)).store(inner.right.values)
    bench.call("mmad", case.dst, case.left, case.right, 16, 16, 16, 0)
    result = gather(case.dst.values, 16, 16, lambda r, c: offset_c(r, c, 16))
    np.testing.assert_array_max_ulp(result, expected_product(inner.a, inner.b, inner.c * 0), 1)


def test_mmad_checks_capacity():
    case = Product(32, 32, 32)
    case.bench.tensor("L0A", "float16", 4096)
    case.bench.tensor("L0B", "float16", 4096)
    case.bench.tensor("L0C", "float32", 4096)
    for sizes, argument in (((33, 32, 32), "src_fm"), ((32, 33, 32), "src_fm"), ((32, 32, 33), "src_filter")):
        case.bench.refuses(TikBoundsError, argument, "mmad", case.dst, case.left, case.right, *sizes, 0)
    case.bench.refuses(TikBoundsError, "dst_fm", "mmad", case.dst.at(256), case.left, case.right, 32, 32, 32, 0)


def test_operands_of_mmad_are_aligned():
    case = Product(16, 16, 16)
    case.bench.refuses(TikAlignError, "512", "mmad", case.dst, Runtime(case.left.at(16)), case.right, 16, 16, 16, 0)
    case.bench.refuses(TikAlignError, "1024", "mmad", Runtime(case.dst.at(128)), case.left, case.right, 16, 16, 16, 0)


@pytest.mark.parametrize("m,k,n", [(30, 70, 40), (16, 16, 16), (1, 20, 17), (2, 3, 5)])
@pytest.mark.parametrize("is_bias", [0, 1])
def test_padding_of_the_result_is_undefined(m, k, n, is_bias):
    """In strict mode only valid lanes are read, and only valid rows and columns become defined."""
    case = Product(m, k, n, strict=True)
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
        tensor.memory.defined[tensor.base : tensor.base + size * len(bits)] = np.repeat(bits, size)
        if tensor is case.dst:
            expected = bits
    case.run(is_bias)
    np.testing.assert_array_equal(case.dst.defined, expected)
    np.testing.assert_array_max_ulp(case.result(), expected_product(case.a, case.b, case.c * is_bias), 1)


@pytest.mark.parametrize("which", ["left", "right", "dst"])
def test_undefined_lanes_are_reported(which):
    case = Product(20, 20, 20, strict=True)
    case.run(1)
    case.dst.store(np.zeros(case.dst.shape))
    tensor = getattr(case, which)
    last = {"left": offset_a(19, 19, 20, 16), "right": offset_b(19, 19, 20, 16), "dst": offset_c(19, 19, 20)}[which]
    size = np.dtype(tensor.dtype).itemsize
    tensor.memory.defined[tensor.base + last * size] = 0
    with pytest.raises(AssertionError, match="undefined"):
        case.run(1)
    if which == "dst":
        case.run(0)


def test_nan_operands_are_reported_in_strict_mode():
    case = Product(20, 20, 20, strict=True)
    flat = case.left.values
    flat[offset_a(3, 20, 20, 16)] = np.nan  # a lane beyond k
    flat[offset_a(20, 3, 20, 16)] = np.nan  # a row beyond m
    case.left.store(flat)
    case.run(0)
    flat[offset_a(3, 19, 20, 16)] = np.nan
    case.left.store(flat)
    with pytest.raises(TikParamError, match="NaN"):
        case.run(0)
