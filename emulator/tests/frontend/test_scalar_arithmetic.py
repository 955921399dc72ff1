"""Compare compiled scalar arithmetic with C and IEEE single precision (core.md 2.6, 2.7; D5)."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from tikemu import TikBoundsError
from tikemu.machine.expressions import HELPERS, Expressions, name_of
from tikemu.program import ir

from emulator.tests.support.kernels import INTEGERS, program, values
from emulator.tests.support.naive_values import OPERATORS, stored


def evaluate(node, **variables):
    """Return the value of an expression over variables, as the compiled program computes it."""
    names = {name_of(variable): variables[variable.name] for variable in _variables(node)}
    with np.errstate(all="ignore"):
        return eval(Expressions().wrapped(node).source, dict(HELPERS), names)


def _variables(node):
    """Return the variables of an expression."""
    if isinstance(node, ir.Variable):
        return [node]
    return [found for arg in node.args for found in _variables(arg)] if isinstance(node, ir.Operation) else []


def operation(op, dtype, *args):
    """Return a node of an expression."""
    return ir.Operation(op, args, dtype)


def variable(name, dtype):
    """Return a run-time variable."""
    return ir.Variable(name, dtype, "scalar", sum(map(ord, name)))


def c_result(op, left, right, dtype):
    """Return the result of C, from exact integers."""
    return stored(OPERATORS[op](left, right), dtype)


EDGES = {
    dtype: sorted(
        {
            int(np.iinfo(dtype).min),
            int(np.iinfo(dtype).max),
            1,
            2,
            3,
            7,
            100,
            *([-1, -2, -7, -100] if dtype.startswith("i") else []),
        }
    )
    for dtype in INTEGERS
}


@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64"])
@pytest.mark.parametrize("op", ["+", "-", "*", "/", "%", "&", "|", "<<", ">>"])
def test_integer_arithmetic_is_that_of_c(op, dtype):
    a, b = variable("a", dtype), variable("b", dtype)
    for left, right in itertools.product(EDGES[dtype], EDGES[dtype]):
        if right == 0 and op in "/%":
            continue
        given = right % 8 if op in ("<<", ">>") else right
        assert evaluate(operation(op, dtype, a, b), a=left, b=given) == c_result(op, left, given, dtype), (left, right)


def test_nested_arithmetic_wraps_once_per_type():
    a = variable("a", "int32")
    big = 2**31 - 1
    # (a * a + a) / 2: the product wraps before it is divided.
    node = operation("/", "int32", operation("+", "int32", operation("*", "int32", a, a), a), 2)
    expected = c_result("/", c_result("+", c_result("*", big, big, "int32"), big, "int32"), 2, "int32")
    assert evaluate(node, a=big) == expected
    # A 32-bit product wraps before a 64-bit sum.
    wide = operation("+", "int64", operation("*", "int32", a, a), variable("b", "int64"))
    assert evaluate(wide, a=65536, b=5) == 5


def test_comparisons_use_the_common_type():
    signed, unsigned = variable("s", "int32"), variable("u", "uint32")
    assert evaluate(operation("<", "bool", signed, unsigned), s=-1, u=1) is False  # -1 becomes 2**32 - 1
    assert evaluate(operation("<", "bool", signed, variable("w", "int64")), s=-1, w=1) is True
    assert evaluate(operation("==", "bool", signed, -1), s=-1) is True


def test_logic_counts_numbers_as_not_zero():
    a, b = variable("a", "int32"), variable("b", "float32")
    assert evaluate(operation("all", "bool", a, b), a=3, b=0.5) is True
    assert evaluate(operation("all", "bool", a, b), a=3, b=0.0) is False
    assert evaluate(operation("any", "bool", a, b), a=0, b=0.0) is False
    assert evaluate(operation("not", "bool", a), a=0) is True
    larger, other = operation(">", "bool", a, 1), operation(">", "bool", b, 1)
    assert evaluate(operation("&", "bool", larger, other), a=2, b=0.0) == 0
    assert evaluate(operation("|", "bool", larger, other), a=2, b=0.0) == 1


@pytest.mark.parametrize("op", ["+", "-", "*", "/"])
def test_float_arithmetic_is_ieee_single_precision(op):
    rng = np.random.default_rng(1)
    numbers = np.concatenate([rng.standard_normal(200), [0.0, -0.0, 1e38, -3e38, 1e-40, np.inf, -np.inf, np.nan]])
    left = numbers.astype(np.float32)
    right = rng.permutation(left)
    function = {"+": np.add, "-": np.subtract, "*": np.multiply, "/": np.divide}[op]
    with np.errstate(all="ignore"):
        expected = function(left, right)
    node = operation(op, "float32", variable("a", "float32"), variable("b", "float32"))
    got = [evaluate(node, a=float(one), b=float(other)) for one, other in zip(left, right)]
    np.testing.assert_array_equal(
        np.array(got, np.float32).view(np.uint32)[~np.isnan(expected)], expected.view(np.uint32)[~np.isnan(expected)]
    )
    assert np.isnan(np.array(got)[np.isnan(expected)]).all()


@pytest.mark.parametrize(
    "source, target, value, expected",
    [
        ("int32", "int8", 200, -56),
        ("int64", "uint16", -1, 65535),
        ("uint32", "int32", 2**32 - 1, -1),
        ("int32", "float32", 16777217, 16777216.0),
        ("int64", "float32", 2**62 + 1, float(2**62)),
        ("int64", "float32", 2**53 + 2**29 + 1, float(2**53 + 2**30)),  # one rounding, not two
        ("uint64", "float32", 2**64 - 1, float(2**64)),
        ("int32", "float16", 100000, 65504.0),
        ("int32", "float16", 2049, 2048.0),
        ("float32", "int32", -2.9, -2),
        ("float32", "int32", 3e9, 2**31 - 1),
        ("float32", "uint8", -5.0, 0),
        ("float32", "int32", float("nan"), 0),
        ("float32", "int64", float("inf"), 2**63 - 1),
        ("float32", "float16", 1e6, 65504.0),
        ("float32", "float16", 1 + 2**-11, 1.0),
        ("float16", "float32", 0.333251953125, 0.333251953125),
    ],
)
def test_assignment_converts(source, target, value, expected):
    text = Expressions().converted(variable("a", source), target)
    with np.errstate(all="ignore"):
        got = eval(text.source, dict(HELPERS), {name_of(variable("a", source)): value})
    assert got == expected and isinstance(got, float if target.startswith("float") else int)


@pytest.mark.parametrize("op, message", [("/", "integer division of 3 by zero"), ("%", "remainder of 3 by zero")])
def test_division_by_zero_is_an_error_at_the_users_line(kernel, op, message):
    with program(kernel) as out:
        zero = kernel.Scalar("int32", init_value=0)
        three = kernel.Scalar("int32", init_value=3)
        out[0].set_as(three / zero if op == "/" else three % zero)
    with pytest.raises(TikBoundsError, match=f"{message}\n  at .*test_scalar_arithmetic.py:.*out.0..set_as"):
        values(kernel)
