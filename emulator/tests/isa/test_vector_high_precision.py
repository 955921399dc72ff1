"""Functions of high precision with their scratch memory, and the order of repeats."""

import math

import numpy as np
import pytest
from tikemu.errors import TikParamError, TikUnsupportedArgumentError

from emulator.tests.support.bench import Bench, three_tensors
from emulator.tests.support.vector_inputs import FLOATS, random_mask, sample, settings

pytestmark = pytest.mark.filterwarnings("ignore::tikemu.errors.TikWarning")


#: dtype of work_tensor, and its size in units of the span by dtype.
HIGH = {
    "rec": ("float32", {"float16": 4, "float32": 2}),
    "rsqrt": ("float32", {"float16": 6, "float32": 4}),
    "ln": ("float16", {"float16": 10}),
    "expm1": ("float16", {"float16": 11}),
}


def scratch(name, dtype, setting):
    """Return the number of elements of work_tensor by the documented formula."""
    block = 16 if dtype == "float16" else 8
    lanes = setting.mask if isinstance(setting.mask, int) else (setting.mask[0] << 64 | setting.mask[1]).bit_length()
    pitch = setting.rep[1]
    if name == "expm1":
        lanes, pitch = 128, 8 if 0 < pitch <= 8 else pitch
    span = (setting.repeats - 1) * pitch * block + lanes
    return HIGH[name][1][dtype] * (math.ceil(span / block) * block)


@pytest.mark.parametrize(("name", "dtype"), [(n, d) for n, row in HIGH.items() for d in row[1]])
def test_high_precision(arithmetic, name, dtype):
    for setting in settings(f"{name}_high_preci", (dtype, dtype), False):
        work = setting.bench.ub(np.zeros(scratch(name, dtype, setting), HIGH[name][0]))
        (operation,) = setting.agree(f"{name}_high_preci", work)
        assert [access.operand.name for access in operation.undefined] == [work.info.name]


@pytest.mark.parametrize("dtype", [*FLOATS, "int32"])
@pytest.mark.parametrize("name", ["add", "sub", "mul", "max", "min"])
def test_accumulation_over_repeats_is_legal(arithmetic, name, dtype, recwarn):
    """dst overlaps src1 with both strides 0: every repeat sees the previous result."""
    rng = np.random.default_rng(5)
    bench = Bench(strict=True)
    width = 256 // np.dtype(dtype).itemsize
    terms = bench.ub((rng.standard_normal(6 * width) * 3).astype(dtype))
    total = bench.ub(np.ones(width, dtype))
    bench.agree(f"vec_{name}", width, total, terms, total, 6, 0, 8, 0)
    assert (total.values != 1).any()
    assert not recwarn.list


def test_reading_what_a_later_repeat_overwrites_is_legal(arithmetic, recwarn):
    """Data move towards lower addresses: the destination of a repeat was a source of an earlier repeat."""
    bench = Bench(strict=True)
    x = bench.ub(np.arange(64 * 5, dtype=np.float32))
    bench.call("vec_adds", 64, x, x[64:], 0.0, 4, 8, 8)
    assert (x.values[:256] == np.arange(64, 320)).all()
    assert not recwarn.list


def test_partial_overlap_with_one_repeat(arithmetic, recwarn):
    bench = Bench(strict=True)
    x = bench.ub(np.arange(128, dtype=np.float32))
    bench.call("vec_adds", 64, x, x, 1.0, 1, 8, 8)  # in place
    assert not recwarn.list
    bench.refuses(Exception, "overlap partly", "vec_adds", 64, x[8:], x, 1.0, 1, 8, 8)
    lenient = Bench()
    y = lenient.ub(np.arange(128, dtype=np.float32))
    lenient.warns("overlap partly", "vec_adds", 64, y[8:], y, 1.0, 1, 8, 8)
    assert (y.values[8:72] == np.arange(64) + 1).all()


def test_interleaved_operands_do_not_overlap(arithmetic, recwarn):
    """Source and destination take turns block by block, or lane by lane, in one tensor."""
    bench = Bench(strict=True)
    x = bench.ub(np.arange(512, dtype=np.float32))
    bench.call("vadds", 64, x[8:], x, 0.5, 1, 2, 2, 16, 16)
    bench.call("vadds", 64, x[8 + 128 :], x[128:], 0.5, 3, 2, 2, 16, 16)
    blocks = x.values.reshape(-1, 2, 8)
    assert (blocks[:32, 1] == blocks[:32, 0] + 0.5).all()
    assert not recwarn.list


@pytest.mark.parametrize("dtype", ["float16", "float32", "int32"])
def test_any_overlap_runs_repeat_by_repeat(arithmetic, dtype):
    """Operands lie anywhere in one tensor. In order, each repeat reads its sources before it writes its destination."""
    size = np.dtype(dtype).itemsize
    for seed in range(60):
        rng = np.random.default_rng([seed, size])
        mask, repeats = random_mask(rng, 256 // size), int(rng.integers(1, 7))
        rep = [int(n) for n in rng.choice([0, 1, 4, 8, 9], 3)]
        blk = [int(rng.choice([1, 1, 2, 8])), int(rng.integers(0, 3)), int(rng.integers(0, 3))]
        bench = Bench()
        x = bench.ub(sample(rng, dtype, 8192 // size))
        operands = [x[int(rng.integers(0, 40)) * 32 // size :] for _ in rep]
        bench.agree("vadd", mask, *operands, repeats, *blk, *rep)


# ------------------------------------------------------------------------------------------- scratch memory
@pytest.mark.parametrize(
    ("name", "dtype", "work", "needed"),
    [
        ("rec", "float16", "float32", 4 * (8 * 16 + 128)),
        ("rec", "float32", "float32", 2 * (8 * 8 + 64)),
        ("ln", "float16", "float16", 10 * (8 * 16 + 128)),
        ("expm1", "float16", "float16", 11 * (8 * 16 + 128)),
    ],
)
def test_scratch_that_is_too_small(name, dtype, work, needed):
    """Two repeats of a full mask with stride 8: the documented size passes, one element less does not."""
    b, x, y, _ = three_tensors(dtype)
    width = 256 // np.dtype(dtype).itemsize
    api = f"vec_{name}_high_preci"
    b.call(api, width, y, x, b.ub(np.zeros(needed, work)), 2, 8, 8)
    with pytest.raises(TikParamError, match=f"at least {needed} elements of {work}, got {needed - 1}"):
        b.call(api, width, y, x, b.ub(np.zeros(needed - 1, work)), 2, 8, 8)
    b.refuses(TikParamError, r"t\[a\] is one element", api, width, y, x, b.ub(np.zeros(needed, work))[0], 2, 8, 8)
    wrong = "float16" if work == "float32" else "float32"
    with pytest.raises(TikUnsupportedArgumentError, match=f"work_tensor must be of {work}"):
        b.call(api, width, y, x, b.ub(np.zeros(needed, wrong)), 2, 8, 8)


def test_scratch_of_rsqrt_is_uncertain():
    b, x, y, _ = three_tensors("float32")
    small = b.ub(np.zeros(4 * 64 - 1, np.float32))
    b.warns("at least 256 elements", "vec_rsqrt_high_preci", 64, y, x, small, 1, 8, 8)
    b, x, y, _ = three_tensors("float32", strict=True)
    with pytest.raises(TikParamError, match="at least 256 elements"):
        b.call("vec_rsqrt_high_preci", 64, y, x, b.ub(np.zeros(4 * 64 - 1, np.float32)), 1, 8, 8)


def test_high_precision_takes_slices():
    """The implementation slices its arguments: an element t[a] is questionable, t[a:] is not."""
    b, x, y, work = three_tensors("float32", strict=True)
    b.call("vec_rec_high_preci", 64, y[64:], x[64:128], work, 1, 8, 8)
    b.refuses(TikParamError, "src is one element", "vec_rec_high_preci", 64, y, x[64], work, 1, 8, 8)
    b, x, y, work = three_tensors("float32")
    b.warns("dst is one element", "vec_rec_high_preci", 64, y[64], x, work, 1, 8, 8)


def test_scratch_overlaps_nothing():
    b = Bench(strict=True)
    x, y = b.ub(np.ones(64, np.float32)), b.ub(np.ones(512, np.float32))
    b.call("vec_rec_high_preci", 64, y, x, y[64:], 1, 8, 8)
    b.refuses(TikParamError, "dst and work_tensor must not overlap", "vec_rec_high_preci", 64, y, x, y[56:], 1, 8, 8)
    b.refuses(TikParamError, "dst and src must not overlap", "vec_rec_high_preci", 64, x, x, y, 1, 8, 8)
