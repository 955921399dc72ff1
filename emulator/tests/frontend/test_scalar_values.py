"""Scalars, ScalarArrays and InputScalars: what can be assigned to them, and float16."""

import pytest
import tikemu
from tikemu import tik
from tikemu.errors import TikScopeError
from tikemu.program import ir


def test_scalar_defaults(kernel):
    first, second = kernel.Scalar(), kernel.Scalar(init_value=5)
    assert (first.dtype, first.name, second.name) == ("int64", "reg_buf0", "reg_buf1")
    assert [type(statement) for statement in kernel._recorder.program.body.statements] == [
        ir.DefineScalar,
        ir.DefineScalar,
        ir.Assign,
    ]


def test_immediates_out_of_range_wrap_with_a_warning(kernel):
    s = kernel.Scalar("int8")
    with pytest.warns(tikemu.TikWarning, match="wraps to 44"):
        s.set_as(300)
    assert kernel._recorder.program.body.statements[-1].value == 44
    with pytest.warns(tikemu.TikWarning, match="becomes 2"):
        s.set_as(2.5)


def test_scalars_read_tensors_in_the_unified_buffer(kernel):
    s = kernel.Scalar("float16")
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


def test_input_scalar(kernel):
    n = kernel.InputScalar("int64", "n")
    with kernel.for_range(0, n):
        pass
    assert not hasattr(n, "set_as")
