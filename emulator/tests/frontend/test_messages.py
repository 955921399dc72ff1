"""Test the messages of errors, and the figures that a person reads."""

import copy
import pickle
import runpy

import numpy as np
import pytest
import tikemu
from tikemu import (
    TikBoundsError,
    TikCallError,
    TikError,
    TikIndexError,
    TikParamError,
    TikUnknownApiError,
    TikUnsupportedArgumentError,
    tik,
)

from emulator.tests.support.strict_programs import ub


def this_line(error, word):
    """Check that the error names the line of this file that holds ``word``."""
    assert isinstance(error, TikError)
    assert error.location.file == __file__ and word in error.location.text


# ------------------------------------------------------------------------------------------------ when
def rows(kernel, blocks, name="row"):
    """Record a loop over ten rows; only eight of them lie inside the tensor."""
    source = kernel.Tensor("float16", (64 * 8 * blocks,), tik.scope_gm, "source")
    target = kernel.Tensor("float16", (64,), tik.scope_gm, "target")
    with kernel.for_range(0, blocks, block_num=blocks, name="part") as part:
        data = ub(kernel, "data", 64)
        with kernel.for_range(0, 2, name="half") as half:
            kernel.vec_dup(64, data, 0.0, 1, 4)
            with kernel.for_range(0, 5, name=name) as row:
                kernel.data_move(data, source[64 * (8 * part + 5 * half + row)], 0, 1, 4, 0, 0)
        kernel.data_move(target, data, 0, 1, 4, 0, 0)
    kernel.BuildCCE("rows", [source], [target])
    return {"source": np.zeros(64 * 8 * blocks, np.float16)}


@pytest.mark.parametrize("numerics", [True, False])
@pytest.mark.parametrize("reuse", [True, False])
def test_bounds_error_names_block_and_loop_variables(kernel, numerics, reuse):
    feed = rows(kernel, 3)
    with pytest.raises(TikBoundsError, match="tensor 'source'") as caught:
        tikemu.run(kernel, feed, numerics=numerics, options=tikemu.Options(reuse=reuse))
    moment = caught.value.moment
    assert (moment.block, moment.block_count, moment.loops) == (2, 3, (("part", 2), ("half", 1), ("row", 3)))
    assert str(caught.value).endswith("\n  in block 2 of 3, part = 2, half = 1, row = 3")
    this_line(caught.value, "kernel.data_move(data, source[")


def test_loops_of_one_name_are_told_apart_by_their_lines(kernel):
    feed = rows(kernel, 1, "half")
    with pytest.raises(TikBoundsError) as caught:
        tikemu.run(kernel, feed)
    moment = caught.value.moment
    assert moment.block is None and [value for _, value in moment.loops] == [0, 1, 3]
    line = caught.value.location.line
    assert [name for name, _ in moment.loops] == ["part", f"half (line {line - 3})", f"half (line {line - 1})"]


def test_loops_that_have_ended_are_not_named(kernel):
    target = kernel.Tensor("float16", (64,), tik.scope_gm, "target")
    data = ub(kernel, "data", 64)
    count = kernel.Scalar("int32", init_value=8)
    with kernel.for_range(0, 3, name="before"):
        kernel.vec_dup(64, data, 1.0, 1, 8)
    kernel.data_move(target, data, 0, 1, count, 0, 0)
    kernel.BuildCCE("kernel", [], [target])
    with pytest.raises(TikBoundsError) as caught:
        tikemu.run(kernel, {})
    assert caught.value.moment is None and " in " not in str(caught.value).splitlines()[-1]


def test_scalar_access_names_the_moment(kernel):
    target = kernel.Tensor("float16", (16,), tik.scope_gm, "target")
    data, value = ub(kernel, "data", 16), kernel.Scalar("float16")
    kernel.vec_dup(16, data, 1.0, 1, 1)
    with kernel.for_range(0, 20, name="lane") as lane:
        value.set_as(data[lane])
    kernel.data_move(target, data, 0, 1, 1, 0, 0)
    kernel.BuildCCE("kernel", [], [target])
    with pytest.raises(TikBoundsError, match=r"lane = 16$"):
        tikemu.run(kernel, {})


# ------------------------------------------------------------------------------------------------ which name
@pytest.mark.parametrize(
    ("wrong", "meant"),
    [
        ("vec_ad", "'vec_add' or 'vec_and'"),
        ("vadd_relu", "'vaddrelu'"),
        ("datamove", "'data_move'"),
        ("tensor", "'Tensor'"),
        ("if_scop", "'if_scope'"),
    ],
)
def test_unknown_api_suggests_the_nearest(kernel, wrong, meant):
    with pytest.raises(TikUnknownApiError) as caught:
        getattr(kernel, wrong)
    assert f"no API {wrong!r}" in str(caught.value) and f"did you mean {meant}?" in caught.value.message
    this_line(caught.value, "getattr(kernel, wrong)")


def test_a_name_like_no_other_suggests_nothing(kernel):
    with pytest.raises(TikUnknownApiError) as caught:
        kernel.xyzzy(1)
    assert "did you mean" not in str(caught.value)
    assert not hasattr(kernel, "vec_ad")


def test_unknown_attributes_of_values_suggest_the_nearest(kernel):
    for value, wrong, meant in ((ub(kernel, "data"), "reshap", "reshape"), (kernel.Scalar("int32"), "set_a", "set_as")):
        with pytest.raises(TikUnknownApiError, match=f"did you mean '{meant}'"):
            getattr(value, wrong)


def public_objects(kernel):
    """Return one object of each class that programs hold, and the module."""
    tikemu.install(soc="Ascend910A", force=True)
    from tbe import tik as module
    from tbe.common import platform

    return {
        "Tik": kernel,
        "Dprofile": tik.Dprofile("v100", "cloud"),
        "Tikdb": kernel.tikdb,
        "Tensor": ub(kernel, "held"),
        "Scalar": kernel.Scalar("int32"),
        "InputScalar": kernel.InputScalar("int32", "n"),
        "Expr": kernel.Scalar("int32") + 1,
        "ScalarArray": kernel.ScalarArray("int32", 2),
        "ForRange": kernel.for_range(0, 2),
        "IfScope": kernel.if_scope(True),
        "StatementScope": kernel.new_stmt_scope(),
        "tbe.tik": module,
        "tbe.common.platform": platform,
    }


def test_missing_names_of_public_objects(kernel):
    """A TikError with the program's line, and an AttributeError. Names with underscores stay Python's."""
    for label, value in public_objects(kernel).items():
        with pytest.raises(AttributeError, match="no_such_name") as caught:
            _ = value.no_such_name
        this_line(caught.value, "value.no_such_name")
        assert not hasattr(value, "no_such_name"), label
        assert getattr(value, "no_such_name", 3) == 3
        for name in ("__no_such_name__", "_no_such_name"):
            with pytest.raises(AttributeError) as plain:
                getattr(value, name)
            assert not isinstance(plain.value, TikError), label
    profile = tik.Dprofile("v100", "cloud")
    for copied in (copy.deepcopy(profile), copy.copy(profile), pickle.loads(pickle.dumps(profile))):
        assert copied.get_aicore_num() == 32
    with pytest.raises(ImportError):
        from tbe.tik import no_such_name  # noqa: F401


def test_the_name_of_the_product(kernel):
    assert tik.Dprofile().get_product_name() == tik.Dprofile("v100", "cloud").get_product_name() == "cloud"
    assert tik.Dprofile("v100", "mini").get_product_name() == "mini"


HUGE = {
    "scalar operand": lambda k, t, n: k.vec_dup(64, t, n, 1, 8),
    "float operand": lambda k, t, n: k.vec_muls(64, t, t, n, 1, 8, 8),
    "operand of a whole tensor": lambda k, t, n: k.h_add(t, t, n),
    "mask": lambda k, t, n: k.vec_abs(n, t, t, 1, 8, 8),
    "word of a mask": lambda k, t, n: k.vec_abs([0, n], t, t, 1, 8, 8),
    "stride": lambda k, t, n: k.vec_abs(64, t, t, 1, n, 8),
    "burst": lambda k, t, n: k.data_move(t, t[512:], 0, 1, n, 0, 0),
    "argument of a function of the scalar unit": lambda k, t, n: k.scalar_max(k.Scalar("int32"), k.Scalar("int32"), n),
    "initial value": lambda k, t, n: k.Scalar("int32", "s", init_value=n),
    "initial float": lambda k, t, n: k.Scalar("float32", "s", init_value=n),
    "element": lambda k, t, n: t[0].set_as(n),
    "operand of an expression": lambda k, t, n: k.Scalar("int64") + n,
    "comparison": lambda k, t, n: k.if_scope(k.Scalar("int64") < n),
    "bound of a loop": lambda k, t, n: k.for_range(0, n),
    "index": lambda k, t, n: t[n],
}


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("name", HUGE)
def test_integers_beyond_64_bits(kernel, name, dtype):
    tensor = kernel.Tensor(dtype, (1024,), tik.scope_ubuf, "held")
    for number in (2**64, -(10**400), 2**1023):
        with pytest.raises(TikError) as caught:
            HUGE[name](kernel, tensor, number)
        assert caught.value.location.file == __file__
        assert isinstance(caught.value, (TikParamError, TikIndexError))


def test_unknown_name_of_the_module_suggests_the_nearest():
    tikemu.install(soc="Ascend910A", force=True)
    from tbe import tik as module

    with pytest.raises(AttributeError, match="scope_ubf.*did you mean 'scope_ubuf'"):
        _ = module.scope_ubf


CALLS = {
    "keyword of an instruction": (
        lambda k, t: k.vec_abs(64, t, t, repeat_tims=1),
        "vec_abs has no argument 'repeat_tims'; did you mean 'repeat_times'?",
    ),
    "keyword of a container": (
        lambda k, t: k.Tensor("float16", (8,), tik.scope_ubuf, nam="x"),
        "Tensor has no argument 'nam'; did you mean 'name'?",
    ),
    "keyword of for_range": (
        lambda k, t: k.for_range(0, 2, thread_nun=2),
        "for_range has no argument 'thread_nun'; did you mean 'thread_num'?",
    ),
    "keyword of the constructor": (lambda k, t: tik.Tik(disable_debg=True), "did you mean 'disable_debug'?"),
    "missing in an instruction": (
        lambda k, t: k.data_move(t, t, 0, 1),
        "data_move lacks 'burst', 'src_stride' and 'dst_stride': data_move(dst, src, sid, nburst, burst,",
    ),
    "missing in a container": (lambda k, t: k.Scalar("int32").set_as(), "Scalar.set_as lacks 'value': "),
    "missing in BuildCCE": (lambda k, t: k.BuildCCE("kernel", []), "BuildCCE lacks 'outputs': "),
    "too many": (lambda k, t: k.vec_abs(64, t, t, 1, 8, 8, 1), "vec_abs takes at most 6 positional arguments, got 7: "),
    "twice": (lambda k, t: k.vec_abs(64, t, t, 1, 8, 8, dst=t), "vec_abs got 'dst' by position and by keyword: "),
}


@pytest.mark.parametrize("name", CALLS)
def test_wrong_calls_name_line_and_argument(kernel, name):
    call, said = CALLS[name]
    data = ub(kernel, "data")
    with pytest.raises(TikCallError) as caught:
        call(kernel, data)
    assert said in caught.value.message
    assert isinstance(caught.value, TypeError) and caught.value.location.file == __file__


def test_extension_argument_suggests_a_documented_one(kernel):
    data = ub(kernel, "data")
    with pytest.raises(TikUnsupportedArgumentError, match="'brust' .*; did you mean 'burst'"):
        kernel.data_move(data, data[64], 0, 1, 4, 0, 0, brust=1)
    with pytest.raises(TikCallError, match="'brust'; did you mean 'burst'"):
        kernel.data_move(data, data[64], 0, 1, brust=4, src_stride=0, dst_stride=0)


def test_a_type_error_inside_a_call_stays_one(kernel, monkeypatch):
    def broken(*arguments):
        raise TypeError("inside")

    monkeypatch.setattr(kernel._recorder, "instruction", broken)
    data = ub(kernel, "data")
    with pytest.raises(TypeError, match="^inside$"):
        kernel.vec_abs(64, data, data, 1, 8, 8)


# ------------------------------------------------------------------------------------------------ figures
def test_the_line_of_a_module_that_was_loaded_again(soc, tmp_path):
    """The error shows the text of the module as it is now."""
    file, shown = tmp_path / "program.py", []
    for shape in ("(0,)", "(1, -7)"):
        line = f"tik.Tik().Tensor('float16', {shape}, tik.scope_ubuf, 'data')"
        file.write_text(f"from tikemu import tik\n{line}\n")
        with pytest.raises(TikParamError) as caught:
            runpy.run_path(str(file))
        shown.append(caught.value.location.text == line)
    assert shown == [True, True]


def test_cycles_are_printed_for_people(kernel):
    target = kernel.Tensor("float16", (128,), tik.scope_gm, "target")
    data = ub(kernel, "data")
    with kernel.for_range(0, 3000):
        kernel.vec_dup(128, data, 1.0, 1, 8)
    kernel.data_move(target, data, 0, 1, 8, 0, 0)
    kernel.BuildCCE("kernel", [], [target])
    result = tikemu.run(kernel, {})
    cycles, mhz = result.cycles, result.soc.clock_mhz
    assert cycles > 3000
    text = f"{cycles:,} cycles ({cycles / mhz:,.1f} us)"
    assert result.duration(cycles) == text
    assert f"estimate: {text} at {mhz:,} MHz" in result.report()
    busy = result.pipes["V"].busy
    assert [f"{busy:,.0f}", f"{busy / mhz:,.1f}"] == next(
        line.split()[1:3] for line in result.report().splitlines() if line.startswith("PIPE_V")
    )
    use = result.instructions["vec_dup"].cycles
    assert [f"{use:,.0f}", f"{use / mhz:,.1f}"] == next(
        line.split()[2:4] for line in result.report().splitlines() if line.startswith("vec_dup")
    )
