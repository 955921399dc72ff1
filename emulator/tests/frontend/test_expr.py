"""Run-time values: operators build nodes that mean what C means, constants fold, Python's own logic is refused."""

import operator
import warnings

import numpy as np
import pytest
import tikemu
from hypothesis import given, settings
from hypothesis import strategies as st
from tikemu import tik
from tikemu.errors import TikParamError
from tikemu.frontend import expr, platform_info
from tikemu.program import ir, nodes

from emulator.tests.support import naive_values

OPERATORS = {**naive_values.OPERATORS, "//": operator.floordiv, "%": operator.mod}


def evaluate(node, values):
    """Evaluate a node straight from the documents; integers truncate towards zero, no wrapping."""
    if isinstance(node, ir.Variable):
        return values[node.uid]
    if not isinstance(node, ir.Operation):
        return node
    return naive_values.OPERATORS[node.op](*(evaluate(arg, values) for arg in node.args))


@pytest.fixture
def scalar(kernel):
    """Return an int32 Scalar."""
    return kernel.Scalar("int32", name="s")


@st.composite
def steps(draw):
    """Return a chain of operators with constants, some with the constant on the left."""
    return [
        (draw(st.sampled_from(["+", "-", "*", "//", "%"])), draw(st.integers(-9, 9)), draw(st.booleans()))
        for _ in range(draw(st.integers(1, 6)))
    ]


def truncating(op, left, right):
    """Return an operator on numbers, with division towards zero as the chip has it."""
    return naive_values.OPERATORS["/" if op == "//" else op](left, right)


@settings(max_examples=300, deadline=None)
@given(steps(), st.integers(-1000, 1000))
def test_simplified_expressions_keep_their_value(chain, value):
    platform_info.set_current_compile_soc_info("Ascend910")
    kernel = tik.Tik()
    scalar = kernel.Scalar("int64")
    symbolic, concrete = scalar, value
    for op, constant, reflected in chain:
        reflected = reflected and op in ("+", "-", "*")
        if op in ("//", "%") and constant == 0:
            continue
        # What has become a number follows Python's rules from then on.
        meaning = truncating if isinstance(symbolic, expr.Expr) else lambda op, *sides: OPERATORS[op](*sides)
        symbolic = OPERATORS[op](constant, symbolic) if reflected else OPERATORS[op](symbolic, constant)
        concrete = meaning(op, *((constant, concrete) if reflected else (concrete, constant)))
    node = symbolic._node if isinstance(symbolic, expr.Expr) else symbolic
    assert evaluate(node, {scalar._node.uid: value}) == concrete


@pytest.mark.parametrize(
    "build, folded",
    [
        (lambda s: s + 0, "s"),
        (lambda s: 0 + s, "s"),
        (lambda s: s - 0, "s"),
        (lambda s: s * 1, "s"),
        (lambda s: 1 * s, "s"),
        (lambda s: s // 1, "s"),
        (lambda s: s << 0, "s"),
        (lambda s: s | 0, "s"),
        (lambda s: s + 2 + 3, "s + 5"),
        (lambda s: s + 2 - 5, "s - 3"),
        (lambda s: s + 2 - 2, "s"),
        (lambda s: 4 * (s * 8), "s * 32"),
        (lambda s: s * 64 // 16, "s * 4"),
        (lambda s: s * 16 // 16, "s"),
        (lambda s: (s + 1) * 4, "(s + 1) * 4"),
        (lambda s: 3 - s, "3 - s"),
        (lambda s: s - (s - 1), "s - (s - 1)"),
        (lambda s: s % 3 * 2, "s % 3 * 2"),
        (lambda s: -s, "0 - s"),
    ],
)
def test_folding(scalar, build, folded):
    assert nodes.describe(build(scalar)._node) == folded


@pytest.mark.parametrize(
    "build, value",
    [
        (lambda s: s * 0, 0),
        (lambda s: 0 * s, 0),
        (lambda s: s % 1, 0),
        (lambda s: s - s, 0),
        (lambda s: s & 0, 0),
        (lambda s: s * 32 % 16, 0),
        (lambda s: 0 // s, 0),
    ],
)
def test_expressions_that_are_constant_become_numbers(scalar, build, value):
    assert build(scalar) == value and isinstance(build(scalar), int)


def test_folding_stops_where_the_constant_leaves_the_type(scalar):
    """(s * 65536) * 65536 wraps to 0 in C, s * 2**32 would be a 64-bit product."""
    node = (scalar * 65536 * 65536)._node
    assert node.dtype == "int32" and node.args[1] == 65536


def test_constants_alone_stay_numbers(kernel):
    assert tik.all(True, 3) is True and tik.any(0, False) is False and tik.negate(2) is False


@pytest.mark.parametrize(
    "left, right, dtype",
    [
        ("int8", "int8", "int32"),
        ("uint8", "int16", "int32"),
        ("int32", "uint32", "uint32"),
        ("int64", "uint32", "int64"),
        ("uint64", "int64", "uint64"),
        ("int32", "float32", "float32"),
        ("float16", "float16", "float16"),
        ("float16", "float32", "float32"),
    ],
)
def test_types_follow_c(kernel, left, right, dtype):
    assert (kernel.Scalar(left) + kernel.Scalar(right)).dtype == dtype


@pytest.mark.parametrize(
    "dtype, constant, result",
    [
        ("int8", 1, "int32"),
        ("uint32", 1, "uint32"),
        ("int32", 2**31, "int64"),
        ("int32", 2**63, "uint64"),
        ("float32", 1, "float32"),
    ],
)
def test_type_of_an_expression_with_a_constant(kernel, dtype, constant, result):
    assert (kernel.Scalar(dtype) + constant).dtype == result


def test_comparisons_and_logic(kernel):
    s, t = kernel.Scalar("int32", "s"), kernel.Scalar("int32", "t")
    value = tik.all(s > 1, s < 4, tik.any(t == 2, tik.negate(t >= 5)))
    assert value.dtype == "bool"
    for numbers, truth in (((2, 2), True), ((2, 9), False), ((2, 4), True), ((4, 2), False)):
        assert evaluate(value._node, dict(zip((s._node.uid, t._node.uid), numbers))) == truth
    assert ((s > 1) & (s < 4)).dtype == "bool"


def test_decided_conditions_drop_out(kernel):
    s = kernel.Scalar("int32", "s")
    assert tik.all(s > 1, False) is False and tik.any(s > 1, True) is True
    assert tik.all(s > 1, True)._node.op == ">"


def test_a_bare_scalar_is_a_comparison_with_zero(kernel):
    condition = expr.condition_of(kernel.Scalar("int32", "s"), "if_scope")
    assert nodes.describe(condition._node) == "s != 0"


@pytest.mark.parametrize("op", ["//", "%", "&", "|", "<<", ">>"])
def test_integer_operators_refuse_floats(kernel, op):
    s = kernel.Scalar("float32")
    with pytest.raises(TikParamError, match="integers"):
        OPERATORS[op](s, kernel.Scalar("int32"))
    assert (s / kernel.Scalar("float32")).dtype == "float32"


def test_numpy_numbers_are_immediates(scalar):
    assert nodes.describe((scalar + np.int32(3))._node) == "s + 3"
    assert nodes.describe((np.int64(3) * scalar)._node) == "s * 3"


def test_float_immediates_warn_in_both_modes(kernel):
    s = kernel.Scalar("float32")
    with pytest.warns(tikemu.TikWarning, match="float immediate"):
        s + 2.2
    with tikemu.use_options(tikemu.Options(strict=True)):
        strict = tik.Tik().Scalar("float32")
        with pytest.warns(tikemu.TikWarning, match="float immediate"):
            1.0 / strict
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        s + 2
