"""Scalars, ScalarArrays and InputScalars: what can be assigned to them, and float16."""

import pytest
import tikemu
from tikemu import tik
from tikemu.errors import TikIndexError, TikParamError, TikScopeError, TikUnsupportedArgumentError
from tikemu.program import ir


def test_float16_takes_no_part_in_conditions(kernel):
    half, single = kernel.Scalar("float16"), kernel.Scalar("float32")
    for condition in (half, half > 1, tik.negate, half + half):
        with pytest.raises(TikUnsupportedArgumentError, match="float16"):
            kernel.if_scope(condition(half > 1) if condition is tik.negate else condition)
    with kernel.if_scope(single > 1):
        pass


def test_no_expression_becomes_float16(kernel):
    half = kernel.Scalar("float16")
    with pytest.raises(TikUnsupportedArgumentError, match="Expr"):
        half.set_as(kernel.Scalar("float32") + 1)
    with pytest.raises(TikUnsupportedArgumentError, match="Expr"):
        kernel.Scalar("float16", init_value=half + half)
    half.set_as(kernel.Scalar("float32"))
    half.set_as(2)


def test_scalar_defaults(kernel):
    first, second = kernel.Scalar(), kernel.Scalar(init_value=5)
    assert (first.dtype, first.name, second.name) == ("int64", "reg_buf0", "reg_buf1")
    assert [type(statement) for statement in kernel._recorder.program.body.statements] == [
        ir.DefineScalar,
        ir.DefineScalar,
        ir.Assign,
    ]


@pytest.mark.parametrize("dtype", ["float64", "bool", "bfloat16", None, 3])
def test_scalar_types(kernel, dtype):
    with pytest.raises(TikParamError, match="dtype"):
        kernel.Scalar(dtype)


@pytest.mark.parametrize("value", ["3", None, object(), [1]])
def test_what_a_scalar_cannot_hold(kernel, value):
    with pytest.raises(TikParamError):
        kernel.Scalar("int32").set_as(value)


def test_immediates_out_of_range_wrap_with_a_warning(kernel):
    s = kernel.Scalar("int8")
    with pytest.warns(tikemu.TikWarning, match="wraps to 44"):
        s.set_as(300)
    assert kernel._recorder.program.body.statements[-1].value == 44
    with pytest.warns(tikemu.TikWarning, match="becomes 2"):
        s.set_as(2.5)
    with pytest.raises(TikParamError):
        s.set_as(float("inf"))


def test_scalars_read_tensors_in_the_unified_buffer_only(kernel):
    s = kernel.Scalar("float16")
    gm = kernel.Tensor("float16", (16,), tik.scope_gm, "gm")
    with pytest.raises(TikUnsupportedArgumentError, match="Unified Buffer"):
        s.set_as(gm[0])
    s.set_as(kernel.Tensor("float16", (16,), tik.scope_ubuf, "ub")[3])
    assert kernel._recorder.program.body.statements[-1].value.offset == 3


def test_a_scalar_dies_with_its_scope(kernel):
    with kernel.new_stmt_scope():
        inner = kernel.Scalar("int32", name="inner")
        inner.set_as(1)
    for use in (
        lambda: inner.set_as(2),
        lambda: inner + 1,
        lambda: kernel.if_scope(inner),
        lambda: kernel.for_range(0, inner),
        lambda: kernel.Scalar("int32", init_value=inner),
    ):
        with pytest.raises(TikScopeError, match="inner"):
            use()


def test_an_expression_dies_with_its_innermost_operand(kernel):
    outer = kernel.Scalar("int32", name="outer", init_value=1)
    with kernel.for_range(0, 3) as i:
        sum_of_both = outer + i
        outer.set_as(sum_of_both)
    with pytest.raises(TikScopeError):
        outer.set_as(sum_of_both)
    outer.set_as(outer + 1)


def test_values_of_two_kernels_do_not_mix(kernel):
    other = tik.Tik().Scalar("int32")
    with pytest.raises(TikParamError, match="two different Tik instances"):
        kernel.Scalar("int32") + other
    with pytest.raises(TikParamError, match="another Tik instance"):
        kernel.Scalar("int32").set_as(other)


def test_scalar_array(kernel):
    array = kernel.ScalarArray("int32", 3, "a", [1, 2, 3])
    assert len(array) == 3 and array[-1]._node is array[2]._node
    array[1] = 7
    i = kernel.Scalar("int32", "i")
    array[i].set_as(array[0])
    other = kernel.Scalar("int32", "x", array[i] + 1)
    assert str(kernel).splitlines()[-5:] == [
        "    a[1] = 7",
        "    scalar i: int32",
        "    a[i] = a[0]",
        "    scalar x: int32",
        "    x = a[i] + 1",
    ]
    assert other.dtype == "int32"
    for bad in (3, -4):
        with pytest.raises(TikIndexError):
            array[bad]
    with pytest.raises(TikParamError):
        array[kernel.Scalar("float32")]
    with pytest.raises(TikParamError):
        array[1.0]


@pytest.mark.parametrize(
    "arguments", [{"length": 0}, {"length": 2.0}, {"length": 2, "init_value": [1]}, {"dtype": "float64"}]
)
def test_scalar_array_arguments(kernel, arguments):
    with pytest.raises(TikParamError):
        kernel.ScalarArray(**arguments)
    assert kernel.ScalarArray("float32", 2, init_value=1.5).length == 2


def test_input_scalar(kernel):
    n = kernel.InputScalar("int64", "n")
    with kernel.for_range(0, n):
        pass
    with pytest.raises(TikParamError):
        kernel.InputScalar("int32", "1x")
    assert not hasattr(n, "set_as")
