"""Comparisons, selection and the compare-mask register."""

import numpy as np
import pytest
from tikemu.errors import TikAlignError, TikError, TikParamError, TikWarning

from emulator.tests.support.bench import Bench, Runtime
from emulator.tests.support.vector_inputs import extent, random_mask, sample

CONDITIONS = ("lt", "gt", "ge", "eq", "ne", "le")
FLOATS = ("float16", "float32")


def close_pair(rng, dtype, count):
    """Return two samples that agree in about half of the places."""
    first, second = sample(rng, dtype, count), sample(rng, dtype, count)
    return first, np.where(rng.random(count) < 0.5, first, second)


@pytest.mark.parametrize("legacy", [False, True], ids=["vec", "legacy"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CONDITIONS)
def test_bits_of_all_lanes(arithmetic, name, dtype, legacy):
    """Bit k of the little-endian string is the comparison of lane k, over all repeats. IEEE rules hold on raw bits."""
    size = np.dtype(dtype).itemsize
    width = 256 // size
    for seed in range(3):
        rng = np.random.default_rng(seed)
        repeats = int(rng.integers(1, 6))
        rep, blk = [[int(rng.choice([0, 3, 8, 9])) for _ in range(2)], [int(rng.integers(0, 3)) for _ in range(2)]]
        if not legacy:
            blk = [1, 1]
        count = max(extent(width, size, repeats, r, b) for r, b in zip(rep, blk)) // size
        bench = Bench()
        x, y = map(bench.ub, close_pair(rng, dtype, count))
        bits = bench.ub(np.full(repeats * width // 64 + 1, 0x5A5A, np.uint64))
        bench.agree(
            f"vcmpv_{name}" if legacy else f"vec_cmpv_{name}", bits, x, y, repeats, *(blk if legacy else []), *rep
        )


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("name", CONDITIONS)
def test_register_keeps_masked_off_bits(name, dtype):
    width = 256 // np.dtype(dtype).itemsize
    for seed in range(4):
        rng = np.random.default_rng(seed)
        mask = random_mask(rng, width)
        bench = Bench()
        x, y = map(bench.ub, close_pair(rng, dtype, width))
        old = bench.ub(rng.integers(0, 1 << 16, 8).astype(np.uint16))
        new = bench.ub(np.zeros(8, np.uint16))
        bench.agree("mov_tensor_to_cmpmask", old)
        handle = bench.agree(f"vcmp_{name}", mask, x, y, 1, 1)
        bench.agree("mov_cmpmask_to_tensor", new, handle)


def test_register_is_initially_zero(bench):
    x, out = bench.ub(np.ones(64, np.float32)), bench.ub(np.full(2, 7, np.uint64))
    handle = bench.call("vcmp_eq", 3, x, x, 1, 1)
    bench.call("mov_cmpmask_to_tensor", out, handle)
    assert out.values.tolist() == [0b111, 0]


@pytest.mark.parametrize("legacy", [False, True], ids=["vec", "legacy"])
@pytest.mark.parametrize("dtype", FLOATS)
def test_select(dtype, legacy):
    """The same bits serve every repeat; bit patterns (NaN, infinities) pass through."""
    size = np.dtype(dtype).itemsize
    width = 256 // size
    for seed in range(4):
        rng = np.random.default_rng(seed)
        mask, repeats = random_mask(rng, width), int(rng.integers(1, 5))
        rep, blk = [8 * 2 + 1, int(rng.choice([0, 8, 5])), int(rng.choice([0, 8, 5]))], [1, 1, 1]
        if legacy:
            blk = [2, int(rng.integers(0, 3)), 1]
        bench = Bench()
        tensors = [bench.ub(sample(rng, dtype, extent(width, size, repeats, r, b) // size)) for r, b in zip(rep, blk)]
        bits = bench.ub(rng.integers(0, 256, 16).astype(np.uint8))
        if legacy:
            handle = bench.agree("mov_tensor_to_cmpmask", bits)
            bench.agree("vsel", mask, 0, tensors[0], handle, *tensors[1:], repeats, *blk, *rep)
        else:
            bench.agree("vec_sel", mask, 0, tensors[0], bits, *tensors[1:], repeats, *rep)


def test_short_vsel_has_zero_strides(bench):
    x, y, z = (bench.ub(np.full(128, value, np.float16)) for value in (1, 2, 0))
    handle = bench.call("vcmp_lt", 128, x, y, 1, 1)
    bench.call("vsel", 128, 0, z, handle, x, y, 1, 1, 1, 1)
    assert (z.values == 1).all()


def test_stale_handle():
    """There is one register per core: default mode uses its present content and warns, strict mode refuses."""
    for strict in (False, True):
        bench = Bench(strict=strict)
        x, y, z = (bench.ub(np.full(128, value, np.float16)) for value in (1, 2, 0))
        stale = bench.call("vcmp_lt", 128, x, y, 1, 1)
        bench.call("vsel", 128, 0, z, stale, x, y, 1, 1, 1, 1, 8, 8, 8)
        assert (z.values == 1).all()
        bench.call("vcmp_gt", 128, x, y, 1, 1)
        if strict:
            bench.refuses(TikError, "one register per core", "vsel", 128, 0, z, stale, x, y, 1, 1, 1, 1, 8, 8, 8)
        else:
            bench.warns("one register per core", "vsel", 128, 0, z, stale, x, y, 1, 1, 1, 1, 8, 8, 8)
            assert (z.values == 2).all()


def test_comparison_in_place_needs_one_repeat(strict, bench):
    x = bench.ub(np.arange(256, dtype=np.float32))
    bits = bench.ub(np.zeros(4, np.uint64))
    bench.call("vec_cmpv_lt", bits, x, x, 4, 8, 8)
    overlapping = Bench(strict=True)
    y = overlapping.ub(np.zeros(1024, np.uint8))
    view = y[0:1024]
    floats = type(view)(**{**view.__dict__, "dtype": "float32", "shape": (256,)})
    overlapping.call("vec_cmpv_eq", y, floats, floats, 1, 8, 8)
    assert (y.values[:8] == 255).all()
    overlapping.refuses(TikParamError, "only when repeat_times is 1", "vec_cmpv_lt", y, floats, floats, 4, 8, 8)


@pytest.mark.parametrize("api", ["mov_tensor_to_cmpmask", "mov_cmpmask_to_tensor"])
def test_bits_of_the_register_at_16_bytes(api):
    """Documents ask for 16 bytes or for 32. A multiple of 16 warns, and strict mode refuses it (D16d)."""

    def call(b, place, run_time):
        bits = b.ub(np.arange(32, dtype=np.uint16))
        at = Runtime(bits[place:]) if run_time else bits[place:]
        handle = b.call("mov_tensor_to_cmpmask", at if api == "mov_tensor_to_cmpmask" else bits)
        b.call("mov_cmpmask_to_tensor", bits[16:] if api == "mov_tensor_to_cmpmask" else at, handle)
        return bits.values

    for run_time in (False, True):
        with pytest.warns(TikWarning, match="starts at byte 16 of UB"):
            values = call(Bench(), 8, run_time)
        if api == "mov_tensor_to_cmpmask":
            assert values[16:24].tolist() == list(range(8, 16))
        else:
            assert values[8:16].tolist() == list(range(8))
        with pytest.raises(TikAlignError, match="starts at byte 16"):
            call(Bench(strict=True), 8, run_time)
        call(Bench(strict=True), 16, run_time)
        with pytest.raises(TikAlignError, match="multiple of 16 bytes"):
            call(Bench(), 4, run_time)
