"""``tikdb`` (core.md 5.2) and ``tikemu.run``."""

import contextlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import tikemu
from tikemu import tik
from tikemu.errors import TikBuildError, TikDebugError


def double(kernel, build=True):
    """Record y = 2 x, 128 float16. Returns the built kernel, or the arguments of BuildCCE."""
    x = kernel.Tensor("float16", (8, 16), tik.scope_gm, "x")
    y = kernel.Tensor("float16", (128,), tik.scope_gm, "y")
    with kernel.new_stmt_scope():
        data = kernel.Tensor("float16", (128,), tik.scope_ubuf, "data")
        factor = kernel.Scalar("float16", "factor", 2.0)
        kernel.data_move(data, x, 0, 1, 8, 0, 0)
        kernel.vec_muls(128, data, data, factor, 1, 8, 8)
        kernel.data_move(y, data, 0, 1, 8, 0, 0)
    if build:
        kernel.BuildCCE("double", [x], [y])
    return x, y


VALUES = np.arange(128, dtype=np.float16).reshape(8, 16)


def test_start_debug_returns_the_outputs_in_order(kernel, no_warnings):
    x, y = double(kernel, build=False)
    kernel.BuildCCE("double", [x], [y, x])
    first, second = kernel.tikdb.start_debug({"x": VALUES}, interactive=False)
    np.testing.assert_array_equal(first, 2 * VALUES.reshape(-1))
    np.testing.assert_array_equal(second, VALUES)
    assert isinstance(kernel.tikdb.start_debug(feed_dict={"x": VALUES}, interactive=False), list)


def test_without_outputs_the_result_is_a_zero(kernel):
    kernel.BuildCCE("nothing", [], [])
    (only,) = kernel.tikdb.start_debug({}, False)
    assert np.array_equal(only, [0])


def test_there_is_no_prompt(kernel, strict):
    double(kernel)
    with pytest.warns(tikemu.TikWarning, match="interactive"):
        kernel.tikdb.start_debug({"x": VALUES})


def test_debugging_must_be_enabled_and_follow_buildcce(soc):
    disabled, enabled = tik.Tik(), tik.Tik(disable_debug=False)
    with pytest.raises(TikDebugError, match="follow BuildCCE"):
        enabled.tikdb.start_debug({"x": VALUES}, False)
    for kernel in (disabled, enabled):
        double(kernel)
    for use in (lambda: disabled.tikdb.start_debug({"x": VALUES}, False), lambda: disabled.tikdb.debug_print("x")):
        with pytest.raises(TikDebugError, match="disable_debug=False"):
            use()
    with pytest.raises(TikDebugError, match="before BuildCCE"):
        enabled.tikdb.debug_print("x")
    assert enabled.tikdb.start_debug({"x": VALUES}, False)


def test_run_works_whatever_disable_debug_is(soc):
    kernel = tik.Tik()
    with pytest.raises(TikBuildError, match="BuildCCE"):
        tikemu.run(kernel, {"x": VALUES})
    double(kernel)
    for program in (kernel, kernel._recorder.program):
        result = tikemu.run(program, {"x": VALUES})
        np.testing.assert_array_equal(result.outputs["y"], 2 * VALUES.reshape(-1))
        assert isinstance(result, tikemu.Result) and result.cycles > 0
    assert tikemu.run(kernel, {"x": VALUES}, timing=False).outputs["y"][1] == 2


def test_the_debugger_runs_with_the_options_in_force(soc):
    """In strict mode an output that nothing wrote is an error."""
    kernel = tik.Tik(disable_debug=False)
    y = kernel.Tensor("float16", (16,), tik.scope_gm, "y")
    kernel.BuildCCE("nothing", [], [y])
    assert not kernel.tikdb.start_debug({}, False)[0].any()
    with tikemu.use_options(tikemu.Options(strict=True)), pytest.raises(tikemu.TikUndefinedError):
        kernel.tikdb.start_debug({}, False)


def test_options_in_force():
    assert tikemu.default_options() == tikemu.Options()
    with tikemu.use_options(tikemu.Options(strict=True)) as options:
        assert tikemu.default_options() is options
    assert not tikemu.default_options().strict
    before = tikemu.set_default_options(tikemu.Options(strict=True))
    assert tikemu.default_options().strict and not before.strict
    with pytest.raises(TypeError):
        tikemu.set_default_options({"strict": True})


def test_options_of_a_block_hold_in_its_thread():
    """Blocks of two threads overlap, and the one that was opened first ends first."""
    before, seen = tikemu.default_options(), []
    with ThreadPoolExecutor(1) as pool, contextlib.ExitStack() as first:
        first.enter_context(tikemu.use_options(tikemu.Options(strict=True)))
        second = tikemu.use_options(tikemu.Options(l2=True))
        seen += [pool.submit(tikemu.default_options).result(), pool.submit(second.__enter__).result()]
        first.close()
        seen += [tikemu.default_options(), pool.submit(tikemu.default_options).result()]
        pool.submit(second.__exit__, None, None, None).result()
        seen += [tikemu.default_options(), pool.submit(tikemu.default_options).result()]
    assert [(options.strict, options.l2) for options in seen] == [
        (before.strict, before.l2),
        (False, True),
        (before.strict, before.l2),
        (False, True),
        (before.strict, before.l2),
        (before.strict, before.l2),
    ]
