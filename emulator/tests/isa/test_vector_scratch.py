"""Arguments of other chips, and the scratch memory of high-precision functions."""

import numpy as np
import pytest
from tikemu.errors import TikBoundsError, TikParamError, TikUnsupportedArgumentError

from emulator.tests.support.bench import Bench, three_tensors


def test_mask_mode_and_stride_unit():
    b, x, y, _ = three_tensors()
    b.call("vec_adds", 128, y, x, 1.0, 1, 8, 8, mask_mode="normal")
    b.call("vadds", 128, y, x, 1.0, 1, 1, 1, 8, 8, 0)
    b.warns('mask_mode="counter"', "vec_adds", 128, y, x, 1.0, 1, 8, 8, "counter")
    b.refuses(TikParamError, "mask_mode must be", "vec_adds", 128, y, x, 1.0, 1, 8, 8, "other")
    b.refuses(TikUnsupportedArgumentError, "stride_unit must be 0", "vadds", 128, y, x, 1.0, 1, 1, 1, 8, 8, 1)
    strict, x, y, _ = three_tensors(strict=True)
    strict.refuses(TikUnsupportedArgumentError, "counter", "vec_adds", 128, y, x, 1.0, 1, 8, 8, "counter")


def test_rounding_shift_is_refused():
    b, x, y, _ = three_tensors("int16")
    b.call("vshr", 128, y, x, 1, 1, 1, 1, 8, 8, False)
    b.refuses(TikUnsupportedArgumentError, "round_en must be False", "vshr", 128, y, x, 1, 1, 1, 1, 8, 8, True)
    b.refuses(TikBoundsError, r"scalar must be in \[0, 16\]", "vshr", 128, y, x, 17, 1, 1, 1, 8, 8)


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
