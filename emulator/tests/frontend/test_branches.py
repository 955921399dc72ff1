"""Conditions: if_scope, elif_scope and else_scope; new_stmt_scope."""

import contextlib

import pytest
import tikemu
from tikemu import tik
from tikemu.errors import TikBuildError, TikParamError, TikWarning
from tikemu.program import ir

from emulator.tests.support.kernels import body, lines


@contextlib.contextmanager
def dropped(kernel):
    with kernel.if_scope(False), kernel.for_range(0, 2):
        yield


@contextlib.contextmanager
def decided(kernel):
    with kernel.if_scope(True):
        pass
    with kernel.else_scope():
        yield


@contextlib.contextmanager
def empty(kernel):
    with kernel.for_range(3, 3), kernel.if_scope(kernel.Scalar("int32") > 0):
        yield


CALLS = {
    "mask": lambda k, t: k.vector_dup(0, t, 1.0, 1, 1, 8),
    "repeats": lambda k, t: k.vec_abs(64, t, t, 0, 8, 8),
    "bursts": lambda k, t: k.data_move(t, t[512:], 0, 0, 1, 0, 0),
    "burst": lambda k, t: k.data_move(t, t[512:], 0, 1, 0, 0, 0),
    "repeats of a reduction": lambda k, t: k.vcadd(64, t, t[512:], 256, 1, 1, 8),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("around", [dropped, decided, empty])
def test_immediates_out_of_range_where_nothing_runs(soc, call, around):
    """Public operators guard tails of 0 elements with conditions that Python knows (D16h)."""
    kernel = tik.Tik()
    y = kernel.Tensor("float32", (16,), tik.scope_gm, "y")
    tensor = kernel.Tensor("float32", (1024,), tik.scope_ubuf, "t")
    kernel.vec_dup(16, tensor, 5.0, 1, 8)
    with around(kernel), pytest.warns(TikWarning, match="must be in .* the call never runs"):
        call(kernel, tensor)
    with pytest.raises(TikParamError, match="must be in"):
        call(kernel, tensor)
    kernel.data_move(y, tensor, 0, 1, 2, 0, 0)
    kernel.BuildCCE("k", [], [y])
    assert tikemu.run(kernel, {}).outputs["y"].tolist() == [5.0] * 16
    with tikemu.use_options(tikemu.Options(strict=True)):
        strict = tik.Tik()
        tensor = strict.Tensor("float32", (1024,), tik.scope_ubuf, "t")
        with around(strict), pytest.raises(TikParamError, match="the call never runs"):
            call(strict, tensor)


def chain(kernel, conditions, with_else):
    """Record branches, in which branch number n stores n. Returns the recorded lines behind the definition of s."""
    s = kernel.Scalar("int32", "s")
    for number, condition in enumerate(conditions):
        with (kernel.elif_scope if number else kernel.if_scope)(condition(s)):
            s.set_as(number)
    if with_else:
        with kernel.else_scope():
            s.set_as(9)
    return lines(kernel)[1:]


TRUE, FALSE, OPEN = (lambda s: True), (lambda s: 0), (lambda s: s > 1)


@pytest.mark.parametrize(
    "conditions, with_else, expected",
    [
        ([TRUE], True, ["scope:", "    s = 0"]),
        ([FALSE], True, ["scope:", "    s = 9"]),
        ([FALSE], False, []),
        ([FALSE, OPEN], True, ["if s > 1:", "    s = 1", "else:", "    s = 9"]),
        ([OPEN, TRUE, OPEN], True, ["if s > 1:", "    s = 0", "else:", "    s = 1"]),
        ([OPEN, FALSE], True, ["if s > 1:", "    s = 0", "else:", "    s = 9"]),
        ([FALSE, FALSE, TRUE], True, ["scope:", "    s = 2"]),
        ([TRUE, OPEN], True, ["scope:", "    s = 0"]),
    ],
)
def test_conditions_known_at_build_time(kernel, conditions, with_else, expected):
    assert chain(kernel, conditions, with_else) == expected


def test_elif_and_else_follow_directly(kernel):
    s = kernel.Scalar("int32", "s")
    for late in (lambda: kernel.elif_scope(s > 1), kernel.else_scope):
        with pytest.raises(TikBuildError, match="directly follow"):
            late()
        with kernel.if_scope(s > 1), pytest.raises(TikBuildError, match="directly follow"):
            late()
        s.set_as(1)
        with pytest.raises(TikBuildError, match="directly follow"):
            late()
        with kernel.if_scope(s > 1):
            pass
        with kernel.else_scope():
            pass
        with pytest.raises(TikBuildError, match="directly follow"):
            late()


def test_at_most_400_branches_behind_an_if(kernel):
    s = kernel.Scalar("int32", "s")
    with kernel.if_scope(s == 0):
        pass
    for number in range(1, 401):
        with kernel.elif_scope(s == number):
            pass
    with pytest.raises(TikParamError, match="400"):
        kernel.elif_scope(s == 401)


def test_a_dropped_branch_may_hold_the_multi_core_loop(kernel, no_warnings):
    for chosen in (False, True):
        with kernel.if_scope(chosen), kernel.for_range(0, 4, block_num=4):
            pass
    assert [type(statement) for statement in body(kernel)] == [ir.Scope]


def test_statement_scopes(kernel):
    with kernel.new_stmt_scope(), kernel.new_stmt_scope(disable_sync=True):
        pass
    assert lines(kernel) == ["scope:", "    scope, disable_sync:", "        pass"]


def test_no_scope_inside_an_unsynchronised_one(kernel):
    with (
        kernel.new_stmt_scope(disable_sync=True),
        kernel.for_range(0, 2),
        pytest.raises(TikParamError, match="inside new_stmt_scope"),
    ):
        kernel.new_stmt_scope()
    with kernel.new_stmt_scope():
        pass


def test_composite_instructions_need_synchronisation(kernel):
    t = kernel.Tensor("float16", (512,), tik.scope_ubuf, "t")
    call = (128, t, t[128:], t[256:], 1, 8)
    with kernel.new_stmt_scope(disable_sync=True):
        with pytest.raises(TikParamError, match="vec_reduce_add cannot be used inside"):
            kernel.vec_reduce_add(*call)
        kernel.vec_abs(128, t, t, 1, 8, 8)
    with kernel.new_stmt_scope(disable_sync=False):
        kernel.vec_reduce_add(*call)


def test_an_error_inside_a_block_leaves_the_block_closed(kernel):
    with pytest.raises(ZeroDivisionError), kernel.new_stmt_scope(), kernel.for_range(0, 2):
        raise ZeroDivisionError
    assert len(kernel._recorder.frames) == 1


def test_blocks_are_nested(kernel):
    outer, inner = kernel.new_stmt_scope(), kernel.new_stmt_scope()
    outer.__enter__()
    inner.__enter__()
    with pytest.raises(TikBuildError, match="nested"):
        outer.__exit__()
