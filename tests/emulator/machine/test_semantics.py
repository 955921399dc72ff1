"""Programs of scalars and control flow, recorded by the front end and executed: the result is what C would give."""

from __future__ import annotations

import numpy as np
import pytest
import tikemu
from tikemu import tik
from tikemu.errors import TikBoundsError, TikError


class Probe:
    """A kernel that collects int64 scalars in a tensor; ``values`` runs it and returns them."""

    def __init__(self, size=64, dtype="int64"):
        self.kernel = tik.Tik()
        self.out = self.kernel.Tensor(dtype, (size,), tik.scope_gm, "out")
        self.data = self.kernel.Tensor(dtype, (size,), tik.scope_ubuf, "data")
        self.count = 0
        self.size, self.dtype = size, dtype

    def put(self, value):
        self.data[self.count].set_as(value)
        self.count += 1

    def values(self, inputs=(), options=None, **feed):
        blocks = self.size * np.dtype(self.dtype).itemsize // 32
        self.kernel.data_move(self.out, self.data, 0, 1, blocks, 0, 0)
        self.kernel.BuildCCE("probe", list(inputs), [self.out])
        return tikemu.run(self.kernel, feed, options=options).outputs["out"]


@pytest.fixture
def probe(soc):
    """A kernel whose run shows the values of expressions."""
    return Probe()


def c_divide(left, right):
    """Integer division towards zero."""
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient


@pytest.mark.parametrize("left, right", [(7, 3), (-7, 3), (7, -3), (-7, -3), (1, 5), (-1, 5)])
def test_division_truncates(probe, left, right):
    a, b = (probe.kernel.InputScalar("int64", name) for name in "ab")
    for value in (a / b, a // b, a % b, a // right, left // b, a % right, (a + 0) * 2 // b):
        probe.put(value)
    quotient, rest = c_divide(left, right), left - c_divide(left, right) * right
    assert list(probe.values([a, b], a=left, b=right)[:7]) == [
        quotient,
        quotient,
        rest,
        quotient,
        quotient,
        rest,
        c_divide(left * 2, right),
    ]


@pytest.mark.parametrize(
    "dtype, value, wrapped",
    [
        ("int8", 127, -128),
        ("uint8", 255, 0),
        ("int16", 32767, -32768),
        ("uint16", 65535, 0),
        ("int32", 2**31 - 1, -(2**31)),
        ("uint32", 2**32 - 1, 0),
        ("int64", 2**63 - 1, -(2**63)),
    ],
)
def test_scalars_wrap_to_their_width(probe, dtype, value, wrapped):
    start = probe.kernel.InputScalar(dtype, "start")
    s = probe.kernel.Scalar(dtype, init_value=start)
    s.set_as(s + 1)
    probe.put(s + 0 if dtype == "int64" else widened(probe.kernel, s))
    assert probe.values([start], start=value)[0] == wrapped


def widened(kernel, scalar):
    """A Scalar's value as int64."""
    wide = kernel.Scalar("int64")
    wide.set_as(scalar)
    return wide


def test_int32_expressions_wrap_before_they_are_widened(probe):
    n = probe.kernel.InputScalar("int32", "n")
    for value in (n * 65536 * 65536, n * 65536 * 32768, n - 1 - 2**31, (n << 30) << 2):
        probe.put(widened(probe.kernel, value))
    # The third holds an immediate that needs 64 bits.
    assert list(probe.values([n], n=1)[:4]) == [0, -(2**31), -(2**31), 0]


def test_unsigned_comparison_and_subtraction(probe):
    u, s = probe.kernel.InputScalar("uint32", "u"), probe.kernel.InputScalar("int32", "s")
    for condition in (u - 1 > 5, s - 1 > 5, u > s):
        with probe.kernel.if_scope(condition):
            probe.put(1)
        with probe.kernel.else_scope():
            probe.data[probe.count - 1].set_as(2)
    assert list(probe.values([u, s], u=0, s=0)[:3]) == [1, 2, 2]


def test_logic(probe):
    kernel = probe.kernel
    a, b = (kernel.InputScalar("int32", name) for name in "ab")
    conditions = (
        tik.all(a > 1, b > 1),
        tik.any(a > 1, b > 1),
        tik.negate(a > 1),
        tik.all(a, b),
        (a > 1) & (b > 1),
        (a > 1) | (b > 1),
        a == b,
        a != b,
        tik.negate(a),
    )
    for condition in conditions:
        with kernel.if_scope(condition):
            probe.put(1)
    assert list(probe.values([a, b], a=2, b=0)[: len(conditions)]) == [0, 1, 0, 0, 0, 1, 0, 1, 0]


def test_only_the_first_true_branch_runs(probe):
    kernel = probe.kernel
    with kernel.for_range(0, 6) as i:
        with kernel.if_scope(i < 2):
            probe.data[i].set_as(10)
        with kernel.elif_scope(i < 4):
            probe.data[i].set_as(20)
        with kernel.elif_scope(i < 3):
            probe.data[i].set_as(30)
        with kernel.else_scope():
            probe.data[i].set_as(40)
    assert list(probe.values()[:6]) == [10, 10, 20, 20, 40, 40]


def test_nested_loops_with_break_and_continue(probe):
    kernel, total = probe.kernel, probe.kernel.Scalar("int64", init_value=0)
    with kernel.for_range(0, 5) as i, kernel.for_range(0, 10) as j:
        with kernel.if_scope(j == i):
            kernel.tik_break()
        with kernel.if_scope(j % 2 == 1), pytest.warns(tikemu.TikWarning):
            kernel.tik_continue()
        total.set_as(total + 100 * i + j)
    probe.put(total)
    expected = sum(100 * i + j for i in range(5) for j in range(i) if j % 2 == 0)
    assert probe.values()[0] == expected


def test_run_time_bounds(probe):
    kernel = probe.kernel
    first, last = (kernel.InputScalar("int32", name) for name in ("first", "last"))
    with kernel.for_range(first, last + 1) as i:
        probe.data[i].set_as(i * i)
    assert list(probe.values([first, last], first=2, last=4)[:6]) == [0, 0, 4, 9, 16, 0]


def loop_between(first, last, strict):
    """1 if the body of a loop between run-time bounds runs, else 0."""
    probe = Probe()
    bounds = [probe.kernel.InputScalar("int32", name) for name in ("first", "last")]
    probe.kernel.vec_dup(64, probe.data.reinterpret_cast_to("int32"), 0, 2, 8)
    with probe.kernel.for_range(*bounds):
        probe.data[0].set_as(1)
    return probe.values(bounds, tikemu.Options(strict=strict), first=first, last=last)[0]


def test_illegal_run_time_bounds(soc, no_warnings):
    """Strict mode refuses; on the chip such a loop is simply empty."""
    assert loop_between(0, 3, strict=True) == 1 and loop_between(3, 3, strict=True) == 0
    with pytest.raises(TikError) as caught:
        loop_between(4, 3, strict=True)
    assert "for_range(*bounds)" in str(caught.value)
    with pytest.warns(tikemu.TikWarning, match="begint <= endt"):
        assert loop_between(4, 3, strict=False) == 0


def test_an_instruction_with_repeat_0_touches_nothing(soc):
    """A shipped operator ends its loop with such a call, one row behind its tensor."""
    for repeats in (0, 1):
        kernel = tik.Tik()
        n = kernel.InputScalar("int32", "n")
        data = kernel.Tensor("float32", (2, 64), tik.scope_ubuf, "data")
        with kernel.for_range(0, 2) as i:
            kernel.vec_dup(64, data[i + 1, 0], 0.0, (1 - i) + n, 8)
        kernel.BuildCCE("k", [n], [])
        if repeats == 0:
            tikemu.run(kernel, {"n": 0})
            continue
        with pytest.raises(TikBoundsError, match="'data'"):
            tikemu.run(kernel, {"n": 1})


def test_return_ends_the_block(probe):
    kernel = probe.kernel
    n = kernel.InputScalar("int32", "n")
    probe.put(1)
    kernel.data_move(probe.out, probe.data, 0, 1, 16, 0, 0)
    with kernel.if_scope(n > 0):
        kernel.tik_return()
    probe.put(2)
    assert list(probe.values([n], n=1)[:2]) == [1, 0]


def test_scalar_arrays(probe):
    kernel = probe.kernel
    array = kernel.ScalarArray("int32", 5, "a", 7)
    with kernel.for_range(0, 5) as i:
        array[i].set_as(array[i] + i * 10)
    array[1] = array[4]
    for position in range(5):
        probe.put(widened(kernel, array[position]))
    assert list(probe.values()[:5]) == [7, 47, 27, 37, 47]


def test_a_run_time_index_outside_a_scalar_array(soc):
    for index in (1, 2):
        probe = Probe()
        n = probe.kernel.InputScalar("int32", "n")
        array = probe.kernel.ScalarArray("int32", 2, "a", 7)
        array[n].set_as(1)
        if index == 1:
            probe.values([n], n=index)
            continue
        with pytest.raises(TikError, match="a|index"):
            probe.values([n], n=index)


def test_elements_are_read_and_written_at_run_time(probe):
    kernel = probe.kernel
    with kernel.for_range(0, 8) as i:
        probe.data[i] = i + 1
    value = kernel.Scalar("int64")
    with kernel.for_range(0, 8) as i:
        value.set_as(probe.data[i])
        probe.data[15 - i].set_as(value)
        probe.data[16 + i].set_as(probe.data[7 - i])
    assert list(probe.values()[:24]) == [*range(1, 9), *range(8, 0, -1), *range(8, 0, -1)]


def test_elements_outside_the_tensor(soc):
    for index in (63, 64):
        probe = Probe()
        n = probe.kernel.InputScalar("int32", "n")
        probe.data[n] = 1
        if index == 63:
            assert probe.values([n], n=index)[63] == 1
            continue
        with pytest.raises(TikBoundsError, match="'data'") as caught:
            probe.values([n], n=index)
        assert "probe.data[n] = 1" in str(caught.value)


def test_float_scalars(soc):
    probe = Probe(16, "float32")
    kernel = probe.kernel
    x = kernel.InputScalar("float32", "x")
    third, one = kernel.Scalar("float32"), kernel.Scalar("float32", init_value=1)
    third.set_as(one / x)
    probe.put(third)
    with pytest.warns(tikemu.TikWarning):
        probe.put(x * 0.1 + third)
    whole = kernel.Scalar("int32", init_value=x)
    back = kernel.Scalar("float32", init_value=whole)
    probe.put(back)
    single = np.float32
    expected = single(1) / single(-2.7)
    assert list(probe.values([x], x=single(-2.7))[:3]) == [expected, single(-2.7) * single(0.1) + expected, single(-2)]


def test_reinterpreted_and_reshaped_views_share_memory(soc):
    probe = Probe(64, "int32")
    kernel = probe.kernel
    kernel.vec_dup(64, probe.data, 0, 1, 8)
    halves = probe.data.reinterpret_cast_to("uint16")
    halves[3].set_as(1)
    grid = probe.data.reshape((8, 8))
    grid[2, 5].set_as(9)
    grid[3:4, :].reinterpret_cast_to("uint16")[0].set_as(5)
    values = probe.values()
    assert (values[1], values[21], values[24]) == (65536, 9, 5)


def test_a_view_larger_than_max_mem_size(soc):
    for size in (16, 17):
        kernel = tik.Tik()
        n = kernel.InputScalar("int32", "n")
        x = kernel.Tensor("float16", (n * 16,), tik.scope_gm, "x")
        data = kernel.Tensor("float16", (n, 16), tik.scope_ubuf, "data", max_mem_size=512)
        kernel.data_move(data, x, 0, 1, n, 0, 0)
        kernel.data_move(x, data[0:], 0, 1, n, 0, 0)
        kernel.BuildCCE("k", [x, n], [x])
        feed = {"n": size, "x": np.ones(size * 16, np.float16)}
        if size == 16:
            assert tikemu.run(kernel, feed).outputs["x"].all()
            continue
        with pytest.raises(TikBoundsError, match="The space required exceeds max_mem_size"):
            tikemu.run(kernel, feed)


@pytest.mark.parametrize("threads", [0, 1, 2, 3, 4])
def test_multi_buffering_changes_no_result(soc, threads):
    kernel = tik.Tik()
    x = kernel.Tensor("float16", (8, 128), tik.scope_gm, "x")
    with kernel.for_range(0, 8, thread_num=threads) as i:
        data = kernel.Tensor("float16", (128,), tik.scope_ubuf, "data")
        kernel.data_move(data, x[i, 0], 0, 1, 8, 0, 0)
        kernel.vec_adds(128, data, data, 1.0, 1, 8, 8)
        kernel.data_move(x[i, 0], data, 0, 1, 8, 0, 0)
    kernel.BuildCCE("k", [x], [x])
    values = np.arange(1024, dtype=np.float16).reshape(8, 128)
    np.testing.assert_array_equal(tikemu.run(kernel, {"x": values}).outputs["x"], values + 1)


def test_blocks_run_what_stands_before_the_loop_with_private_memory(soc):
    kernel = tik.Tik()
    out = kernel.Tensor("int32", (4, 8), tik.scope_gm, "out")
    count = kernel.Scalar("int32", init_value=0)
    data = kernel.Tensor("int32", (8,), tik.scope_ubuf, "data")
    kernel.vec_dup(8, data, 0, 1, 8)
    with pytest.warns(tikemu.TikWarning), kernel.for_range(0, 4, block_num=4) as block:
        count.set_as(count + 1)
        data[0] = count
        data[1] = block + 0
        kernel.data_move(out[block, 0], data, 0, 1, 1, 0, 0)
    kernel.BuildCCE("k", [], [out])
    assert tikemu.run(kernel, {}).outputs["out"][:, :2].tolist() == [[1, 0], [1, 1], [1, 2], [1, 3]]


def test_block_num_from_an_input(soc):
    kernel = tik.Tik()
    out = kernel.Tensor("int32", (8, 8), tik.scope_gm, "out")
    blocks = kernel.InputScalar("int32", "blocks")
    with kernel.for_range(0, blocks, block_num=blocks) as block:
        data = kernel.Tensor("int32", (8,), tik.scope_ubuf, "data")
        kernel.vec_dup(8, data, block + 1, 1, 8)
        kernel.data_move(out[block, 0], data, 0, 1, 1, 0, 0)
    kernel.BuildCCE("k", [blocks], [out])
    result = tikemu.run(kernel, {"blocks": 3})
    assert result.outputs["out"][:, 0].tolist() == [1, 2, 3, 0, 0, 0, 0, 0] and result.cores == 3
