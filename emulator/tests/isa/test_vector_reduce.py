"""Reductions against the naive interpreter; the order of additions is part of the result."""

import math

import numpy as np
import pytest
from tikemu.errors import TikAlignError, TikBoundsError, TikParamError

from emulator.tests.support.bench import Bench, Runtime
from emulator.tests.support.vector_inputs import extent, random_mask, sample

pytestmark = pytest.mark.filterwarnings("ignore::tikemu.errors.TikWarning")
FLOATS = ("float16", "float32")


UNITS = {
    "vcadd": {"float16": 2, "float32": 4},
    "vcmax": {"float16": 4},
    "vcmin": {"float16": 4},
    "vcgadd": {"float16": 16},
    "vcgmax": {"float16": 16},
    "vcgmin": {"float16": 16},
    "vcpadd": {"float16": 128},
}


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, units in UNITS.items() for d in units])
def test_legacy_reduction(arithmetic, name, dtype):
    size, unit = np.dtype(dtype).itemsize, UNITS[name][dtype]
    for seed in range(5):
        rng = np.random.default_rng([seed, *name.encode()])
        mask, repeats = random_mask(rng, 256 // size), int(rng.integers(1, 6))
        rep, blk, dst_rep = int(rng.choice([0, 3, 8, 9])), int(rng.choice([1, 1, 2, 0])), int(rng.integers(1, 4))
        bench = Bench()
        x = bench.ub(sample(rng, dtype, extent(mask, size, repeats, rep, blk) // size))
        y = bench.ub(sample(rng, dtype, (repeats * dst_rep * unit + 128) // size))
        bench.agree(name, mask, y, x, repeats, dst_rep, blk, rep)


def test_saturating_nodes_as_documented(bench, arithmetic):
    """60000 + 60000 saturates before -30000 + 100 is added: 65504 - 29900 = 35604, to the precision of float16
    (-29904 and then 35584, ties to even)."""
    x = bench.ub(np.array([60000, 60000, -30000, 100], np.float16))
    y, work = bench.ub(np.zeros(16, np.float16)), bench.ub(np.zeros(16, np.float16))
    bench.call("vcadd", 4, y, x, 1, 1, 1, 8)
    assert y.values[0] == 35584
    bench.call("vec_reduce_add", 4, y[2:], x, work, 1, 8)
    assert y.values[2] == 35584


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("repeats", [1, 2, 3, 64, 65, 100, 128, 130])
def test_reduce_add_order(arithmetic, dtype, repeats):
    """A tree adds adjacent pairs inside a repeat; then trees add groups of 64 (float32) or 128 (float16) sums."""
    width = 256 // np.dtype(dtype).itemsize
    rng = np.random.default_rng(repeats)
    for mask in (width, width - 5):
        bench = Bench()
        x = bench.ub(
            (rng.standard_normal(repeats * width) * 10.0 ** rng.integers(-2, 3, repeats * width)).astype(dtype)
        )
        y, work = bench.ub(np.full(4, 7, dtype)), bench.ub(np.zeros(repeats + 16, dtype))
        bench.agree("vec_reduce_add", mask, y, x, work, repeats, 8)


def test_reduce_add_is_not_the_halving_order(bench, arithmetic):
    """Silicon excludes folding the upper half onto the lower half."""
    x = np.zeros(64, np.float32)
    x[[0, 1, 32]] = [1e8, -1e8, 1.0]
    source, y, work = (bench.ub(v) for v in (x, np.zeros(8, np.float32), np.zeros(8, np.float32)))
    bench.call("vec_reduce_add", 64, y, source, work, 1, 8)
    assert y.values[0] == 1.0
    x[[1, 32]] = [1.0, -1e8]
    source = bench.ub(x)
    bench.call("vec_reduce_add", 64, y, source, work, 1, 8)
    assert y.values[0] == 0.0  # 1e8 + 1 loses the 1; folding halves would keep it


@pytest.mark.parametrize("name", ["max", "min"])
@pytest.mark.parametrize("repeats", [1, 2, 7, 200, 511])
def test_reduce_extreme_with_index(name, repeats):
    rng = np.random.default_rng(repeats)
    for mask in (128, 37, random_mask(rng, 128)):
        bench = Bench()
        x = bench.ub(rng.integers(-20, 20, repeats * 128).astype(np.float16))
        y, work = bench.ub(np.zeros(4, np.float16)), bench.ub(np.zeros(work_elements(repeats), np.float16))
        bench.agree(f"vec_reduce_{name}", mask, y[2:], x, work, repeats, 8, cal_index=True)
        bench.agree(f"vec_reduce_{name}", mask, y, x, work, repeats, 8)


def work_elements(repeats):
    """Return the documented size of work_tensor with an index."""
    n1 = 2 * repeats
    a2 = math.ceil(n1 / 16) * 16
    n2 = math.ceil(n1 / 128) * 2
    a3 = math.ceil(n2 / 16) * 16
    n3 = math.ceil(n2 / 128) * 2
    a4 = math.ceil(n3 / 16) * 16
    n4 = math.ceil(n3 / 128) * 2
    return a2 + a3 + a4 + n4


def test_scratch_sizes(bench):
    x, y = bench.ub(np.ones(128 * 40, np.float16)), bench.ub(np.zeros(16, np.float16))
    enough = bench.ub(np.zeros(work_elements(40), np.float16))
    short = enough[1:]  # misaligned and too small; the size counts from the start of the operand
    bench.call("vec_reduce_max", 128, y, x, enough, 40, 8, True)
    bench.refuses(TikAlignError, "work_tensor", "vec_reduce_max", 128, y, x, short, 40, 8, True)
    with pytest.raises(TikParamError, match=rf"work_tensor must hold at least {work_elements(40)} elements, got"):
        bench.call("vec_reduce_max", 128, y, x, enough[16:], 40, 8, True)
    small = bench.ub(np.zeros(40, np.float16))
    bench.warns("work_tensor must hold at least 80 elements, got 40", "vec_reduce_max", 128, y, x, small, 40, 8)
    bench.warns("work_tensor must hold at least 48 elements, got 40", "vec_reduce_add", 128, y, x, small, 40, 8)
    strict = Bench(strict=True)
    x, y = strict.ub(np.ones(128 * 40, np.float16)), strict.ub(np.zeros(16, np.float16))
    with pytest.raises(TikParamError, match="work_tensor must hold at least 48"):
        strict.call("vec_reduce_add", 128, y, x, strict.ub(np.zeros(40, np.float16)), 40, 8)


def test_index_must_be_representable(bench):
    x, y = bench.ub(np.zeros(128, np.float16)), bench.ub(np.zeros(16, np.float16))
    work = bench.ub(np.zeros(4096, np.float16))
    bench.call("vec_reduce_max", 128, y, x, work, 511, 0, True)
    bench.call("vec_reduce_max", 128, y, x, work, 512, 0, False)
    bench.refuses(TikParamError, r"repeat_times must be in \[1, 511\]", "vec_reduce_max", 128, y, x, work, 512, 0, True)
    with pytest.raises(TikBoundsError, match=r"repeat_times must be in \[0, 511\]"):
        bench.call("vec_reduce_max", 128, y, x, work, Runtime(512), 0, True)
    with pytest.raises(TikParamError, match=r"repeat_times must be in \[1, 4095\], got 4096"):
        bench.call("vec_reduce_max", 128, y, x, work, 4096, 0, False)


@pytest.mark.parametrize(("name", "unit"), [("vcadd", 2), ("vcmax", 4), ("vcgadd", 16), ("vcgmax", 16), ("vcpadd", 32)])
def test_alignment_of_the_result(bench, name, unit):
    x, y = bench.ub(np.zeros(128, np.float16)), bench.ub(np.zeros(128, np.float16))
    bench.call(name, 128, y[unit // 2], x, 1, 1, 1, 8)
    if unit > 2:
        with pytest.raises(TikAlignError, match=f"dst .* must start at a multiple of {unit} bytes"):
            bench.call(name, 128, y[unit // 4], x, 1, 1, 1, 8)
    bench.refuses(TikAlignError, "src .* must start at a multiple of 32 bytes", name, 64, y, x[8], 1, 1, 1, 8)


def test_result_stride_of_zero(bench):
    x, y = bench.ub(np.zeros(256, np.float16)), bench.ub(np.zeros(128, np.float16))
    bench.refuses(TikParamError, r"dst_rep_stride must be in \[1, 255\], got 0", "vcadd", 128, y, x, 2, 0, 1, 8)
    with pytest.raises(TikBoundsError, match=r"dst_rep_stride must be in \[1, 255\], got 0"):
        bench.call("vcadd", 128, y, x, 2, Runtime(0), 1, 8)
    bench.warns("dst_rep_stride", "vcadd", 128, y, x, 1, 0, 1, 8)


def test_mask_without_lanes(bench):
    """A whole-repeat sum of nothing is 0; other results are not written."""
    x, y = bench.ub(np.ones(128, np.float16)), bench.ub(np.full(128, 7, np.float16))
    for name in ("vcmax", "vcgadd", "vcgmax", "vcpadd"):
        bench.call(name, [0, 0], y, x, 1, 1, 1, 8)
        assert (y.values == 7).all()
    bench.call("vcadd", [0, 0], y, x, 2, 1, 1, 0)
    assert y.values[:3].tolist() == [0, 0, 7]
    work = bench.ub(np.zeros(16, np.float16))
    bench.call("vec_reduce_add", Runtime(0), y[8], x, work, 1, 8)
    assert y.values[7:10].tolist() == [7, 0, 7]
