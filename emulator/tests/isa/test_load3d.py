"""load3dv1: gathers the windows of a convolution."""

import numpy as np
import pytest

from emulator.tests.support.arrays import bytes_of
from emulator.tests.support.bench import Runtime


def window(**changes):
    """Return the arguments of load3dv1 with some changed."""
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
def test_load3d(bench, args, dtype, target):
    c0 = 32 // np.dtype(dtype).itemsize
    src = bench.tensor("L1", dtype, 2 * 6 * 7 * c0, bytes_of(dtype, 84 * c0))
    dst = bench.tensor(target, dtype, 20 * 16 * c0, np.full(20 * 16 * c0, 9))
    plain = ("padding", "pad_value")
    run_time = {name: value if name in plain else Runtime(value) for name, value in args.items()}
    for given in (args, run_time):  # kernels gather windows in loops
        (op,) = bench.agree("load3dv1", dst, src, **given)
        assert op.pipe == "MTE1"


def test_load3d_marks_rows_past_the_image_undefined(strict, bench):
    src = bench.tensor("L1", "float16", 6 * 7 * 16, np.ones(672))
    dst = bench.tensor("UB", "float16", 3 * 256)
    bench.call("load3dv1", dst, src, **window())  # 42 output positions, 48 rows
    np.testing.assert_array_equal(dst.defined.reshape(48, 16).all(axis=1), np.arange(48) < 42)
