"""The container and control flow: what is recorded, what core.md 1 to 3 forbids, and where errors point."""

from __future__ import annotations

import contextlib
import copy
import inspect
import time
import warnings

import pytest
import tikemu
from tikemu import ir, platform_info, tik
from tikemu.errors import (
    TikBuildError,
    TikError,
    TikParamError,
    TikScopeError,
    TikUnsupportedArgumentError,
    TikUnsupportedError,
)
from tikemu.isa import registry


def body(kernel):
    return kernel._recorder.program.body.statements


def lines(kernel):
    """The recorded program without its head, unindented by one level."""
    return [line[4:] for line in str(kernel).splitlines()[1:]]


# ------------------------------------------------------------------------------------------------ Tik, Dprofile
def test_positional_forms_of_the_constructor(soc):
    assert not tik.Tik()._recorder.program.debug_enabled
    assert not tik.Tik(tik.Dprofile(), True)._recorder.program.debug_enabled
    assert tik.Tik(tik.Dprofile(), False)._recorder.program.debug_enabled
    assert tik.Tik(None, False, 1, 32)._recorder.program.debug_enabled
    assert tik.Tik(profiling=tik.Dprofile("v100", "cloud"), disable_debug=False)._recorder.soc.core_count == 32


@pytest.mark.parametrize(
    "arguments", [{"profiling": "v100"}, {"disable_debug": None}, {"err_msg_level": 2}, {"block_size": 64}]
)
def test_constructor_arguments(soc, arguments):
    with pytest.raises(TikParamError):
        tik.Tik(**arguments)


def test_dprofile(soc):
    profile = tik.Dprofile("v100", "cloud")
    assert profile.get_aicore_num() == 32 and profile.get_l1_buffer_size() == 1 << 20
    assert profile.get_unified_buffer_size() == 262144
    assert tik.Dprofile("v100", "mini").get_aicore_num() == 2
    for arguments in (("v200", "aic"), ("v100",), ("v100", "lite")):
        with pytest.raises(TikUnsupportedError, match="Dprofile"):
            tik.Dprofile(*arguments)
    with pytest.raises(TikUnsupportedError, match="Ascend 310"):
        tik.Tik(tik.Dprofile("v100", "mini"))


def test_dprofile_cloud_selects_the_910(no_warnings):
    assert tik.Tik(tik.Dprofile("v100", "cloud"))._recorder.soc.name == "Ascend910A"
    platform_info.set_current_compile_soc_info("Ascend910B")
    assert tik.Dprofile("v100", "cloud").get_aicore_num() == 30


def test_without_a_soc_the_910_is_assumed():
    with pytest.warns(tikemu.TikWarning, match="no SoC is selected"):
        assert tik.Tik()._recorder.soc.name == "Ascend910A"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tik.Tik()  # one warning is enough


def test_without_a_soc_strict_mode_refuses(strict):
    with pytest.raises(TikParamError, match="no SoC is selected"):
        tik.Tik()
    platform_info.set_current_compile_soc_info("Ascend910")
    tik.Tik()


def test_the_module_has_the_names_programs_use():
    for name in (
        "Tik",
        "Dprofile",
        "Tensor",
        "Scalar",
        "InputScalar",
        "ScalarArray",
        "Expr",
        "all",
        "any",
        "negate",
        "scope_gm",
        "scope_ubuf",
        "scope_cbuf",
        "scope_cbuf_out",
        "scope_ca",
        "scope_cb",
        "scope_cc",
    ):
        assert hasattr(tik, name)


# ------------------------------------------------------------------------------------------------ instructions
def test_instructions_have_documented_signatures():
    assert list(inspect.signature(tik.Tik.vec_add).parameters) == [
        "self",
        "mask",
        "dst",
        "src0",
        "src1",
        "repeat_times",
        "dst_rep_stride",
        "src0_rep_stride",
        "src1_rep_stride",
    ]
    assert list(inspect.signature(tik.Tik.data_move).parameters)[:8] == [
        "self",
        "dst",
        "src",
        "sid",
        "nburst",
        "burst",
        "src_stride",
        "dst_stride",
    ]


def test_keywords_and_positions_record_the_same(kernel):
    t = kernel.Tensor("float16", (128,), tik.scope_ubuf, "t")
    kernel.vec_adds(128, t, t, 1.0, 1, 8, 8)
    kernel.vec_adds(mask=128, dst=t, src=t, scalar=1.0, repeat_times=1, dst_rep_stride=8, src_rep_stride=8)
    assert lines(kernel)[1] == lines(kernel)[2] != ""
    with pytest.raises(TypeError, match="src_rep_stride"):
        kernel.vec_adds(128, t, t, 1.0, 1, 8)
    with pytest.raises(TypeError, match="strides"):
        kernel.vec_adds(128, t, t, 1.0, 1, 8, 8, strides=1)


def test_other_keywords_that_programs_use(kernel):
    t = kernel.Tensor("float16", (128,), tik.scope_ubuf, "t")
    spec = registry.specs()["vadds"]
    alias, name = next(iter(spec.aliases.items()))
    good = dict(zip(list(spec.signature.parameters)[:9], (128, t, t, 1.0, 1, 1, 1, 8, 8)))
    kernel.vadds(**good)
    kernel.vadds(**{alias if key == name else key: value for key, value in good.items()})
    assert lines(kernel)[1] == lines(kernel)[2]
    assert inspect.signature(tik.Tik.vadds).parameters.keys() == {"self", *spec.signature.parameters}


def test_refused_names_say_why(kernel):
    with pytest.raises(TikUnsupportedError, match="data_move_pad is not supported on Ascend910A") as caught:
        kernel.data_move_pad(None, None, 1, 1, 0, 0)
    assert caught.value.location.file == __file__
    assert hasattr(kernel, "data_move_pad")


def test_unknown_names(kernel):
    assert not hasattr(kernel, "no_such_api") and not hasattr(kernel, "__len__") and copy.copy(kernel) is not kernel
    with pytest.raises(TikUnsupportedError, match="no_such_api") as caught:
        kernel.no_such_api(1)
    assert isinstance(caught.value, AttributeError) and caught.value.location.file == __file__


def test_checks_of_the_table_point_at_the_users_line(kernel):
    t = kernel.Tensor("float16", (128,), tik.scope_ubuf, "t")
    with pytest.raises(TikParamError, match="repeat_times") as caught:
        kernel.vec_adds(128, t, t, 1.0, 0, 8, 8)
    message = str(caught.value)
    assert f"{__file__}:{caught.value.location.line}" in message
    assert "kernel.vec_adds(128, t, t, 1.0, 0, 8, 8)" in message


@pytest.mark.parametrize("argument", [object(), {1, 2}, b"x"])
def test_arguments_that_mean_nothing(kernel, argument):
    t = kernel.Tensor("float16", (128,), tik.scope_ubuf, "t")
    with pytest.raises(TikParamError):
        kernel.vec_adds(128, t, t, argument, 1, 8, 8)


def test_a_helper_function_does_not_hide_the_line(kernel):
    def helper(tensor):
        tensor[99] = 1.0

    with pytest.raises(TikError, match="tensor\\[99\\] = 1.0"):
        helper(kernel.Tensor("float16", (16,), tik.scope_ubuf, "t"))


def test_recording_is_quick(kernel):
    """20000 unrolled statements in about a second or two; the bound leaves room for busy machines."""
    with kernel.for_range(0, 8, block_num=8):
        t = kernel.Tensor("float16", (128 * 255,), tik.scope_ubuf, "t")
        start = time.process_time()
        for i in range(5000):
            kernel.vec_add(128, t[i % 250 * 128], t[(i + 1) % 250 * 128], t[(i + 3) % 250 * 128], 1, 8, 8, 8)
    assert time.process_time() - start < 2


# ------------------------------------------------------------------------------------------------ for_range
def test_for_range_records_a_loop(kernel):
    n = kernel.Scalar("int32", "n")
    with kernel.for_range(0, 4, name="k", thread_num=2) as k:
        assert k.dtype == "int32"
        n.set_as(k)
    with kernel.for_range(n, n + 3):
        pass
    assert lines(kernel) == [
        "scalar n: int32",
        "for k in range(0, 4), thread_num=2:",
        "    n = k",
        "for i in range(n, n + 3):",
        "    pass",
    ]


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"begint": -1}, "begint"),
        ({"endt": 2147483648}, "endt"),
        ({"begint": 5}, "begint <= endt"),
        ({"endt": 4.0}, "integer"),
        ({"endt": "4"}, "integer"),
        ({"thread_num": 5}, "thread_num"),
        ({"thread_num": -1}, "thread_num"),
        ({"thread_num": 2.0}, "thread_num"),
        ({"block_num": 0}, "block_num"),
        ({"block_num": 65536}, "block_num"),
        ({"block_num": 1.5}, "block_num"),
        ({"thread_type": "half"}, "thread_type"),
        ({"dtype": "int64"}, "dtype"),
        ({"for_type": "parallel"}, "for_type"),
        ({"name": 3}, "name"),
        ({"sleep": 1}, "sleep"),
    ],
)
def test_for_range_arguments(kernel, arguments, message):
    good = {"begint": 0, "endt": 4}
    with kernel.for_range(**good):
        pass
    with pytest.raises(TikParamError, match=message):
        kernel.for_range(**{**good, **arguments})


@pytest.mark.parametrize(
    "arguments", [{"begint": 4}, {"endt": 2147483647}, {"thread_num": 0}, {"thread_num": 4}, {"enable_subblk": False}]
)
def test_for_range_at_the_edges(kernel, arguments):
    with kernel.for_range(**{"begint": 0, "endt": 4, **arguments}):
        pass


def test_bounds_are_integers(kernel):
    with pytest.raises(TikParamError, match="float32"):
        kernel.for_range(0, kernel.Scalar("float32"))
    with pytest.raises(TikParamError, match="bool"):
        kernel.for_range(0, kernel.Scalar("int32") > 1)


def test_the_end_of_a_loop_must_not_change_inside_it(kernel):
    n, m = kernel.Scalar("int32", "n", 3), kernel.Scalar("int32", "m", 0)
    array = kernel.ScalarArray("int32", 2, "a", 1)
    with kernel.for_range(0, n + 1), kernel.for_range(m, array[0]):
        with warnings.catch_warnings():
            warnings.simplefilter("error", tikemu.TikWarning)
            m.set_as(n)
            array[1] = 3
        for modify in (lambda: n.set_as(m), lambda: array[m].set_as(1)):
            with pytest.warns(tikemu.TikWarning, match="takes part in endt"):
                modify()
    with warnings.catch_warnings():
        warnings.simplefilter("error", tikemu.TikWarning)
        n.set_as(5)


def test_multi_core_rules(kernel):
    for begin, end, threads, message in ((1, 4, 1, "begin at 0"), (0, 5, 1, "equal"), (0, 4, 2, "thread_num")):
        with pytest.raises(TikParamError, match=message):
            kernel.for_range(begin, end, thread_num=threads, block_num=4)
    with (
        kernel.for_range(0, 4, block_num=4),
        kernel.for_range(0, 2, thread_num=2),
        pytest.raises(TikParamError, match="only one"),
    ):
        kernel.for_range(0, 4, block_num=4)
    with pytest.raises(TikParamError, match="only one"):
        kernel.for_range(0, 4, block_num=4)


def test_one_block_is_no_multi_core_loop(kernel, no_warnings):
    for _ in range(2):
        with kernel.for_range(0, 5, block_num=1), kernel.for_range(1, 3, thread_num=2, block_num=1):
            pass


def test_block_num_may_be_a_scalar(kernel, no_warnings):
    blocks = kernel.InputScalar("int32", "blocks")
    with pytest.raises(TikParamError, match="equal"):
        kernel.for_range(0, 4, block_num=blocks)
    with kernel.for_range(0, blocks, block_num=blocks):
        pass
    assert body(kernel)[0].block_num.name == "blocks"


def define_tensor(kernel):
    kernel.Tensor("float16", (16,), tik.scope_ubuf)


def define_scalar(kernel):
    kernel.Scalar("int32")


def run_a_loop(kernel):
    with kernel.for_range(0, 2):
        pass


def define_gm_tensor(kernel):
    kernel.Tensor("float16", (16,), tik.scope_gm)


@pytest.mark.parametrize(
    "outside, harmless", [(define_tensor, False), (define_scalar, False), (run_a_loop, False), (define_gm_tensor, True)]
)
@pytest.mark.parametrize("nested", [False, True])
def test_what_stands_before_the_multi_core_loop(kernel, outside, harmless, nested):
    with contextlib.ExitStack() as blocks:
        if nested:
            blocks.enter_context(kernel.new_stmt_scope())
        outside(kernel)
        if harmless:
            blocks.enter_context(warnings.catch_warnings())
            warnings.simplefilter("error", tikemu.TikWarning)
        else:
            blocks.enter_context(pytest.warns(tikemu.TikWarning, match="once per block"))
        blocks.enter_context(kernel.for_range(0, 4, block_num=4))


def test_statements_after_the_multi_core_loop(kernel):
    gm = kernel.Tensor("float16", (16,), tik.scope_gm, "gm")
    with warnings.catch_warnings():
        warnings.simplefilter("error", tikemu.TikWarning)
        with kernel.for_range(0, 4, block_num=4):
            assert gm.size
    with pytest.warns(tikemu.TikWarning, match="once per block"):
        kernel.Scalar("int32")


def test_strict_mode_refuses_what_stands_before_the_multi_core_loop(soc, strict):
    kernel = tik.Tik()
    kernel.Tensor("float16", (16,), tik.scope_ubuf)
    with pytest.raises(TikParamError, match="once per block"), kernel.for_range(0, 4, block_num=4):
        pass


def test_loop_jumps(kernel):
    for jump in (kernel.tik_break, kernel.tik_continue):
        with pytest.raises(TikParamError, match="only inside for_range"):
            jump()
    with kernel.for_range(0, 4, thread_num=2) as i, kernel.if_scope(i > 2):
        kernel.tik_break()
    assert body(kernel)[0].thread_num == 1
    with kernel.for_range(0, 4), pytest.warns(tikemu.TikWarning, match="tik_continue"):
        kernel.tik_continue()
    kernel.tik_return()
    assert lines(kernel) == [
        "for i in range(0, 4):",
        "    if i > 2:",
        "        break",
        "for i in range(0, 4):",
        "    continue",
        "return",
    ]


def test_no_break_directly_in_the_multi_core_loop(kernel):
    with kernel.for_range(0, 4, block_num=4) as block:
        with kernel.if_scope(block > 1), pytest.raises(TikParamError, match="multi-core"):
            kernel.tik_break()
        with kernel.for_range(0, 2):
            kernel.tik_break()


# ------------------------------------------------------------------------------------------------ conditions
def test_an_if_chain(kernel):
    s = kernel.Scalar("int32", "s")
    with kernel.if_scope(s > 1):
        s.set_as(1)
    with kernel.elif_scope(s == 0):
        s.set_as(2)
    with kernel.else_scope():
        s.set_as(3)
    assert lines(kernel) == [
        "scalar s: int32",
        "if s > 1:",
        "    s = 1",
        "elif s == 0:",
        "    s = 2",
        "else:",
        "    s = 3",
    ]


def chain(kernel, conditions, with_else):
    """Branch number n stores n; returns the recorded lines behind the definition of s."""
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


@pytest.mark.parametrize("condition", ["x", None, [1], object()])
def test_what_is_no_condition(kernel, condition):
    for use in (kernel.if_scope, tik.all, tik.any, tik.negate):
        with pytest.raises(TikParamError):
            use(condition)
    for use in (tik.all, tik.any):
        with pytest.raises(TikParamError, match="at least one"):
            use()


def test_a_dropped_branch_may_hold_the_multi_core_loop(kernel, no_warnings):
    for chosen in (False, True):
        with kernel.if_scope(chosen), kernel.for_range(0, 4, block_num=4):
            pass
    assert [type(statement) for statement in body(kernel)] == [ir.Scope]


# ------------------------------------------------------------------------------------------------ new_stmt_scope
def test_statement_scopes(kernel):
    with kernel.new_stmt_scope(), kernel.new_stmt_scope(disable_sync=True):
        pass
    assert lines(kernel) == ["scope:", "    scope, disable_sync:", "        pass"]
    with pytest.raises(TikParamError, match="disable_sync"):
        kernel.new_stmt_scope("yes")


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


# ------------------------------------------------------------------------------------------------ BuildCCE
def test_building(kernel):
    x = kernel.Tensor("float16", (16,), tik.scope_gm, "x")
    y = kernel.Tensor("float16", (16,), tik.scope_gm, "y")
    work = kernel.Tensor("float16", (16,), tik.scope_gm, "work", is_workspace=True)
    table = kernel.Tensor("float16", (2,), tik.scope_gm, "table", init_value=[1.0, 2.0])
    n, m = kernel.InputScalar("int32", "n"), kernel.InputScalar("int32", "m")
    kernel.BuildCCE("k", [x, n], (y,), None, True, {"unknown_key": 1}, [n, m], {}, None)
    program = kernel._recorder.program
    assert [getattr(node, "name", None) or node.tensor.name for node in program.inputs] == ["x", "n", "m"]
    assert [view.tensor.name for view in program.outputs] == ["y"]
    assert [info.name for info in program.workspaces] == ["work", "table"]
    assert work.size and table.size and str(kernel).startswith("kernel k(x, n, m) -> (y) on Ascend910A")


@pytest.mark.parametrize(
    "change, message",
    [
        ({"kernel_name": "1k"}, "kernel_name"),
        ({"kernel_name": "a-b"}, "kernel_name"),
        ({"kernel_name": None}, "kernel_name"),
        ({"inputs": None}, "inputs"),
        ({"inputs": ["x"]}, "inputs"),
        ({"outputs": "x"}, "outputs"),
        ({"config": 3}, "config"),
        ({"flowtable": ["x"]}, "flowtable"),
    ],
)
def test_arguments_of_buildcce(kernel, change, message):
    with pytest.raises(TikParamError, match=message):
        kernel.BuildCCE(**{"kernel_name": "k", "inputs": [], "outputs": [], **change})
    kernel.BuildCCE("k", [], [])


def test_what_can_be_an_argument(kernel):
    x = kernel.Tensor("float16", (16,), tik.scope_gm, "x")
    ub = kernel.Tensor("float16", (16,), tik.scope_ubuf, "ub")
    work = kernel.Tensor("float16", (16,), tik.scope_gm, "work", is_workspace=True)
    n = kernel.InputScalar("int32", "n")
    for inputs, outputs, message in (
        ([ub], [], "scope_gm"),
        ([work], [], "workspace"),
        ([x[0:8]], [], "whole"),
        ([x, x], [], "twice"),
        ([], [n], "outputs"),
        ([kernel.Scalar()], [], "inputs"),
    ):
        with pytest.raises(TikParamError, match=message):
            kernel.BuildCCE("k", inputs, outputs)
    kernel.BuildCCE("k", [x], [x])


def test_at_most_64_arguments(kernel):
    tensors = [kernel.Tensor("float16", (16,), tik.scope_gm, f"t{number}") for number in range(65)]
    for arguments in ((tensors, []), ([], tensors)):
        with pytest.raises(TikParamError, match="64"):
            kernel.BuildCCE("k", *arguments)
    kernel.BuildCCE("k", tensors[:64], tensors[:64])


def test_gm_tensors_must_be_arguments(kernel):
    x = kernel.Tensor("float16", (16,), tik.scope_gm, "x")
    unused = kernel.Tensor("float16", (16,), tik.scope_gm, "unused")
    with kernel.new_stmt_scope():
        ub = kernel.Tensor("float16", (16,), tik.scope_ubuf, "ub")
        kernel.data_move(ub, x, 0, 1, 1, 0, 0)
    with pytest.raises(TikBuildError, match="'x' is used but") as caught:
        kernel.BuildCCE("k", [], [])
    assert "kernel.data_move(ub, x" in str(caught.value) and unused.size
    kernel.BuildCCE("k", [x], [])


def test_input_scalars_must_be_arguments(kernel):
    n = kernel.InputScalar("int32", "n")
    with kernel.for_range(0, n + 1):
        pass
    with pytest.raises(TikBuildError, match="'n' is used but"):
        kernel.BuildCCE("k", [], [])
    kernel.BuildCCE("k", [n], [])


def test_names_of_arguments_are_unique(kernel):
    """A shipped operator defines a GM tensor twice under one name and uses the second; that is legal."""
    first, second = (kernel.Tensor("float16", (16,), tik.scope_gm, "x") for _ in range(2))
    with pytest.raises(TikParamError, match="unique"):
        kernel.BuildCCE("k", [first], [second])
    kernel.BuildCCE("k", [second], [second])


def test_nothing_follows_buildcce(kernel):
    t = kernel.Tensor("float16", (128,), tik.scope_ubuf, "t")
    kernel.BuildCCE("k", [], [])
    for late in (
        lambda: kernel.vec_abs(128, t, t, 1, 8, 8),
        lambda: kernel.Scalar("int32"),
        kernel.tik_return,
        lambda: kernel.for_range(0, 2).__enter__(),
        lambda: kernel.BuildCCE("k", [], []),
    ):
        with pytest.raises(TikBuildError, match="BuildCCE"):
            late()


def test_buildcce_inside_a_block(kernel):
    with kernel.new_stmt_scope(), pytest.raises(TikBuildError, match="outside all with blocks"):
        kernel.BuildCCE("k", [], [])
    kernel.BuildCCE("k", [], [])


def test_capacity_is_checked_at_buildcce(soc):
    for elements, fits in ((1024 * 1024, True), (1025 * 1024, False)):
        kernel = tik.Tik()
        kernel.Tensor("int8", (elements,), tik.scope_cbuf, "l1")
        if fits:
            kernel.BuildCCE("k", [], [])
            continue
        with pytest.raises(tikemu.TikMemoryError, match="exceeds the total size of the corresponding buffer"):
            kernel.BuildCCE("k", [], [])


def test_the_reserved_part_of_the_unified_buffer(soc):
    def build():
        kernel = tik.Tik()
        kernel.Tensor("int8", (253952 + 32,), tik.scope_ubuf, "ub")
        kernel.BuildCCE("k", [], [])

    with pytest.warns(tikemu.TikWarning, match="253952"):
        build()
    for options in (tikemu.Options(strict=True), tikemu.Options(ub_limit=253952)):
        with tikemu.use_options(options), pytest.raises(tikemu.TikMemoryError):
            build()


# ------------------------------------------------------------------------------------------------ findings
def test_a_strict_run_raises_what_recording_only_warned_about(kernel):
    s = kernel.Scalar("int8", "s")
    with pytest.warns(tikemu.TikWarning, match="wraps"):
        s.set_as(300)
    kernel.BuildCCE("k", [], [])
    tikemu.run(kernel, {})
    with pytest.raises(TikParamError, match="wraps") as caught:
        tikemu.run(kernel, {}, options=tikemu.Options(strict=True))
    assert "s.set_as(300)" in str(caught.value)


def test_strict_recording_raises_at_once(soc, strict):
    s = tik.Tik().Scalar("int8", "s")
    with pytest.raises(TikParamError, match="wraps"):
        s.set_as(300)
    s.set_as(30)


def test_errors_of_one_kind_keep_their_bases():
    """Programs catch RuntimeError and IndexError."""
    assert issubclass(TikError, RuntimeError) and issubclass(tikemu.TikIndexError, IndexError)
    assert issubclass(TikUnsupportedArgumentError, (TikUnsupportedError, TikParamError))
    assert issubclass(tikemu.TikAlignError, TikParamError) and issubclass(TikScopeError, TikError)
