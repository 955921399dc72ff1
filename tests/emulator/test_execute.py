"""Compiled programs: scalar arithmetic, control flow, blocks, element accesses, inputs (core.md 2, 3; D4, D5, D30)."""
from __future__ import annotations

import gc
import itertools
import warnings
import weakref
from typing import Any, Callable

import numpy as np
import pytest
import tikemu
from tikemu import (
    Options,
    TikBoundsError,
    TikParamError,
    TikSyncError,
    TikWarning,
    ir,
    tik,
)
from tikemu.machine.expressions import HELPERS, Expressions, name_of

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")


def program(instance: Any, body: Callable[[Any], None], count: int = 8, dtype: str = "int32",
            inputs: list | None = None) -> Any:
    """A kernel that fills a tensor ``out`` element by element: ``body(out)``, then it is stored."""
    target = instance.Tensor(dtype, (count,), tik.scope_gm, "target")
    out = instance.Tensor(dtype, (count,), tik.scope_ubuf, "out")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TikWarning)
        body(out)
        instance.data_move(target, out, 0, 1, count * np.dtype(dtype).itemsize // 32, 0, 0)
        instance.BuildCCE("kernel", inputs or [], [target])
    return instance


def values(instance: Any, feeds: dict | None = None, **options: Any) -> list:
    return tikemu.run(instance, feeds or {}, options=Options(**options)).outputs["target"].tolist()


# ------------------------------------------------------------------------------------------------ scalar arithmetic
def evaluate(node: Any, **variables: Any) -> Any:
    """Value of an expression over variables, as the compiled program computes it."""
    names = {name_of(variable): variables[variable.name] for variable in _variables(node)}
    with np.errstate(all="ignore"):
        return eval(Expressions().wrapped(node).source, dict(HELPERS), names)


def _variables(node: Any) -> list[ir.Variable]:
    if isinstance(node, ir.Variable):
        return [node]
    return [found for arg in node.args for found in _variables(arg)] if isinstance(node, ir.Operation) else []


def operation(op: str, dtype: str, *args: Any) -> ir.Operation:
    return ir.Operation(op, args, dtype)


def variable(name: str, dtype: str) -> ir.Variable:
    return ir.Variable(name, dtype, "scalar", sum(map(ord, name)))


def c_result(op: str, left: int, right: int, dtype: str) -> int:
    """What C computes, from exact integers."""
    exact = {"+": left + right, "-": left - right, "*": left * right, "&": left & right, "|": left | right,
             "/": (1 if (left < 0) == (right < 0) else -1) * (abs(left) // max(1, abs(right))),
             "%": (1 if left >= 0 else -1) * (abs(left) % max(1, abs(right))),
             "<<": left << (right % 8), ">>": left >> (right % 8)}[op]
    info = np.iinfo(dtype)
    return (exact - info.min) % (info.max - info.min + 1) + info.min


EDGES = {dtype: sorted({int(np.iinfo(dtype).min), int(np.iinfo(dtype).max), 1, 2, 3, 7, 100,
                        *([-1, -2, -7, -100] if dtype.startswith("i") else [])}) for dtype in INTEGERS}


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("op", ["+", "-", "*", "/", "%", "&", "|", "<<", ">>"])
def test_integer_arithmetic_is_that_of_c(op: str, dtype: str) -> None:
    a, b = variable("a", dtype), variable("b", dtype)
    for left, right in itertools.product(EDGES[dtype], EDGES[dtype]):
        if right == 0 and op in "/%":
            continue
        given = right % 8 if op in ("<<", ">>") else right
        assert evaluate(operation(op, dtype, a, b), a=left, b=given) == c_result(op, left, right, dtype), (left, right)


def test_nested_arithmetic_wraps_once_per_type() -> None:
    a = variable("a", "int32")
    big = 2**31 - 1
    # (a * a + a) / 2: the product wraps before it is divided.
    node = operation("/", "int32", operation("+", "int32", operation("*", "int32", a, a), a), 2)
    expected = c_result("/", c_result("+", c_result("*", big, big, "int32"), big, "int32"), 2, "int32")
    assert evaluate(node, a=big) == expected
    # A 32-bit product wraps before a 64-bit sum.
    wide = operation("+", "int64", operation("*", "int32", a, a), variable("b", "int64"))
    assert evaluate(wide, a=65536, b=5) == 5


def test_comparisons_use_the_common_type() -> None:
    signed, unsigned = variable("s", "int32"), variable("u", "uint32")
    assert evaluate(operation("<", "bool", signed, unsigned), s=-1, u=1) is False  # -1 becomes 2**32 - 1
    assert evaluate(operation("<", "bool", signed, variable("w", "int64")), s=-1, w=1) is True
    assert evaluate(operation("==", "bool", signed, -1), s=-1) is True


def test_logic_counts_numbers_as_not_zero() -> None:
    a, b = variable("a", "int32"), variable("b", "float32")
    assert evaluate(operation("all", "bool", a, b), a=3, b=0.5) is True
    assert evaluate(operation("all", "bool", a, b), a=3, b=0.0) is False
    assert evaluate(operation("any", "bool", a, b), a=0, b=0.0) is False
    assert evaluate(operation("not", "bool", a), a=0) is True


@pytest.mark.parametrize("op", ["+", "-", "*", "/"])
def test_float_arithmetic_is_ieee_single_precision(op: str) -> None:
    rng = np.random.default_rng(1)
    numbers = np.concatenate([rng.standard_normal(200), [0.0, -0.0, 1e38, -3e38, 1e-40, np.inf, -np.inf, np.nan]])
    left = numbers.astype(np.float32)
    right = rng.permutation(left)
    function = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[op]
    with np.errstate(all="ignore"):
        expected = function(left, right)
    node = operation(op, "float32", variable("a", "float32"), variable("b", "float32"))
    got = [evaluate(node, a=float(one), b=float(other)) for one, other in zip(left, right)]
    np.testing.assert_array_equal(np.array(got, np.float32).view(np.uint32)[~np.isnan(expected)],
                                  expected.view(np.uint32)[~np.isnan(expected)])
    assert np.isnan(np.array(got)[np.isnan(expected)]).all()


@pytest.mark.parametrize("source, target, value, expected", [
    ("int32", "int8", 200, -56), ("int64", "uint16", -1, 65535), ("uint32", "int32", 2**32 - 1, -1),
    ("int32", "float32", 16777217, 16777216.0), ("int64", "float32", 2**62 + 1, float(2**62)),
    ("int64", "float32", 2**53 + 2**29 + 1, float(2**53 + 2**30)),  # one rounding, not two
    ("uint64", "float32", 2**64 - 1, float(2**64)), ("int32", "float16", 100000, 65504.0),
    ("int32", "float16", 2049, 2048.0),
    ("float32", "int32", -2.9, -2), ("float32", "int32", 3e9, 2**31 - 1), ("float32", "uint8", -5.0, 0),
    ("float32", "int32", float("nan"), 0), ("float32", "int64", float("inf"), 2**63 - 1),
    ("float32", "float16", 1e6, 65504.0), ("float32", "float16", 1 + 2**-11, 1.0),
    ("float16", "float32", 0.333251953125, 0.333251953125),
])
def test_assignment_converts(source: str, target: str, value: Any, expected: Any) -> None:
    text = Expressions().converted(variable("a", source), target)
    with np.errstate(all="ignore"):
        got = eval(text.source, dict(HELPERS), {name_of(variable("a", source)): value})
    assert got == expected and isinstance(got, float if target.startswith("float") else int)


@pytest.mark.parametrize("op, message", [("/", "integer division of 3 by zero"), ("%", "remainder of 3 by zero")])
def test_division_by_zero_is_an_error_at_the_users_line(kernel: Any, op: str, message: str) -> None:
    def body(out: Any) -> None:
        zero = kernel.Scalar("int32", init_value=0)
        three = kernel.Scalar("int32", init_value=3)
        out[0].set_as(three / zero if op == "/" else three % zero)

    with pytest.raises(TikBoundsError, match=f"{message}\n  at .*test_execute.py:.*out.0..set_as"):
        values(program(kernel, body))


# ------------------------------------------------------------------------------------------------ control flow
def test_loops_branches_break_and_continue(kernel: Any) -> None:
    def body(out: Any) -> None:
        total = kernel.Scalar("int32", init_value=0)
        steps = kernel.Scalar("int32", init_value=0)
        with kernel.for_range(0, 10) as i:
            with kernel.if_scope(i == 7):
                kernel.tik_break()
            with kernel.if_scope(i % 2 == 1):
                kernel.tik_continue()
            with kernel.for_range(i, 9) as j:
                with kernel.if_scope(j >= i + 2):
                    kernel.tik_break()
                steps.set_as(steps + 1)
            with kernel.if_scope(tik.any(i == 0, i == 4)):
                total.set_as(total + 100)
            with kernel.elif_scope(i == 2):
                total.set_as(total + 10)
            with kernel.else_scope():
                total.set_as(total + 1)
        out[0].set_as(total)
        out[1].set_as(steps)

    # i = 0, 2, 4, 6; two inner steps each.
    assert values(program(kernel, body))[:2] == [100 + 10 + 100 + 1, 8]


def test_return_ends_the_kernel(kernel: Any) -> None:
    target = kernel.Tensor("int32", (8,), tik.scope_gm, "target")
    with kernel.for_range(0, 2, block_num=2) as block:
        out = kernel.Tensor("int32", (8,), tik.scope_ubuf, "out")
        kernel.vector_dup(8, out, 5, 1, 1, 8)
        with kernel.if_scope(block == 1):
            kernel.tik_return()
        kernel.data_move(target, out, 0, 1, 1, 0, 0)
    kernel.BuildCCE("kernel", [], [target])
    assert values(kernel) == [5] * 8


def test_run_time_loop_bounds(kernel: Any) -> None:
    n = kernel.InputScalar("int32", "n")

    def body(out: Any) -> None:
        count = kernel.Scalar("int32", init_value=0)
        with kernel.for_range(2, n):
            count.set_as(count + 1)
        out[0].set_as(count)

    program(kernel, body, inputs=[n])
    assert values(kernel, {"n": 6})[0] == 4
    with pytest.warns(TikWarning, match="bounds of for_range"):
        assert values(kernel, {"n": 1})[0] == 0
    with pytest.raises(TikParamError, match="bounds of for_range"):
        values(kernel, {"n": 1}, strict=True)


def test_run_time_loop_from_a_negative_begin(kernel: Any) -> None:
    n = kernel.InputScalar("int32", "n")

    def body(out: Any) -> None:
        with kernel.for_range(n, 3):
            out[0].set_as(1)

    with pytest.raises(TikBoundsError, match="got begint -1 and endt 3"):
        values(program(kernel, body, inputs=[n]), {"n": -1})


def test_four_hundred_branches(kernel: Any) -> None:
    n = kernel.InputScalar("int32", "n")

    def body(out: Any) -> None:
        with kernel.if_scope(n == 0):
            out[0].set_as(1000)
        for case in range(1, 400):
            with kernel.elif_scope(n == case):
                out[0].set_as(case)

    program(kernel, body, inputs=[n])
    assert [values(kernel, {"n": n})[0] for n in (0, 1, 399)] == [1000, 1, 399]


def test_deeply_nested_scopes(kernel: Any) -> None:
    def body(out: Any) -> None:
        n = kernel.Scalar("int32", init_value=1)

        def nest(level: int) -> None:
            if level == 0:
                out[0].set_as(7)
                return
            with kernel.if_scope(n == 1):
                nest(level - 1)

        nest(60)

    assert values(program(kernel, body))[0] == 7


def test_long_unrolled_programs(kernel: Any) -> None:
    """Python loops around instructions give thousands of statements."""
    def body(out: Any) -> None:
        kernel.vector_dup(8, out, 0, 1, 1, 8)
        for _ in range(5000):
            kernel.vec_add(8, out, out, one, 1, 8, 8, 8)

    one = kernel.Tensor("int32", (8,), tik.scope_ubuf, "one")
    kernel.vector_dup(8, one, 1, 1, 1, 8)
    assert values(program(kernel, body)) == [5000] * 8


# ------------------------------------------------------------------------------------------------ scalars and elements
def test_scalar_arrays_with_run_time_indices(kernel: Any) -> None:
    def body(out: Any) -> None:
        array = kernel.ScalarArray("int32", 4, "array", init_value=[10, 20, 30, 40])
        with kernel.for_range(0, 4) as i:
            array[i].set_as(array[3 - i] + i)
        for n in range(4):
            out[n].set_as(array[n])

    # 40, 31, then 31 + 2, 40 + 3
    assert values(program(kernel, body))[:4] == [40, 31, 33, 43]


def test_scalar_array_index_out_of_range(kernel: Any) -> None:
    def body(out: Any) -> None:
        array = kernel.ScalarArray("int32", 4, "array", init_value=0)
        with kernel.for_range(3, 5) as i:
            array[i].set_as(1)

    with pytest.raises(TikBoundsError, match="index 4 is out of range for a ScalarArray of length 4"):
        values(program(kernel, body))


@pytest.mark.parametrize("dtype", [*INTEGERS, "float16", "float32"])
def test_elements_of_every_dtype(kernel: Any, dtype: str) -> None:
    source = kernel.Tensor(dtype, (64,), tik.scope_gm, "source")

    def body(out: Any) -> None:
        held = kernel.Tensor(dtype, (64,), tik.scope_ubuf, "held")
        kernel.data_move(held, source, 0, 1, 64 * np.dtype(dtype).itemsize // 32, 0, 0)
        value = kernel.Scalar(dtype)
        with kernel.for_range(0, 32) as i:
            value.set_as(held[i])
            out[31 - i].set_as(value)
            out[32 + i].set_as(held[i * 2])

    program(kernel, body, 64, dtype, [source])
    if dtype.startswith("float"):
        data = np.linspace(-3, 60000, 64).astype(dtype)
    else:
        info = np.iinfo(dtype)
        data = np.random.default_rng(0).integers(info.min, info.max, 64, dtype, endpoint=True)
        data[:2] = info.min, info.max
    got = np.array(values(kernel, {"source": data}), dtype)
    np.testing.assert_array_equal(got, np.concatenate([data[31::-1], data[::2]]))


def test_reinterpreted_elements(kernel: Any) -> None:
    def body(out: Any) -> None:
        value = kernel.Scalar("float32", init_value=1.5)
        out.reinterpret_cast_to("float32")[2].set_as(value)
        out.reinterpret_cast_to("uint16")[15].set_as(0x1234)

    got = values(program(kernel, body))
    assert got[2] == 0x3FC00000 and got[7] == 0x12340000


@pytest.mark.parametrize("read", [True, False])
def test_element_out_of_range_names_line_and_tensor(kernel: Any, read: bool) -> None:
    n = kernel.InputScalar("int32", "n")

    def body(out: Any) -> None:
        value = kernel.Scalar("int32", init_value=0)
        if read:
            value.set_as(out[n])
        else:
            out[n].set_as(value)

    program(kernel, body, inputs=[n])
    values(kernel, {"n": 7})
    for index in (8, -1):
        with pytest.raises(TikBoundsError, match=f"element {index} of tensor 'out'.*8 elements(.|\n)*test_execute"):
            values(kernel, {"n": index})


def test_operand_outside_its_tensor(kernel: Any) -> None:
    n = kernel.InputScalar("int32", "n")

    def body(out: Any) -> None:
        kernel.vec_add(8, out[n], out, out, 1, 8, 8, 8)

    program(kernel, body, 16, inputs=[n])
    values(kernel, {"n": 8})
    with pytest.raises(TikBoundsError, match=r"'out' is accessed at element 24(.|\n)*vec_add"):
        values(kernel, {"n": 24})


def test_run_time_shape_beyond_its_reserve(kernel: Any) -> None:
    n = kernel.InputScalar("int32", "n")

    def body(out: Any) -> None:
        held = kernel.Tensor("int32", (n, 8), tik.scope_ubuf, "held", max_mem_size=128)
        kernel.vector_dup(8, held, 3, 1, 1, 8)
        kernel.data_move(out, held, 0, 1, 1, 0, 0)

    program(kernel, body, inputs=[n])
    assert values(kernel, {"n": 4}) == [3] * 8
    for numerics in (True, False):
        with pytest.raises(TikBoundsError, match="The space required exceeds max_mem_size: tensor 'held' needs 160"):
            tikemu.run(kernel, {"n": 5}, numerics=numerics)


def test_shape_that_grows_after_the_definition(kernel: Any) -> None:
    def body(out: Any) -> None:
        n = kernel.Scalar("int32", init_value=1)
        held = kernel.Tensor("int32", (n, 8), tik.scope_ubuf, "held", max_mem_size=64)
        with kernel.for_range(0, 3):
            kernel.vector_dup(8, held, 3, 1, 1, 8)
            n.set_as(n + 1)

    with pytest.raises(TikBoundsError, match="exceeds max_mem_size(.|\n)*vector_dup"):
        values(program(kernel, body))


def test_run_time_slice_beyond_the_tensor(kernel: Any) -> None:
    n = kernel.InputScalar("int32", "n")
    program(kernel, lambda out: kernel.vector_dup(8, out[0:n], 3, 1, 1, 8), inputs=[n])
    assert values(kernel, {"n": 8}) == [3] * 8
    with pytest.raises(TikBoundsError, match="slice of tensor 'out' ends at element 9, but it has 8"):
        values(kernel, {"n": 9})


# ------------------------------------------------------------------------------------------------ caches
def test_float_arguments_with_equal_keys_stay_apart(kernel: Any) -> None:
    """0.0 and -0.0 are equal as dictionary keys, but 1/x differs."""
    source = kernel.Tensor("float32", (8,), tik.scope_gm, "source")
    target = kernel.Tensor("float32", (32,), tik.scope_gm, "target")
    held = kernel.Tensor("float32", (8,), tik.scope_ubuf, "held")
    out = kernel.Tensor("float32", (32,), tik.scope_ubuf, "out")
    kernel.data_move(held, source, 0, 1, 1, 0, 0)
    value = kernel.Scalar("float32")
    with kernel.for_range(0, 4) as i:
        value.set_as(held[i])
        kernel.vector_dup(8, out[i * 8], value, 1, 1, 8)
    kernel.data_move(target, out, 0, 1, 4, 0, 0)
    kernel.BuildCCE("kernel", [source], [target])
    data = np.array([0.0, -0.0, np.nan, -0.0, 0, 0, 0, 0], np.float32)
    got = tikemu.run(kernel, {"source": data}).outputs["target"].reshape(4, 8)
    np.testing.assert_array_equal(got[:, 0].view(np.uint32), data[:4].view(np.uint32))


def test_more_distinct_arguments_than_the_cache_holds(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tikemu.machine.sites.CACHE", 3)
    source = kernel.Tensor("int32", (128,), tik.scope_gm, "source")

    def body(out: Any) -> None:
        with kernel.for_range(0, 2), kernel.for_range(0, 16) as i:
            kernel.data_move(out[i * 8], source[i * 8], 0, 1, 1, 0, 0)

    program(kernel, body, 128, inputs=[source])
    data = np.arange(128, dtype=np.int32)
    result = tikemu.run(kernel, {"source": data})
    np.testing.assert_array_equal(result.outputs["target"], data)
    assert result.instructions["data_move"].count == 33
    assert result.gm_read_bytes == 2 * 512
    assert tikemu.run(kernel, {}, numerics=False).cycles == result.cycles


def test_more_footprints_than_are_kept(kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Dropping old footprints changes no results, and of the time only flags that would not be waited for."""
    source = kernel.Tensor("int32", (512,), tik.scope_gm, "source")

    def body(out: Any) -> None:
        with kernel.for_range(0, 3), kernel.for_range(0, 64) as i:
            kernel.data_move(out[i * 8], source[i * 8], 0, 1, 1, 0, 0)
            kernel.vec_add(8, out[i * 8], out[i * 8], out[i * 8], 1, 8, 8, 8)

    program(kernel, body, 512, inputs=[source])
    data = np.arange(512, dtype=np.int32)
    options = Options(sync="optimistic")
    expected = tikemu.run(kernel, {"source": data}, options=options)
    monkeypatch.setattr("tikemu.timing.regions.LIMIT", 40)
    got = tikemu.run(kernel, {"source": data}, options=options)
    np.testing.assert_array_equal(got.outputs["target"], 2 * data)
    assert got.cycles == pytest.approx(expected.cycles, rel=0.1)
    assert {name: use.count for name, use in got.instructions.items()} == {
        name: use.count for name, use in expected.instructions.items()}


# ------------------------------------------------------------------------------------------------ blocks
def test_blocks_have_private_memory_and_run_in_order(kernel: Any) -> None:
    target = kernel.Tensor("int32", (4, 8), tik.scope_gm, "target")
    shared = kernel.Tensor("int32", (8,), tik.scope_gm, "shared", is_workspace=True)
    with kernel.for_range(0, 4, block_num=4) as block:
        mine = kernel.Tensor("int32", (8,), tik.scope_ubuf, "mine")
        last = kernel.Tensor("int32", (8,), tik.scope_ubuf, "last")
        kernel.data_move(last, shared, 0, 1, 1, 0, 0)
        mine[0].set_as(block + 1)
        mine[1].set_as(last[0])
        kernel.data_move(target[block * 8], mine, 0, 1, 1, 0, 0)
        kernel.data_move(shared, mine, 0, 1, 1, 0, 0)
    kernel.BuildCCE("kernel", [], [target])
    assert np.array(values(kernel))[:, :3].tolist() == [[1, 0, 0], [2, 1, 0], [3, 2, 0], [4, 3, 0]]


def test_statements_before_the_block_loop_run_once_per_block(kernel: Any) -> None:
    target = kernel.Tensor("int32", (3, 8), tik.scope_gm, "target")
    with pytest.warns(TikWarning, match="once per block"):
        counter = kernel.Tensor("int32", (8,), tik.scope_ubuf, "counter")
        counter[0].set_as(5)
        with kernel.for_range(0, 3, block_num=3) as block:
            value = kernel.Scalar("int32")
            value.set_as(counter[0])
            counter[0].set_as(value + 1)
            kernel.data_move(target[block * 8], counter, 0, 1, 1, 0, 0)
        kernel.BuildCCE("kernel", [], [target])
    assert np.array(values(kernel))[:, 0].tolist() == [6, 6, 6]


@pytest.mark.parametrize("from_scalar", [False, True])
def test_number_of_blocks_at_run_time(kernel: Any, from_scalar: bool) -> None:
    n = kernel.InputScalar("int32", "n")
    target = kernel.Tensor("int32", (40, 8), tik.scope_gm, "target")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TikWarning)
        count = n
        if from_scalar:
            count = kernel.Scalar("int32", init_value=n)
        with kernel.for_range(0, count, block_num=count) as block:
            mine = kernel.Tensor("int32", (8,), tik.scope_ubuf, "mine")
            mine[0].set_as(block + 1)
            kernel.data_move(target[block * 8], mine, 0, 1, 1, 0, 0)
        kernel.BuildCCE("kernel", [n], [target])
    result = tikemu.run(kernel, {"n": 35})
    assert result.outputs["target"][:, 0].tolist() == [*range(1, 36), 0, 0, 0, 0, 0]
    assert (result.block_count, result.cores) == (35, 32)
    with pytest.raises(TikBoundsError, match="block_num"):
        tikemu.run(kernel, {"n": 0})


def barrier_kernel(instance: Any, blocks: int, rounds: int = 2) -> Any:
    """Every block publishes a number and, after a barrier, adds up those of all blocks; twice."""
    target = instance.Tensor("int32", (blocks, 8), tik.scope_gm, "target")
    board = instance.Tensor("int32", (rounds, blocks, 8), tik.scope_gm, "board", is_workspace=True)
    with instance.for_range(0, blocks, block_num=blocks) as block:
        mine = instance.Tensor("int32", (8,), tik.scope_ubuf, "mine")
        seen = instance.Tensor("int32", (blocks * 8,), tik.scope_ubuf, "seen")
        total = instance.Scalar("int32")
        total.set_as(block + 1)
        for number in range(rounds):
            instance.vector_dup(8, mine, total, 1, 1, 8)
            instance.data_move(board[(number * blocks + block) * 8], mine, 0, 1, 1, 0, 0)
            instance.block_barrier()
            instance.data_move(seen, board[number * blocks * 8], 0, 1, blocks, 0, 0)
            value = instance.Scalar("int32")
            total.set_as(0)
            with instance.for_range(0, blocks) as i:
                value.set_as(seen[i * 8])
                total.set_as(total + value)
        instance.vector_dup(8, mine, total, 1, 1, 8)
        instance.data_move(target[block * 8], mine, 0, 1, 1, 0, 0)
    instance.BuildCCE("kernel", [], [target])
    return instance


def test_block_barrier_lets_blocks_exchange_data(kernel: Any) -> None:
    result = tikemu.run(barrier_kernel(kernel, 5), {})
    assert result.outputs["target"][:, 0].tolist() == [15 * 5] * 5
    assert result.instructions["block_barrier"].count == 10
    assert len(set(result.core_cycles)) == 1
    assert result.cycles > 2 * (200 + 350)  # each barrier goes through global memory


def test_memory_and_registers_survive_a_block_barrier(kernel: Any) -> None:
    target = kernel.Tensor("float16", (3, 128), tik.scope_gm, "target")
    with kernel.for_range(0, 3, block_num=3) as block:
        mine = kernel.Tensor("float16", (128,), tik.scope_ubuf, "mine")
        one = kernel.Tensor("float16", (128,), tik.scope_ubuf, "one")
        kernel.vector_dup(128, one, 1.0, 1, 1, 8)
        kernel.vector_dup(128, mine, 0.0, 1, 1, 8)
        with kernel.for_range(0, block + 1) as i:
            mine[i].set_as(5.0)
        larger = kernel.vcmp_gt(128, mine, one, 1, 1)
        kernel.block_barrier()
        kernel.vsel(128, 0, mine, larger, mine, one, 1, 1, 1, 1, 8, 8, 8)
        kernel.data_move(target[block * 128], mine, 0, 1, 8, 0, 0)
    kernel.BuildCCE("kernel", [], [target])
    got = tikemu.run(kernel, {}).outputs["target"]
    for block in range(3):
        np.testing.assert_array_equal(got[block], [5.0] * (block + 1) + [1.0] * (127 - block))


def test_block_barrier_with_more_blocks_than_cores_warns(kernel: Any) -> None:
    with pytest.warns(TikWarning, match="40 blocks on 32 cores"):
        result = tikemu.run(barrier_kernel(kernel, 40, 1), {})
    assert result.outputs["target"][0, 0] == 40 * 41 // 2


def test_block_barrier_missed_by_a_block(kernel: Any) -> None:
    target = kernel.Tensor("int32", (8,), tik.scope_gm, "target")
    with kernel.for_range(0, 3, block_num=3) as block:
        with kernel.if_scope(block != 1):
            kernel.block_barrier()
        mine = kernel.Tensor("int32", (8,), tik.scope_ubuf, "mine")
        kernel.data_move(target, mine, 0, 1, 1, 0, 0)
    kernel.BuildCCE("kernel", [], [target])
    with pytest.raises(TikSyncError, match="block 1 has ended while others wait"):
        tikemu.run(kernel, {})


def test_atomic_addition_over_blocks(kernel: Any) -> None:
    source = kernel.Tensor("float32", (8,), tik.scope_gm, "source")
    target = kernel.Tensor("float32", (8,), tik.scope_gm, "target", is_atomic_add=True)
    with kernel.for_range(0, 4, block_num=4):
        held = kernel.Tensor("float32", (8,), tik.scope_ubuf, "held")
        kernel.data_move(held, source, 0, 1, 1, 0, 0)
        with kernel.for_range(0, 3) as i:
            with kernel.if_scope(i == 1):
                kernel.set_atomic_add(1)
            kernel.data_move(target, held, 0, 1, 1, 0, 0)  # the same call, plain and atomic
        kernel.set_atomic_add(0)
    kernel.BuildCCE("kernel", [source], [target])
    data = np.arange(8, dtype=np.float32)
    result = tikemu.run(kernel, {"source": data})
    np.testing.assert_array_equal(result.outputs["target"], 3 * data)
    assert tikemu.run(kernel, {}, numerics=False).cycles == result.cycles


# ------------------------------------------------------------------------------------------------ without numerics
def test_without_numerics_data_that_decide_the_course_are_computed(kernel: Any) -> None:
    source = kernel.Tensor("int32", (8,), tik.scope_gm, "source")
    bulk = kernel.Tensor("float16", (1024,), tik.scope_gm, "bulk")
    target = kernel.Tensor("float16", (1024,), tik.scope_gm, "target")
    held = kernel.Tensor("int32", (8,), tik.scope_ubuf, "held")
    doubled = kernel.Tensor("int32", (8,), tik.scope_ubuf, "doubled")
    work = kernel.Tensor("float16", (1024,), tik.scope_ubuf, "work")
    kernel.data_move(held, source, 0, 1, 1, 0, 0)
    kernel.vec_add(8, doubled, held, held, 1, 8, 8, 8)
    count = kernel.Scalar("int32")
    count.set_as(doubled[0])
    factor = kernel.Scalar("float16", init_value=2.0)
    kernel.data_move(work, bulk, 0, 1, 64, 0, 0)
    with kernel.for_range(0, count) as i:
        kernel.vec_muls(128, work, work, factor, 8, 8, 8)
        factor.set_as(work[i])
    kernel.data_move(target, work, 0, 1, 64, 0, 0)
    kernel.BuildCCE("kernel", [source, bulk], [target])
    feeds = {"source": np.full(8, 3, np.int32), "bulk": np.ones(1024, np.float16)}
    full = tikemu.run(kernel, feeds)
    alone = tikemu.run(kernel, {"source": feeds["source"]}, numerics=False)
    assert alone.cycles == full.cycles
    assert alone.instructions["vec_muls"].count == 6
    assert not alone.outputs["target"].any()
    assert full.outputs["target"][0] == 65504


def test_without_numerics_offsets_share_prepared_calls_but_not_bounds(kernel: Any) -> None:
    source = kernel.Tensor("float16", (4096,), tik.scope_gm, "source")
    n = kernel.InputScalar("int32", "n")
    with kernel.for_range(0, n) as i:
        held = kernel.Tensor("float16", (64,), tik.scope_ubuf, "held")
        kernel.data_move(held, source[i * 64], 0, 1, 4, 0, 0)
    kernel.BuildCCE("kernel", [source, n], [])
    data = np.zeros(4096, np.float16)
    assert tikemu.run(kernel, {"n": 64}, numerics=False).cycles == tikemu.run(
        kernel, {"n": 64, "source": data}).cycles
    for numerics in (False, True):
        with pytest.raises(TikBoundsError, match="'source'"):
            tikemu.run(kernel, {"n": 65, "source": data}, numerics=numerics)


def test_misaligned_offsets_take_longer_with_and_without_numerics(kernel: Any) -> None:
    source = kernel.Tensor("float16", (4096,), tik.scope_gm, "source")
    step = kernel.InputScalar("int32", "step")
    with kernel.for_range(0, 8) as i:
        held = kernel.Tensor("float16", (64,), tik.scope_ubuf, "held")
        kernel.data_move(held, source[i * step], 0, 1, 4, 0, 0)
    kernel.BuildCCE("kernel", [source, step], [])
    data = np.zeros(4096, np.float16)
    cycles = {}
    for step in (64, 72):
        full = tikemu.run(kernel, {"step": step, "source": data})
        alone = tikemu.run(kernel, {"step": step}, numerics=False)
        assert full.cycles == alone.cycles
        cycles[step] = full.instructions["data_move"].cycles
    # Offsets 0, 144, 288 ... bytes: all but every eighth cross a line.
    assert cycles[72] == pytest.approx(cycles[64] * 15 / 8)


# ------------------------------------------------------------------------------------------------ running again
def accumulate(instance: Any) -> tuple[Any, Callable[[np.ndarray, int], np.ndarray]]:
    """``target[i] += n * source[i]`` over two blocks, on what the output holds; and the same in NumPy."""
    source = instance.Tensor("float32", (128,), tik.scope_gm, "source")
    target = instance.Tensor("float32", (128,), tik.scope_gm, "target", is_atomic_add=True)
    n = instance.InputScalar("int32", "n")
    with instance.for_range(0, 2, block_num=2) as block:
        held = instance.Tensor("float32", (64,), tik.scope_ubuf, "held")
        instance.data_move(held, source[block * 64], 0, 1, 8, 0, 0)
        instance.set_atomic_add(1)
        with instance.for_range(0, n):
            instance.data_move(target[block * 64], held, 0, 1, 8, 0, 0)
        instance.set_atomic_add(0)
    instance.BuildCCE("kernel", [source, n], [target])
    return instance, lambda data, count: count * data


@pytest.mark.parametrize("options", [Options(), Options(strict=True), Options(l2=True)],
                         ids=["default", "strict", "l2"])
def test_a_second_run_starts_anew(kernel: Any, options: Options) -> None:
    """The prepared program is used again: contents, counts and time must not be."""
    _, expected = accumulate(kernel)
    fresh, _ = accumulate(tik.Tik())
    first = np.arange(128, dtype=np.float32)
    tikemu.run(kernel, {"source": first, "n": 3}, options=options)
    for data, n in ((first[::-1].copy(), 2), (first, 3), (first, 0)):
        again = tikemu.run(kernel, {"source": data, "n": n}, options=options)
        np.testing.assert_array_equal(again.outputs["target"], expected(data, n))
    once = tikemu.run(fresh, {"source": first, "n": 2}, options=options)
    again = tikemu.run(kernel, {"source": first, "n": 2}, options=options)
    for name in ("cycles", "core_cycles", "instructions", "pipes", "events_in_flight", "sync_flags", "gm_read_bytes",
                 "gm_written_bytes", "memory_floor", "constants", "code_bytes"):
        assert getattr(again, name) == getattr(once, name), name


def test_other_options_and_sizes_take_effect_in_a_second_run(kernel: Any) -> None:
    source = kernel.Tensor("float16", (2**31 - 1,), tik.scope_gm, "source")
    held = kernel.Tensor("float16", (64,), tik.scope_ubuf, "held")
    with kernel.for_range(0, 4) as i:
        kernel.data_move(held, source[i * 64], 0, 1, 4, 0, 0)
    kernel.BuildCCE("kernel", [source], [])
    large, small = np.zeros(256, np.float16), np.zeros(192, np.float16)
    assert tikemu.run(kernel, {"source": large}).cycles > 0
    assert tikemu.run(kernel, {"source": large}, timing=False).cycles is None
    assert tikemu.run(kernel, {"source": large}, options=Options(active_cores=32)).cycles > tikemu.run(
        kernel, {"source": large}).cycles
    for _ in range(2):
        with pytest.raises(TikBoundsError):
            tikemu.run(kernel, {"source": small})
        tikemu.run(kernel, {"source": large})


def test_warnings_come_in_every_run(kernel: Any) -> None:
    n = kernel.InputScalar("int32", "n")
    program(kernel, lambda out: _empty_loop(kernel, out, n), inputs=[n])
    for _ in range(2):
        with pytest.warns(TikWarning, match="bounds of for_range"):
            values(kernel, {"n": 1})


def _empty_loop(kernel: Any, out: Any, n: Any) -> None:
    out[0].set_as(0)
    with kernel.for_range(3, n):
        out[0].set_as(1)


def test_programs_are_released_with_their_prepared_run(kernel: Any) -> None:
    instance, _ = accumulate(tik.Tik())
    tikemu.run(instance, {"source": np.zeros(128, np.float32), "n": 1})
    alive = weakref.ref(instance._recorder.program)
    instance, _ = accumulate(kernel)  # the kernel built last is remembered
    gc.collect()
    assert alive() is None


# ------------------------------------------------------------------------------------------------ inputs and outputs
def copy_kernel(instance: Any, **fields: Any) -> Any:
    source = instance.Tensor("float16", (4, 16), tik.scope_gm, "source")
    target = instance.Tensor("float16", (4, 16), tik.scope_gm, "target", **fields)
    held = instance.Tensor("float16", (64,), tik.scope_ubuf, "held")
    instance.data_move(held, source, 0, 1, 4, 0, 0)
    instance.data_move(target, held, 0, 1, 2, 0, 0)
    instance.BuildCCE("kernel", [source], [target])
    return instance


DATA = np.arange(64, dtype=np.float16).reshape(4, 16)


def test_outputs_have_the_declared_shape_and_unfed_parts_are_zero(kernel: Any) -> None:
    out = tikemu.run(copy_kernel(kernel), {"source": DATA}).outputs["target"]
    np.testing.assert_array_equal(out, np.concatenate([DATA[:2], np.zeros((2, 16), np.float16)]))


def test_an_output_may_be_fed_with_its_initial_content(kernel: Any) -> None:
    out = tikemu.run(copy_kernel(kernel), {"source": DATA, "target": DATA + 1}).outputs["target"]
    np.testing.assert_array_equal(out, np.concatenate([DATA[:2], DATA[2:] + 1]))


def test_another_shape_of_the_same_size_is_reshaped_with_a_warning(kernel: Any) -> None:
    copy_kernel(kernel)
    with pytest.warns(TikWarning, match=r"shape \(4, 16\).*\(64,\) is reshaped"):
        out = tikemu.run(kernel, {"source": DATA.reshape(64)}).outputs["target"]
    np.testing.assert_array_equal(out[:2], DATA[:2])


@pytest.mark.parametrize("feeds, message", [
    ({}, "input 'source' of kernel 'kernel' is missing"),
    ({"source": DATA, "sauce": DATA}, "'sauce' is no input.*inputs are: source, target"),
    ({"source": DATA.astype(np.float32)}, "'source' is of float16, got an array of float32"),
    ({"source": DATA[:3]}, r"64 elements.*\(3, 16\)"),
])
def test_wrong_inputs_are_refused(kernel: Any, feeds: dict, message: str) -> None:
    with pytest.raises(TikParamError, match=message):
        tikemu.run(copy_kernel(kernel), feeds)


@pytest.mark.parametrize("value, message", [
    (2.5, "got the float 2.5"), (1 << 40, r"must be in \[-2147483648, 2147483647\]"), ([1, 2], "takes one int32"),
    ("three", "takes one int32"),
])
def test_wrong_input_scalars_are_refused(kernel: Any, value: Any, message: str) -> None:
    n = kernel.InputScalar("int32", "n")
    program(kernel, lambda out: out[0].set_as(n), inputs=[n])
    with pytest.raises(TikParamError, match=message):
        tikemu.run(kernel, {"n": value})


def test_global_tensors_sized_by_an_input_scalar(kernel: Any) -> None:
    n = kernel.InputScalar("int32", "n")
    source = kernel.Tensor("int32", (n, 8), tik.scope_gm, "source")
    target = kernel.Tensor("int32", (n * 8,), tik.scope_gm, "target")
    held = kernel.Tensor("int32", (8,), tik.scope_ubuf, "held")
    with kernel.for_range(0, n) as i:
        kernel.data_move(held, source[i * 8], 0, 1, 1, 0, 0)
        kernel.data_move(target[i * 8], held, 0, 1, 1, 0, 0)
    kernel.BuildCCE("kernel", [source, n], [target])
    data = np.arange(24, dtype=np.int32).reshape(3, 8)
    out = tikemu.run(kernel, {"n": 3, "source": data}).outputs["target"]
    np.testing.assert_array_equal(out, data.reshape(24))


def test_unbounded_global_tensors_take_the_size_of_what_is_fed(kernel: Any) -> None:
    source = kernel.Tensor("int32", (2**31 - 1,), tik.scope_gm, "source")
    target = kernel.Tensor("int32", (2**31 - 1,), tik.scope_gm, "target")
    held = kernel.Tensor("int32", (8,), tik.scope_ubuf, "held")
    kernel.data_move(held, source[8], 0, 1, 1, 0, 0)
    kernel.data_move(target, held, 0, 1, 1, 0, 0)
    kernel.BuildCCE("kernel", [source], [target])
    data = np.arange(16, dtype=np.int32)
    out = tikemu.run(kernel, {"source": data, "target": np.zeros(8, np.int32)}).outputs["target"]
    np.testing.assert_array_equal(out, data[8:])
    with pytest.raises(TikParamError, match="must be given among the inputs"):
        tikemu.run(kernel, {"source": data})


def test_initial_values_of_global_constants(kernel: Any) -> None:
    table = kernel.Tensor("int32", (8,), tik.scope_gm, "table", init_value=list(range(8)))

    def body(out: Any) -> None:
        kernel.data_move(out, table, 0, 1, 1, 0, 0)

    assert values(program(kernel, body)) == list(range(8))


def test_debug_print_shows_tensors_and_scalars(kernel: Any, capsys: pytest.CaptureFixture) -> None:
    def body(out: Any) -> None:
        total = kernel.Scalar("int32", "total", init_value=0)
        with kernel.for_range(0, 2, name="i") as i:
            total.set_as(total + i + 1)
            out[i].set_as(total)
            kernel.tikdb.debug_print("out[0] + total * i")
        kernel.tikdb.debug_print("out[:2]")
        kernel.tikdb.debug_print("nothing")

    values(program(kernel, body))
    assert capsys.readouterr().out.splitlines() == [
        "out[0] + total * i = 1", "out[0] + total * i = 4", "out[:2] = [1 3]",
        "nothing = NameError: name 'nothing' is not defined"]


def test_progress_bar_appears_when_asked(kernel: Any, capsys: pytest.CaptureFixture,
                                         monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tikemu.machine.progress._INTERVAL", 0.0)
    program(kernel, lambda out: _sum_to(kernel, out, 1000))
    assert values(kernel, progress=True)[0] == 499500
    shown = capsys.readouterr().err
    assert "kernel [###" in shown and "50%" in shown and shown.endswith("\r\033[K")
    values(kernel, progress=False)
    assert capsys.readouterr().err == ""


def _sum_to(kernel: Any, out: Any, count: int) -> None:
    total = kernel.Scalar("int32", init_value=0)
    with kernel.for_range(0, count) as i:
        total.set_as(total + i)
    out[0].set_as(total)
