"""load2dv1 and the recipes that feed the Cube with it."""

import numpy as np
import pytest
from tikemu.errors import TikAlignError, TikBoundsError, TikWarning

from emulator.tests.support.arrays import bytes_of
from emulator.tests.support.bench import Runtime


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
