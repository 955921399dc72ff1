"""Test every check of vector instructions with a call on each side of the rule."""

import numpy as np
import pytest
from tikemu.errors import TikAlignError, TikBoundsError, TikParamError, TikUnsupportedArgumentError

from emulator.tests.support.bench import Bench, Runtime, three_tensors

PARAM, BOUNDS, ALIGN, UNSUPPORTED = TikParamError, TikBoundsError, TikAlignError, TikUnsupportedArgumentError


@pytest.mark.parametrize(
    ("dtype", "good", "bad", "error", "message"),
    [
        ("float16", 128, 129, PARAM, r"mask must be in \[1, 128\], got 129"),
        ("float16", 1, 0, PARAM, r"mask must be in \[1, 128\], got 0"),
        ("float32", 64, 65, PARAM, r"mask must be in \[1, 64\], got 65"),
        ("float32", np.int64(3), -1, PARAM, "got -1"),
        ("float16", 16, 16.0, PARAM, "mask must be an integer"),
        ("float16", 16, True, PARAM, "mask must be an integer"),
        ("float16", 16, "16", PARAM, "mask must be an integer"),
        ("float16", [0, 1], [1], PARAM, r"list \[mask_h, mask_l\], got a list of 1"),
        ("float16", [1, 0], [1, 0, 0], PARAM, "got a list of 3"),
        ("float32", [0, 2**64 - 1], [1, 1], PARAM, r"mask_h must be in \[0, 0x0\] for 64 lanes, got 1"),
        ("float16", [2**64 - 1, 0], [0, 2**64], PARAM, "mask_l must be in"),
        ("float16", [0, 3], [0, -1], PARAM, "mask_l must be in"),
        ("float16", [0, 3], [0, 1.0], PARAM, "mask_l must be an integer"),
        ("float16", Runtime(128), Runtime(129), BOUNDS, r"mask must be in \[0, 128\], got 129"),
        ("float32", Runtime(1), Runtime(-1), BOUNDS, "got -1"),
        ("float16", Runtime(8, "int64"), Runtime(8, "float32"), PARAM, "got one of float32"),
    ],
)
def test_mask(dtype, good, bad, error, message):
    b, x, y, _ = three_tensors(dtype)
    b.call("vec_abs", good, y, x, 1, 8, 8)
    b.refuses(error, message, "vec_abs", bad, y, x, 1, 8, 8)


@pytest.mark.parametrize(
    ("mask", "lanes"),
    [
        ([Runtime(-1, "int64"), Runtime(0b101, "int64")], [0, 2]),
        ([Runtime(1, "int64"), 0b1000], [3]),
        (Runtime(65), list(range(64))),
        (Runtime(128, "int64"), list(range(64))),
    ],
    ids=["both words", "high word", "65 lanes", "128 lanes"],
)
def test_run_time_masks_beyond_the_lanes(mask, lanes):
    """The register has 128 bits: with 64 lanes the low word counts. Strict mode refuses the others (D16i)."""
    calls = {
        "vec_dup": lambda y, x: (y, 5, 1, 8),
        "vector_dup": lambda y, x: (y, 5, 1, 1, 8),
        "vec_abs": lambda y, x: (y, x, 1, 8, 8),
        "vadds": lambda y, x: (y, x, 1.0, 1, 1, 1, 8, 8),
    }
    for api, arguments in calls.items():
        b, x, _, _ = three_tensors("float32")
        y = b.ub(np.zeros(128, np.float32))
        b.warns("enables lanes above 64", api, mask, *arguments(y, x))
        assert np.flatnonzero(y.values).tolist() == lanes
        strict, x, y, _ = three_tensors("float32", strict=True)
        strict.refuses(BOUNDS, "enables lanes above 64", api, mask, *arguments(y, x))


@pytest.mark.parametrize("mask", [[0, 0], [Runtime(0, "int64"), 0], Runtime(0)], ids=["list", "run-time list", "count"])
def test_mask_without_lanes(mask):
    """With a warning, no lane is written; strict mode refuses."""
    b, x, y, _ = three_tensors()
    (operation,) = b.warns("enables no lane", "vec_muls", mask, y, x, 3.0, 2, 8, 8)
    assert (y.values == 1).all()
    assert operation.cycles == 2 and operation.writes == ()
    b, x, y, _ = three_tensors(strict=True)
    b.refuses(TikParamError, "enables no lane", "vec_muls", mask, y, x, 3.0, 2, 8, 8)


@pytest.mark.parametrize(
    ("good", "bad", "error", "message"),
    [
        (255, 256, PARAM, r"repeat_times must be in \[1, 255\], got 256"),
        (1, 0, PARAM, r"repeat_times must be in \[1, 255\], got 0"),
        (1, -1, PARAM, "got -1"),
        (1, 1.0, PARAM, "repeat_times must be an integer"),
        (Runtime(255), Runtime(256), BOUNDS, r"repeat_times must be in \[0, 255\], got 256"),
        (Runtime(2, "uint16"), Runtime(2, "int8"), PARAM, "got one of int8"),
        (Runtime(2, "int64"), Runtime(2, "float16"), PARAM, "got one of float16"),
    ],
)
def test_repeat_times(good, bad, error, message):
    b, x, y, _ = three_tensors()
    b.call("vec_abs", 16, y, x, good, 0, 0)
    b.refuses(error, message, "vec_abs", 16, y, x, bad, 0, 0)


def test_no_repeat_at_run_time_is_nothing():
    b, x, y, _ = three_tensors()
    for api, arguments in (
        ("vec_muls", (128, y, x, 3.0, Runtime(0), 8, 8)),
        ("vec_dup", (128, y, 3.0, Runtime(0), 8)),
        ("vcadd", (128, y, x, Runtime(0), 1, 1, 8)),
        ("vec_trans", (y, x, Runtime(0), 1, 1)),
        ("vec_reduce_add", (128, y, x, x[512:], Runtime(0), 8)),
    ):
        assert b.call(api, *arguments) == ()
    assert (y.values == 1).all()


@pytest.mark.parametrize(
    ("api", "values", "high"),
    [
        ("vec_abs", (0, 0), 255),
        ("vabs", (1, 1, 0, 0), 255),
        ("vadd", (1, 1, 1, 0, 0, 0), 255),
        ("vec_trans", (0, 0), 4095),
        ("vec_dup", (0,), 255),
    ],
)
def test_strides(api, values, high):
    """Every repeat stride has its range; block strides of one-source instructions are 16 bits wide."""
    b, x, y, z = three_tensors()
    head = {
        "vec_abs": (16, y, x, 1),
        "vabs": (16, y, x, 1),
        "vadd": (16, z, y, x, 1),
        "vec_trans": (y, x, 1),
        "vec_dup": (16, y, 1.0, 1),
    }[api]
    b.call(api, *head, *values)
    for position in range(len(values)):
        wide = api == "vabs" and position < 2
        limit = 65535 if wide else high
        for bad, error in ((limit + 1, TikParamError), (-1, TikParamError), (Runtime(limit + 1), TikBoundsError)):
            changed = list(values)
            changed[position] = bad
            b.refuses(error, rf"stride must be in \[0, {limit}\]", api, *head, *changed)


def test_operands_start_at_blocks():
    b, x, y, _ = three_tensors()
    b.call("vec_abs", 128, y[16], x[32], 1, 8, 8)
    with pytest.raises(
        TikAlignError,
        match=r"src \(tensor 'x'\) must start at a multiple of 32 bytes in UB, got byte "
        "offset 16",
    ):
        b.call("vec_abs", 128, y, x[8], 1, 8, 8)
    b.refuses(TikAlignError, "got byte address", "vec_abs", 128, y, Runtime(x[8]), 1, 8, 8)


def test_lanes_that_are_masked_off_may_lie_outside():
    b = Bench()
    x, y = b.ub(np.ones(3, np.float32)), b.ub(np.zeros(3, np.float32))
    b.call("vec_adds", 3, y, x, 1.0, 1, 8, 8)
    b.call("vec_adds", [0, 5], y, x, 1.0, 1, 8, 8)
    assert y.values.tolist() == [2, 2, 2]
    b.refuses(TikBoundsError, "touches bytes 0 to 16, the tensor has 12", "vec_adds", 4, y, x, 1.0, 1, 8, 8)


@pytest.mark.parametrize(
    ("api", "dtype", "scalar"),
    [("vec_adds", "int32", (3,)), ("vmuls", "int32", (3,)), ("vec_relu", "float32", ()), ("vrelu", "int32", ())],
)
def test_clear_dtypes_that_no_document_lists(api, dtype, scalar):
    """Default mode executes it with a warning; strict mode refuses (D13b)."""
    blocks = (1, 1) if api[1] != "e" else ()
    b, x, y, _ = three_tensors(dtype)
    b.warns(f"no document lists {dtype}", api, 64, y, x, *scalar, 1, *blocks, 8, 8)
    b, x, y, _ = three_tensors(dtype, strict=True)
    b.refuses(TikUnsupportedArgumentError, f"no document lists {dtype}", api, 64, y, x, *scalar, 1, *blocks, 8, 8)


@pytest.mark.parametrize(
    ("dtype", "good", "bad", "error", "message"),
    [
        ("float16", 0.1, "0.1", PARAM, "scalar must be a number or a Scalar of float16, got str '0.1'"),
        ("float16", 1, None, PARAM, "scalar must be a number"),
        ("float16", 1, True, PARAM, "scalar must be a number"),
        (
            "float16",
            Runtime(0.5, "float16"),
            Runtime(0.5, "float32"),
            PARAM,
            "or a Scalar of float16, got one of float32",
        ),
        ("int32", 5.0, 5.5, PARAM, "scalar must be an integer for int32, got 5.5"),
        ("int32", 2**31 - 1, 2**31, PARAM, r"scalar must be in \[-2147483648, 2147483647\] for int32"),
        ("uint16", 65535, -1, PARAM, r"scalar must be in \[0, 65535\] for uint16, got -1"),
        ("int32", Runtime(7, "int32"), Runtime(7, "float32"), PARAM, "got one of float32"),
    ],
)
def test_scalar_operand(dtype, good, bad, error, message):
    b = Bench()
    x = b.ub(np.zeros(64, dtype))
    b.call("vec_dup", 64, x, good, 1, 8)
    assert x.values[0] == np.dtype(dtype).type(good.value if isinstance(good, Runtime) else good)
    b.refuses(error, message, "vec_dup", 64, x, bad, 1, 8)


def test_immediate_outside_float16():
    """An immediate beyond the type saturates, with a warning; an infinity keeps its pattern in a fill."""
    b, x, y, _ = three_tensors()
    b.warns("100000.0 does not fit float16", "vec_dup", 128, x, 100000.0, 1, 8)
    assert x.values[0] == 65504
    b.call("vec_dup", 128, y, float("-inf"), 1, 8)
    assert np.isneginf(y.values[0])
    with pytest.raises(TikParamError, match="does not fit float16"):
        three_tensors(strict=True)[0].call("vec_dup", 128, three_tensors(strict=True)[1], 100000.0, 1, 8)


@pytest.mark.parametrize("api, scalar", [("vector_dup", (2.0,)), ("vadds", (2.0,)), ("vsel", ())])
@pytest.mark.parametrize("mask", [65, [1, 1 << 63]])
def test_a_block_stride_of_0_of_dst_is_taken_as_1(api, scalar, mask):
    """Public operators fill whole repeats so (D16g). With one block the stride means nothing, and nothing is said.

    Random calls in ``vector_inputs`` compare the values.
    """

    def call(strict, mask, step):
        b, x, y, z = three_tensors(strict=strict)
        if api == "vsel":
            sel = b.call("vcmp_lt", 128, x, z, 1, 1)
            return b, y, (api, mask, 0, y, sel, x, z, 1, step, 1, 1, 8, 8, 8)
        strides = (1, step, 8) if api == "vector_dup" else (1, step, 1, 8, 8)
        return b, y, (api, mask, y, *(() if api == "vector_dup" else (x,)), *scalar, *strides)

    b, expected, arguments = call(False, mask, 1)
    b.call(*arguments)
    b, y, arguments = call(False, mask, 0)
    b.warns("dst_blk_stride 0 has no described meaning .* taken as 1", *arguments)
    assert y.values.tolist() == expected.values.tolist()
    b, _, arguments = call(True, mask, 0)
    b.refuses(PARAM, "dst_blk_stride 0", *arguments)
    b, _, arguments = call(True, 16, 0)
    b.call(*arguments)


@pytest.mark.parametrize(
    ("api", "dst", "arguments", "number", "expected"),
    [
        ("vec_dup", "float32", lambda y, x, n: (4, y, n, 1, 8), 70000, 70000.0),
        (
            "vec_dup",
            "float32",
            lambda y, x, n: (4, y, n, 1, 8),
            (1 << 60) + (1 << 36) + 1,
            float((1 << 60) + (1 << 37)),
        ),
        ("vector_dup", "float16", lambda y, x, n: (4, y, n, 1, 1, 8), 70000, 65504.0),
        ("vector_dup", "int16", lambda y, x, n: (4, y, n, 1, 1, 8), 65537, 1),
        ("vec_adds", "float32", lambda y, x, n: (4, y, x, n, 1, 8, 8), 3, 4.0),
        ("vmuls", "float16", lambda y, x, n: (4, y, x, n, 1, 1, 1, 8, 8), 3, 3.0),
        ("vec_axpy", "float32", lambda y, x, n: (4, y, x, n, 1, 8, 8), 3, 4.0),
        ("h_duplicate", "float32", lambda y, x, n: (y, n), 7, 7.0),
        ("h_add", "float32", lambda y, x, n: (y, x, n), 7, 8.0),
        ("h_max", "float32", lambda y, x, n: (y, x, n), 7, 7.0),
    ],
)
def test_run_time_integers_as_scalar_operands(api, dst, arguments, number, expected):
    """An integer that is known at run time is converted as an assignment would; strict mode refuses it (D5g)."""
    for kind in ("int64", "int32") if number < 1 << 31 else ("int64",):
        b, x, y, _ = three_tensors(dst, count=16)
        b.warns(f"got one of {kind}; it is converted to {dst}", api, *arguments(y, x, Runtime(number, kind)))
        assert y.values[0] == expected
        strict, x, y, _ = three_tensors(dst, strict=True, count=16)
        strict.refuses(PARAM, f"got one of {kind}", api, *arguments(y, x, Runtime(number, kind)))


def test_a_run_time_integer_as_deqscale():
    b = Bench()
    y, x = b.ub(np.zeros(64, np.float16)), b.ub(np.arange(64, dtype=np.int32))
    b.warns("it is converted to float16", "vec_conv", 64, "", y, x, 1, 4, 8, Runtime(2, "int32"))
    assert y.values.tolist() == list(range(0, 128, 2))


def test_mask_mode_of_other_chips():
    b, x, y, _ = three_tensors()
    b.warns('mask_mode="counter"', "vec_adds", 128, y, x, 1.0, 1, 8, 8, "counter")
    strict, x, y, _ = three_tensors(strict=True)
    strict.refuses(TikUnsupportedArgumentError, "counter", "vec_adds", 128, y, x, 1.0, 1, 8, 8, "counter")


def test_distance_of_a_shift():
    b, x, y, _ = three_tensors("int16")
    b.refuses(TikBoundsError, r"scalar must be in \[0, 16\]", "vshr", 128, y, x, 17, 1, 1, 1, 8, 8)
