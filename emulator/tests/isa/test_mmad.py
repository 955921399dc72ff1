"""mmad: products of fractals, and their padding in strict mode."""

import numpy as np
import pytest
from tikemu.errors import TikAlignError, TikParamError, TikWarning

from emulator.tests.support.bench import Bench, Runtime
from emulator.tests.support.cube_layout import RNG, unpacked, up
from emulator.tests.support.vector_inputs import sample

FLOAT, HALF = ("float32", "float16", "float16"), ("float16", "float16", "float16")
INTEGERS = [("int32", "int8", "int8"), ("int32", "uint8", "int8"), ("uint32", "uint8", "uint8")]


class Product:
    """Operands of one mmad in the cube's memories: whole fractals of random numbers, padding included."""

    def __init__(self, m, k, n, types=FLOAT, strict=False, values=None):
        self.sizes, self.bench = (m, k, n), Bench(strict)
        k_up = up(k, 32 // np.dtype(types[1]).itemsize)
        self.dst, self.left, self.right = (
            self.bench.tensor(kind, dtype, size, (values or self.values)(dtype, size))
            for kind, dtype, size in zip(("L0C", "L0A", "L0B"), types, (up(m) * up(n), up(m) * k_up, k_up * up(n)))
        )

    @staticmethod
    def values(dtype, size):
        if np.dtype(dtype).kind == "f":
            return (RNG.standard_normal(size) * 3).astype(dtype)
        limits = np.iinfo(dtype)
        return RNG.integers(max(-128, limits.min), min(255, limits.max), size, endpoint=True).astype(dtype)

    def agree(self, is_bias):
        (op,) = self.bench.agree("mmad", self.dst, self.left, self.right, *self.sizes, is_bias)
        return op

    def result(self):
        return unpacked(self.dst.values, self.sizes[0], self.sizes[2])


SHAPES = [(16, 16, 16), (48, 64, 32), (30, 70, 40), (2, 3, 5), (17, 33, 1), (1, 70, 40), (1, 16, 16)]


@pytest.mark.parametrize("m,k,n", SHAPES)
@pytest.mark.parametrize("types", [FLOAT, HALF, *INTEGERS])
@pytest.mark.parametrize("is_bias", [0, True])
def test_mmad(m, k, n, types, is_bias):
    op = Product(m, k, n, types).agree(is_bias)
    assert (op.pipe, op.macs, op.accumulate) == ("M", m * k * n, bool(is_bias))
    assert op.cycles == up(m) // 16 * (up(n) // 16) * -(-k // (16 if types[1] == "float16" else 32))


@pytest.mark.parametrize("types", [FLOAT, HALF])
@pytest.mark.parametrize("seed", range(6))
def test_any_bit_patterns(types, seed):
    """Infinities and NaN saturate at every update of the accumulator, or have no effect in padding (D26c)."""
    rng = np.random.default_rng(seed)
    m, k, n = (int(size) for size in rng.integers(1, 40, 3))
    Product(m, k, n, types, values=lambda dtype, size: sample(rng, dtype, size)).agree(seed % 2)


@pytest.mark.parametrize("types", INTEGERS)
@pytest.mark.parametrize("border", ["min", "max"])
def test_integer_accumulators_saturate(types, border):
    case = Product(16, 64, 16, types)
    case.dst.store(np.full(256, getattr(np.iinfo(types[0]), border)))
    case.agree(1)


def test_mmad_adds_blocks_of_16_in_ascending_order():
    """In 2^24 + 1 + 1 + ... every block sum of 1 is lost in float32, but a block sum of 2 is not."""
    case = Product(16, 64, 16)
    a, b = np.zeros((4, 16, 16)), np.ones((4, 16, 16))
    a[0, :, 0] = b[0, :, 0] = 2.0**12
    a[1:, :, 0] = a[3, :, 1] = 1
    case.left.store(a)
    case.right.store(b)
    case.agree(0)
    assert (case.result() == 2.0**24 + 2).all()


def test_whole_fractals_must_lie_inside_the_operands(bench):
    """17 rows take two fractals, although one row of the second holds data."""
    dst = bench.tensor("L0C", "float32", 32 * 32)
    whole = {kind: bench.tensor(kind, "float16", 1024, np.ones(1024)) for kind in ("L0A", "L0B")}
    bench.bind("mmad", dst, whole["L0A"], whole["L0B"], 17, 16, 17, 0)
    for kind, argument in (("L0A", "src_fm"), ("L0B", "src_filter")):
        operands = {**whole, kind: bench.tensor(kind, "float16", 256 + 16, np.ones(272))}
        with pytest.warns(TikWarning, match=f"{argument} .*padding of its allocation"):
            bench.bind("mmad", dst, operands["L0A"], operands["L0B"], 17, 16, 17, 0)


@pytest.mark.parametrize("sizes", [(0, 16, 16), (16, 0, 16), (16, 16, 0)])
def test_mmad_of_size_zero_does_nothing(sizes):
    case = Product(16, 16, 16)
    assert case.bench.bind("mmad", case.dst, case.left, case.right, *sizes, 0) == ()


def test_operands_of_mmad_are_aligned():
    case = Product(16, 16, 16)
    case.bench.refuses(TikAlignError, "512", "mmad", case.dst, Runtime(case.left.at(16)), case.right, 16, 16, 16, 0)
    case.bench.refuses(TikAlignError, "1024", "mmad", Runtime(case.dst.at(128)), case.left, case.right, 16, 16, 16, 0)


def test_nan_operands_are_reported_in_strict_mode():
    case = Product(20, 20, 20, strict=True)
    fractals = case.left.values.reshape(2, 2, 16, 16)
    fractals[0, 1, 3, 4] = np.nan  # a lane beyond k
    fractals[1, 0, 4, 3] = np.nan  # a row beyond m
    case.left.store(fractals)
    case.agree(0)
    fractals[0, 1, 3, 3] = np.nan
    case.left.store(fractals)
    with pytest.raises(TikParamError, match="NaN"):
        case.agree(0)
