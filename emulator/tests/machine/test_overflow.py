"""The overflow status: results that saturate set it, with their line; copies, masked lanes and padding do not."""

import numpy as np
import pytest
import tikemu
from tikemu import Options, tik

LANES = {"float16": 128, "float32": 64, "int32": 64, "int8": 128, "uint8": 128}
LARGE = {"float16": 60000.0, "float32": 3e38}
MODES = pytest.mark.parametrize("strict", [False, True], ids=["default", "strict"])
FLOATS = pytest.mark.parametrize("dtype", ["float16", "float32"])


def load(kernel, name, values):
    """Return a tensor in the Unified Buffer with the contents of the input ``name``."""
    values = np.ascontiguousarray(values)
    source = kernel.Tensor(str(values.dtype), values.shape, tik.scope_gm, name)
    tensor = kernel.Tensor(str(values.dtype), values.shape, tik.scope_ubuf, f"{name}_ub")
    kernel.data_move(tensor, source, 0, 1, values.nbytes // 32, 0, 0)
    return source, tensor


def overflow(body, *inputs, strict=False, **options):
    """Return the status of a kernel: ``body(kernel, *tensors)`` computes on its inputs in the Unified Buffer."""
    settings = Options(strict=strict, **options)
    with tikemu.use_options(settings):
        kernel = tik.Tik(disable_debug=False)
        loaded = [load(kernel, f"x{number}", values) for number, values in enumerate(inputs)]
        body(kernel, *[tensor for _, tensor in loaded])
        kernel.BuildCCE("kernel", [source for source, _ in loaded], [])
        feed = {f"x{number}": values for number, values in enumerate(inputs)}
        result = tikemu.run(kernel, feed, options=settings).overflow
        kernel.tikdb.start_debug(feed, False)
        assert kernel.tikdb.overflow == result
        return result


def fill(dtype, value, lanes=None):
    """Return a vector register full of one value."""
    return np.full(LANES[dtype] if lanes is None else lanes, value, dtype)


# ------------------------------------------------------------------------------------------------ vector arithmetic
BINARY = {"vec_add": (1, 1), "vec_sub": (1, -1), "vec_mul": (1, 1), "vdiv": (1, 1e-5), "vmla": (1, 1), "vmadd": (1, 1)}
#: By function: an argument with a result beyond the type, or none at all, and others.
FUNCTIONS = {"vec_exp": (100, 5, -100), "vec_sqrt": (np.inf, 4), "vec_abs": (np.nan, -4), "vec_rec": (0, 2)}


def binary(name, mask=None):
    """Return a body that calls a two-source instruction, in the form of its family."""

    def body(kernel, x, y):
        strides = (1, 8, 8, 8) if name.startswith("vec_") else (1, 1, 1, 1, 8, 8, 8)
        getattr(kernel, name)(mask or LANES[x.dtype], x if name in ("vmla", "vmadd") else y, x, y, *strides)

    return body


def unary(name, *scalars):
    """Return a body that calls an instruction of one source."""

    def body(kernel, x):
        getattr(kernel, name)(LANES[x.dtype], x, x, *scalars, 1, 8, 8)

    return body


def reduction(name):
    """Return a body that reduces its first input into its second one."""

    def body(kernel, x, y):
        if name == "vec_reduce_add":
            work = kernel.Tensor(x.dtype, (64,), tik.scope_ubuf, "work")
            kernel.vec_reduce_add(LANES[x.dtype], y, x, work, 4, 8)
        else:
            getattr(kernel, name)(LANES[x.dtype], y, x, 1, 1, 1, 8)

    return body


@FLOATS
@MODES
@pytest.mark.parametrize("name", BINARY)
def test_arithmetic_of_two_sources(soc, arithmetic, dtype, strict, name):
    first, second = BINARY[name]
    large = LARGE[dtype]
    other = second if name == "vdiv" else large * second
    found = overflow(binary(name), fill(dtype, first * large), fill(dtype, other), strict=strict)
    assert found and found.count == 1 and found.places[0].instruction == name
    assert not overflow(binary(name), fill(dtype, 3), fill(dtype, 2), strict=strict)


@FLOATS
@MODES
@pytest.mark.parametrize("name", ["vec_adds", "vec_muls", "vec_axpy"])
def test_arithmetic_with_a_scalar(soc, arithmetic, dtype, strict, name):
    body = unary(name, 2.0 if name == "vec_muls" else LARGE[dtype])
    assert overflow(body, fill(dtype, LARGE[dtype]), strict=strict)
    assert not overflow(body, fill(dtype, 0.25), strict=strict)


@FLOATS
@MODES
@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(soc, arithmetic, dtype, strict, name):
    bad, *good = FUNCTIONS[name]
    if strict and name == "vec_rec":
        with pytest.raises(tikemu.TikParamError, match="vec_rec: the result for 0 is not specified"):
            overflow(unary(name), fill(dtype, bad), strict=strict)
        bad = 1e-40 if dtype == "float32" else 1e-6
    assert overflow(unary(name), fill(dtype, bad), strict=strict)
    for value in good:
        assert not overflow(unary(name), fill(dtype, value), strict=strict)


def test_integers_wrap_and_set_nothing(soc, arithmetic):
    assert not overflow(binary("vec_add"), fill("int32", 2**31 - 1), fill("int32", 2**31 - 1))


@FLOATS
@pytest.mark.parametrize("name, lanes", [("vcadd", 3), ("vec_reduce_add", None)])
def test_sums(soc, arithmetic, dtype, name, lanes):
    """The sum is of three large numbers beside zeros, or of four registers."""
    for share, found in ((0.5, True), (0.25, False)) if lanes else ((0.125, True), (0.5 / LARGE[dtype], False)):
        data = fill(dtype, 0, LANES[dtype] * (1 if lanes else 4))
        data[:lanes] = LARGE[dtype] * share
        assert bool(overflow(reduction(name), data, fill(dtype, 0))) is found


@pytest.mark.parametrize("name", ["vcmax", "vcmin", "vcgmax"])
@pytest.mark.parametrize("value, found", [(np.inf, True), (-np.inf, True), (np.nan, True), (65504, False)])
def test_extremes(soc, arithmetic, name, value, found):
    assert bool(overflow(reduction(name), fill("float16", value), fill("float16", 0))) is found


# ------------------------------------------------------------------------------------------------ conversions
CONVERSIONS = [
    ("float32", "float16", "", 65520, 65519),
    ("float32", "float16", "", np.nan, 1),
    ("float32", "float16", "", -np.inf, -1),
    ("float32", "float16", "odd", 1e6, 60000.5),
    ("float32", "int32", "round", 2.0**31, -(2.0**31)),
    ("float16", "int32", "to-zero", np.inf, 65504),
    ("float16", "int8", "", 128, 127),
    ("float16", "uint8", "", -1, 255),
    ("float16", "float32", "", np.inf, 65504),
    ("int32", "float16", "", 66000, 65000),
]


@MODES
@pytest.mark.parametrize("src, dst, mode, bad, good", CONVERSIONS)
def test_conversions(soc, arithmetic, src, dst, mode, bad, good, strict):
    def body(kernel, x):
        target = kernel.Tensor(dst, (64,), tik.scope_ubuf, "target")
        strides = [64 * np.dtype(kind).itemsize // 32 for kind in (dst, src)]
        kernel.vec_conv(64, mode, target, x, 1, *strides, *([1.0] if src == "int32" else []))

    assert overflow(body, fill(src, bad, 64), strict=strict)
    assert not overflow(body, fill(src, good, 64), strict=strict)


# ------------------------------------------------------------------------------------------------ Cube and L0C
def product(value, m=16, dst="float32", out=None):
    """Multiply one or two 16 x 16 tiles, and define a tile that holds ``value``. ``out`` moves the product to the
    Unified Buffer in this type.
    """

    def body(kernel, *tiles):
        l1 = kernel.Tensor("float16", (2, 16, 16), tik.scope_cbuf, "l1")
        a = kernel.Tensor("float16", (16, 16), tik.scope_ca, "a")
        b = kernel.Tensor("float16", (16, 16), tik.scope_cb, "b")
        c = kernel.Tensor(dst, (16, 16), tik.scope_cc, "c")
        kernel.data_move(l1, tiles[0], 0, 1, 16, 0, 0)
        kernel.data_move(l1[256], tiles[-1], 0, 1, 16, 0, 0)
        kernel.load2dv1(a, l1, 0, 1, 1, 0)
        kernel.load2dv1(b, l1, 1, 1, 1, 0)
        kernel.mmad(c, a, b, m, 16, 16, 0)
        if out:
            target = kernel.Tensor(out, (16, 16), tik.scope_ubuf, "target")
            kernel.tensor_mov(target, c, "m", 1, 1, 0, 0)

    return body, np.full((16, 16), value, np.float16)


@MODES
@pytest.mark.parametrize("dst, out", [("float32", "float16"), ("float16", "float16"), ("float32", "float32")])
@pytest.mark.parametrize("value", [80, 50])
def test_products_and_their_way_out(soc, arithmetic, strict, dst, out, value):
    body, data = product(value, dst=dst, out=out)
    found = overflow(body, data, strict=strict)  # 16 * 80 * 80 is beyond float16, 16 * 50 * 50 is not
    if value == 50 or out == "float32":
        assert not found
    else:
        assert [place.instruction for place in found.places] == ["mmad" if dst == "float16" else "tensor_mov"]


@MODES
@pytest.mark.parametrize("value, found", [(np.inf, True), (65504, False)])
def test_products_in_float32(soc, strict, value, found):
    body, data = product(value)
    assert bool(overflow(body, data, strict=strict)) is found


def test_rows_of_padding_are_not_computed(soc):
    body, data = product(1, m=3)
    data[3:] = np.inf  # rows of A behind m; B is the same fractal, so its columns are kept finite
    assert overflow(body, data)
    for strict in (False, True):
        assert not overflow(body, data, np.ones((16, 16), np.float16), strict=strict)


def test_undefined_rows_are_no_results_in_strict_mode(soc):
    """The poison of undefined bytes is far beyond float16."""
    body, data = product(1, m=3, out="float16")
    assert not overflow(body, data, strict=True)
    assert not overflow(body, data)


# ------------------------------------------------------------------------------------------------ moves
def test_atomic_addition(soc):
    def run(value):
        kernel = tik.Tik()
        total = kernel.Tensor("float32", (8,), tik.scope_gm, "total", is_atomic_add=True)
        source, x = load(kernel, "x", np.full(8, value, np.float32))
        kernel.set_atomic_add(1)
        for _ in range(2):
            kernel.data_move(total, x, 0, 1, 1, 0, 0)
        kernel.set_atomic_add(0)
        kernel.BuildCCE("kernel", [source], [total])
        return tikemu.run(kernel, {"x": np.full(8, value, np.float32)}).overflow

    found = run(3e38)
    assert found.count == 1 and found.places[0].instruction == "data_move" and not run(1e38)


@MODES
@FLOATS
def test_copies_set_nothing(soc, arithmetic, dtype, strict):
    def body(kernel, x):
        other = kernel.Tensor(dtype, x.shape, tik.scope_ubuf, "other")
        kernel.data_move(other, x, 0, 1, 8, 0, 0)
        kernel.vec_dup(LANES[dtype], other, float("inf"), 1, 8)
        mask = kernel.Tensor("uint16", (16,), tik.scope_ubuf, "mask")
        kernel.vec_dup(16, mask, 0xFFFF, 1, 1)
        kernel.vec_sel(LANES[dtype], 0, other, mask, x, x, 1, 8, 8, 8)
        kernel.vec_cmpv_gt(mask, x, x, 1, 8, 8)

    data = fill(dtype, np.nan)
    data[::2] = np.inf
    assert not overflow(body, data, strict=strict)


@FLOATS
@pytest.mark.parametrize("name", ["vec_add", "vec_mul", "vmla"])
def test_lanes_that_the_mask_leaves_out_do_not_count(soc, arithmetic, dtype, name):
    half = LANES[dtype] // 2
    data = fill(dtype, 1)
    data[half:] = LARGE[dtype]
    every_second = [0x5555555555555555 if dtype == "float16" else 0, 0x5555555555555555]
    assert not overflow(binary(name, half), data, data)
    assert overflow(binary(name, half + 1), data, data)
    data[:] = 1
    data[1::2] = LARGE[dtype]
    assert not overflow(binary(name, every_second), data, data)
    data[2] = LARGE[dtype]
    assert overflow(binary(name, every_second), data, data)


@pytest.mark.parametrize("name", ["vec_exp", "vec_conv", "vcmax", "vcadd", "vcgmax"])
def test_lanes_that_the_mask_leaves_out_of_functions_do_not_count(soc, arithmetic, name):
    data = fill("float16", 1)
    data[5] = np.inf

    def found(mask):
        def body(kernel, x, y):
            if name == "vec_exp":
                kernel.vec_exp(mask, y, x, 1, 8, 8)
            elif name == "vec_conv":
                kernel.vec_conv(mask, "round", y.reinterpret_cast_to("int32"), x, 1, 8, 4)
            else:
                getattr(kernel, name)(mask, y, x, 1, 1, 1, 8)

        return bool(overflow(body, data, fill("float16", 0)))

    assert [found(mask) for mask in (5, 6, [0, 0b111011111])] == [False, True, False]


# ------------------------------------------------------------------------------------------------ what is kept
def loop(kernel, x, count=7):
    """Double a vector in all but the first three iterations."""
    with kernel.for_range(0, count) as i, kernel.if_scope(i > 2):
        kernel.vec_muls(64, x, x, 2.0, 1, 8, 8)  # doubles


def test_every_execution_counts_and_names_its_line(soc, arithmetic):
    data = fill("float32", 2.0**125)
    found = overflow(loop, data)
    # 2^126, 2^127, then twice more.
    assert found.count == 2 and found.lines == 1
    place = found.places[0]
    assert place.location.file == __file__ and place.location.text.endswith("# doubles") and place.count == 2
    assert str(place.location) in str(found) and "vec_muls" in str(found)


def test_run_time_addresses_count_too(soc, arithmetic):
    """The loop has more addresses than the emulator prepares one by one."""
    rows = 300

    def body(kernel, x):
        with kernel.for_range(0, rows) as row:
            kernel.vec_muls(8, x[row * 8], x[row * 8], 2.0, 1, 8, 8)

    data = fill("float32", 1, 8 * rows)
    data[::3] = 3e38
    assert overflow(body, data).count == rows
    data[8:] = 1
    assert overflow(body, data).count == 1


@pytest.mark.parametrize("name", ["vec_add", "vec_reduce_add"])
def test_a_second_run_starts_anew(soc, arithmetic, name):
    kernel = tik.Tik()
    source, x = load(kernel, "x", fill("float32", 0))
    if name == "vec_add":
        kernel.vec_add(64, x, x, x, 1, 8, 8, 8)
    else:
        total, work = (kernel.Tensor("float32", (8,), tik.scope_ubuf, label) for label in ("total", "work"))
        kernel.vec_reduce_add(64, total, x, work, 1, 8)
    kernel.BuildCCE("kernel", [source], [])
    counts = [tikemu.run(kernel, {"x": fill("float32", value)}).overflow.count for value in (3e38, 1, 3e38)]
    assert counts == [1, 0, 1]


def test_the_lines_are_limited_and_the_rest_is_counted(soc):
    def body(kernel, x):
        for _ in range(30):
            kernel.vec_add(64, x, x, x, 1, 8, 8, 8)

    found = overflow(body, fill("float32", 3e38))
    assert found.count == found.lines == 30 and len(found.places) == tikemu.Overflow.LIMIT
    assert "10 more" in str(found)


def test_blocks_and_a_run_without_numerics(soc):
    kernel = tik.Tik()
    x = kernel.Tensor("float32", (4, 64), tik.scope_gm, "x")
    with kernel.for_range(0, 4, block_num=4) as block:
        ub = kernel.Tensor("float32", (64,), tik.scope_ubuf, "ub")
        kernel.data_move(ub, x[block * 64], 0, 1, 8, 0, 0)
        kernel.vec_add(64, ub, ub, ub, 1, 8, 8, 8)
    kernel.BuildCCE("kernel", [x], [])
    data = np.ones((4, 64), np.float32)
    data[1:3, 5] = 3e38
    result = tikemu.run(kernel, {"x": data})
    assert result.overflow.count == 2 and "overflow: 2 operations" in result.report()
    assert not tikemu.run(kernel, {"x": data}, numerics=False).overflow
    assert "overflow: none" in tikemu.run(kernel, {"x": np.ones((4, 64), np.float32)}).report()
