"""load2dv1 and the recipes that feed the Cube with it."""

import numpy as np
import pytest
from tikemu.errors import TikAlignError, TikBoundsError, TikWarning

from emulator.tests.support.arrays import bytes_of
from emulator.tests.support.bench import Runtime
from emulator.tests.support.cube_layout import RNG, expected_product, to_nz, unpacked


@pytest.mark.parametrize("dtype", ["float16", "int8", "uint16"])
@pytest.mark.parametrize(
    "source,target,pipe",
    [("L1", "L0A", "MTE1"), ("L1", "L0B", "MTE1"), ("GM", "L0A", "MTE2"), ("GM", "L0B", "MTE2"), ("GM", "L1", "MTE2")],
)
@pytest.mark.parametrize("index,repeats,stride", [(0, 1, 0), (2, 3, 1), (1, 4, 2), (5, 3, 0)])
def test_load2d(bench, dtype, source, target, pipe, index, repeats, stride):
    count = 10 * 512 // np.dtype(dtype).itemsize
    src, dst = (bench.tensor(kind, dtype, count, bytes_of(dtype, count)) for kind in (source, target))
    (op,) = bench.agree("load2dv1", dst, src, index, repeats, stride, 0)
    assert op.pipe == pipe
    if source == "L1":
        assert op.cycles == repeats * 512 / {"L0A": 512, "L0B": 256}[target]
        if dtype != "int8":
            bench.agree("load2dv1", dst, src, index, repeats, stride, 0, True)
    else:
        assert op.transfer.bursts * op.transfer.burst_bytes == repeats * 512


def test_load2d_transposes_each_fractal(bench):
    values = np.arange(256)
    src, dst = bench.tensor("L1", "float16", 256, values), bench.tensor("L0A", "float16", 256)
    bench.agree("load2dv1", dst, src, 0, 1, 0, 0, True)
    np.testing.assert_array_equal(dst.values.reshape(16, 16), values.reshape(16, 16).T)


def test_load2d_decreasing_addresses(bench):
    values = np.arange(6 * 256)
    src, dst = bench.tensor("GM", "float16", 1536, values), bench.tensor("L1", "float16", 1536)
    bench.agree("load2dv1", dst, src, 5, 3, 2, 0, False, "dec")
    np.testing.assert_array_equal(dst.values[:768].reshape(3, 256), values.reshape(6, 256)[[5, 3, 1]])
    bench.refuses(TikBoundsError, None, "load2dv1", dst, src, 3, 3, 2, 0, False, "dec")
    src, dst = bench.tensor("L1", "float16", 768, values[:768]), bench.tensor("L0A", "float16", 512)
    with pytest.warns(TikWarning, match="addresses increase"):
        bench.agree("load2dv1", dst, src, 1, 2, 1, 0, False, "dec")


def test_load2d_source_is_aligned_to_blocks_and_whole(bench):
    src, dst = bench.tensor("L1", "float16", 512, np.arange(512)), bench.tensor("L0A", "float16", 512)
    bench.call("load2dv1", dst, src.at(16), 0, 1, 0, 0)
    np.testing.assert_array_equal(dst.values[:256], np.arange(16, 272))
    bench.refuses(TikAlignError, "32", "load2dv1", dst, Runtime(src.at(8)), 0, 1, 0, 0)
    bench.refuses(TikAlignError, "512", "load2dv1", Runtime(dst.at(16)), src, 0, 1, 0, 0)
    assert bench.bind("load2dv1", dst, src, 0, Runtime(0), 1, 0) == ()


def test_load2d_carries_defined_bits(strict, bench):
    src, dst = bench.tensor("L1", "float16", 512), bench.tensor("L0A", "float16", 512)
    src.at(256 + 3 * 16, (16,)).store(np.ones(16))
    bench.call("load2dv1", dst, src, 0, 2, 1, 0, True)
    expected = np.zeros((2, 16, 16), bool)
    expected[1, :, 3] = True
    np.testing.assert_array_equal(dst.defined.reshape(2, 16, 16), expected)


def load(bench, l0, x, recipe="as NZ"):
    """Load a factor to L0A or L0B from its NZ form or the transposed one."""
    rows, columns = x.shape
    right = l0.memory.kind == "L0B"
    l1 = bench.tensor("L1", "float16", x.size, to_nz(x if recipe == "as NZ" else x.T))
    if recipe != "as NZ":
        bench.call("load2dv1", l0, l1, 0, x.size // 256, 1, 0, not right)
        return
    for i in range(rows // 16):
        bench.call("load2dv1", l0.at(i * columns * 16), l1.at(i * 256), 0, columns // 16, rows // 16, 0, right)


@pytest.mark.parametrize("m,k,n", [(16, 16, 16), (32, 48, 64), (64, 32, 16)])
@pytest.mark.parametrize("left", ["as NZ", "transposed as NZ"])
@pytest.mark.parametrize("right", ["as NZ", "transposed as NZ"])
def test_operand_recipes_give_the_product(strict, bench, m, k, n, left, right):
    a, b = RNG.standard_normal((m, k)).astype(np.float16), RNG.standard_normal((k, n)).astype(np.float16)
    l0a, l0b = bench.tensor("L0A", "float16", m * k), bench.tensor("L0B", "float16", k * n)
    l0c, ub = bench.tensor("L0C", "float32", m * n), bench.tensor("UB", "float16", m * n)
    load(bench, l0a, a, left)
    load(bench, l0b, b, right)
    bench.call("mmad", l0c, l0a, l0b, m, k, n, 0)
    bench.call("tensor_mov", ub, l0c, "m", 1, m * n // 256, 0, 0)
    result = ub.values.reshape(n // 16, m, 16).transpose(1, 0, 2).reshape(m, n)
    expected = expected_product(a, b).astype(np.float16)
    np.testing.assert_array_max_ulp(result, expected, 1)


def test_k_slice_recipes_accumulate_the_product(strict, bench):
    m, k, n = 48, 64, 32
    a, b = RNG.standard_normal((m, k)).astype(np.float16), RNG.standard_normal((k, n)).astype(np.float16)
    a_l1, b_l1 = bench.tensor("L1", "float16", m * k, to_nz(a)), bench.tensor("L1", "float16", k * n, to_nz(b))
    l0a, l0b = bench.tensor("L0A", "float16", m * 16), bench.tensor("L0B", "float16", 16 * n)
    l0c = bench.tensor("L0C", "float32", m * n)
    for s in range(k // 16):
        bench.call("load2dv1", l0a, a_l1.at(s * m * 16), 0, m // 16, 1, 0, False)
        bench.call("load2dv1", l0b, b_l1.at(s * 256), 0, n // 16, k // 16, 0, True)
        bench.call("mmad", l0c, l0a, l0b, m, 16, n, int(s > 0))
    result = unpacked(l0c.values, m, n)
    np.testing.assert_array_max_ulp(result, expected_product(a, b), 1)


def test_product_of_a_product(strict, bench):
    """The form in which C leaves L0C is the NZ operand of the next product (cube.md 2): (A B) D."""
    m, k, n, p = 32, 48, 64, 16
    a, b, d = (RNG.standard_normal(shape).astype(np.float16) for shape in ((m, k), (k, n), (n, p)))
    l0a, l0b = bench.tensor("L0A", "float16", m * n), bench.tensor("L0B", "float16", k * n)
    l0c, ub = bench.tensor("L0C", "float32", m * n), bench.tensor("UB", "float16", m * n)
    load(bench, l0a, a)
    load(bench, l0b, b)
    bench.call("mmad", l0c, l0a, l0b, m, k, n, 0)
    bench.call("data_move", ub, l0c, 0, 1, m * n // 256, 0, 0, 1)
    l1 = bench.tensor("L1", "float16", m * n)
    bench.call("data_move", l1, ub, 0, 1, m * n // 16, 0, 0)
    for i in range(m // 16):
        bench.call("load2dv1", l0a.at(i * n * 16), l1.at(i * 256), 0, n // 16, m // 16, 0, False)
    load(bench, l0b, d)
    bench.call("mmad", l0c, l0a, l0b, m, n, p, 0)
    result = unpacked(l0c.values, m, p)
    middle = expected_product(a, b).astype(np.float16)
    np.testing.assert_allclose(result, middle.astype(np.float64) @ d.astype(np.float64), rtol=2e-3, atol=2e-2)
