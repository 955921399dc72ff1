"""The overflow status of a run. ``bench.agree`` compares the status of every instruction with the naive interpreter."""

import numpy as np
import pytest
import tikemu
from tikemu import Options, tik


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


def fill(dtype, value, lanes=64):
    """Return an array full of one value."""
    return np.full(lanes, value, dtype)


@pytest.mark.parametrize("value, found", [(1e-40, True), (2.0, False)])
def test_strict_mode_looks_at_the_sources_and_keeps_the_status(soc, arithmetic, value, found):
    def body(kernel, x):
        kernel.vec_rec(64, x, x, 1, 8, 8)

    assert bool(overflow(body, fill("float32", value), strict=True)) is found


@pytest.mark.parametrize("strict", [False, True])
def test_undefined_rows_of_a_product_are_no_results(soc, strict):
    """The poison of undefined bytes is far beyond float16."""

    def body(kernel, x):
        l1 = kernel.Tensor("float16", (16, 16), tik.scope_cbuf, "l1")
        a = kernel.Tensor("float16", (16, 16), tik.scope_ca, "a")
        b = kernel.Tensor("float16", (16, 16), tik.scope_cb, "b")
        c = kernel.Tensor("float32", (16, 16), tik.scope_cc, "c")
        target = kernel.Tensor("float16", (16, 16), tik.scope_ubuf, "target")
        kernel.data_move(l1, x, 0, 1, 16, 0, 0)
        kernel.load2dv1(a, l1, 0, 1, 1, 0)
        kernel.load2dv1(b, l1, 0, 1, 1, 0)
        kernel.mmad(c, a, b, 3, 16, 16, 0)
        kernel.tensor_mov(target, c, "m", 1, 1, 0, 0)

    assert not overflow(body, np.full((16, 16), 1, np.float16), strict=strict)
    assert overflow(body, np.full((16, 16), 80, np.float16), strict=strict).places[0].instruction == "tensor_mov"


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
