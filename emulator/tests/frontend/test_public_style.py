"""Test forms that public operators write, each beside the nearest form that is refused."""

import importlib
import sys

import numpy as np
import pytest
import tikemu
from tikemu import TikWarning, tik
from tikemu.errors import TikParamError, TikUnsupportedError

BLOCK = 16
DATA = np.arange(BLOCK, dtype=np.float16)


def copy_kernel(kernel, build):
    """Record ``y = x`` for 16 float16 elements; ``build(kernel, x, y)`` calls BuildCCE."""
    x = kernel.Tensor("float16", (BLOCK,), tik.scope_gm, "x")
    y = kernel.Tensor("float16", (BLOCK,), tik.scope_gm, "y")
    ub = kernel.Tensor("float16", (BLOCK,), tik.scope_ubuf, "ub")
    kernel.data_move(ub, x, 0, 1, 1, 0, 0)
    kernel.data_move(y, ub, 0, 1, 1, 0, 0)
    build(kernel, x, y)
    return kernel


# ------------------------------------------------------------------------------------------------ BuildCCE
def test_a_bare_tensor_is_a_list_of_one(kernel):
    copy_kernel(kernel, lambda k, x, y: k.BuildCCE(kernel_name="copy", inputs=x, outputs=y))
    assert (tikemu.run(kernel, {"x": DATA}).outputs["y"] == DATA).all()


def test_a_bare_input_scalar_is_a_list_of_one(kernel):
    count = kernel.InputScalar("int32", "count")
    y = kernel.Tensor("int32", (8,), tik.scope_gm, "y")
    ub = kernel.Tensor("int32", (8,), tik.scope_ubuf, "ub")
    kernel.vec_dup(8, ub, count, 1, 8)
    kernel.data_move(y, ub, 0, 1, 1, 0, 0)
    kernel.BuildCCE("fill", count, y)
    assert (tikemu.run(kernel, {"count": 3}).outputs["y"] == 3).all()


# ------------------------------------------------------------------------------------------------ target description
def test_the_instance_has_a_profile_without_having_been_given_one(soc):
    assert tik.Tik().d_profiling.get_aicore_num() == 32
    assert tik.Tik().d_profiling.get_unified_buffer_size() == 262144


def test_the_l2_mode_is_accepted(soc):
    tikemu.install()
    assert importlib.import_module("te.platform.cce_conf").te_set_l2_mode(1) == "success"
    assert importlib.import_module("te.platform").te_set_l2_mode(0) == "success"


# ------------------------------------------------------------------------------------------------ warnings and answers
def test_an_import_by_name_warns_at_the_line_that_asked():
    tikemu.install(soc="Ascend910A")
    with pytest.warns(TikWarning, match="te.lang") as caught:
        importlib.import_module("te.lang.cce")
    assert caught[0].filename == __file__


def test_cycles_are_whole(kernel):
    copy_kernel(kernel, lambda k, x, y: k.BuildCCE("copy", [x], [y]))
    result = tikemu.run(kernel, {"x": DATA})
    assert type(result.cycles) is int and all(type(cycles) is int for cycles in result.core_cycles)
    assert result.cycles == max(result.core_cycles) > 0


# ------------------------------------------------------------------------------------------------ debugging
def in_place(kernel):
    """Compute ``x += 1`` in global memory; x is both argument and output."""
    x = kernel.Tensor("float16", (2, BLOCK), tik.scope_gm, "x")
    ub = kernel.Tensor("float16", (2, BLOCK), tik.scope_ubuf, "ub")
    kernel.data_move(ub, x, 0, 1, 2, 0, 0)
    kernel.vec_adds(32, ub, ub, 1, 1, 8, 8)
    kernel.data_move(x, ub, 0, 1, 2, 0, 0)
    kernel.BuildCCE("in_place", [x], [])
    return kernel


def test_the_debugger_writes_inputs_back_into_what_was_fed(kernel):
    fed = np.zeros((2, BLOCK), np.float16)
    in_place(kernel).tikdb.start_debug(feed_dict={"x": fed}, interactive=False)
    assert (fed == 1).all()


def test_the_debugger_writes_back_into_arrays_of_another_shape_and_layout(kernel):
    wide = np.zeros((BLOCK, 4), np.float16)
    with pytest.warns(TikWarning, match="reshaped"):
        in_place(kernel).tikdb.start_debug({"x": wide[:, ::2]}, False)
    assert (wide[:, ::2] == 1).all() and (wide[:, 1::2] == 0).all()


def test_the_debugger_leaves_read_only_arrays_and_lists_alone(kernel):
    fixed = np.zeros((2, BLOCK), np.float16)
    fixed.flags.writeable = False
    in_place(kernel).tikdb.start_debug({"x": fixed}, False)
    assert (fixed == 0).all()


def test_run_leaves_what_was_fed_alone(kernel):
    fed = np.zeros((2, BLOCK), np.float16)
    tikemu.run(in_place(kernel), {"x": fed})
    assert (fed == 0).all()


# ------------------------------------------------------------------------------------------------ elements and Scalars
def load(kernel, scalar_dtype, tensor_dtype, values, as_initial=False):
    """Return the value of a Scalar that takes the first element of a tensor."""
    x = kernel.Tensor(tensor_dtype, (32,), tik.scope_gm, "x")
    y = kernel.Tensor(scalar_dtype, (32,), tik.scope_gm, "y")
    source = kernel.Tensor(tensor_dtype, (32,), tik.scope_ubuf, "source")
    target = kernel.Tensor(scalar_dtype, (32,), tik.scope_ubuf, "target")
    kernel.data_move(source, x, 0, 1, np.dtype(tensor_dtype).itemsize, 0, 0)
    if as_initial:
        scalar = kernel.Scalar(scalar_dtype, "scalar", source[0])
    else:
        scalar = kernel.Scalar(scalar_dtype, "scalar")
        scalar.set_as(source[0])
    for position in range(32):
        target[position].set_as(scalar)
    kernel.data_move(y, target, 0, 1, np.dtype(scalar_dtype).itemsize, 0, 0)
    kernel.BuildCCE("load", [x], [y])
    return tikemu.run(kernel, {"x": np.full(32, values, tensor_dtype)}).outputs["y"][0]


PAIRS = [("uint16", "float16"), ("int16", "float16"), ("float16", "uint16"), ("int32", "float32")]
PAIRS += [("uint32", "float32"), ("float32", "int32"), ("float32", "uint32"), ("uint8", "int8")]


@pytest.mark.parametrize("scalar, tensor", PAIRS)
@pytest.mark.parametrize("as_initial", [False, True])
def test_elements_of_equal_width_are_copied_bit_by_bit(kernel, no_warnings, scalar, tensor, as_initial):
    came = load(kernel, scalar, tensor, 5, as_initial)
    assert came.tobytes() == np.array(5, tensor).tobytes()


def test_nan_bits_survive_into_an_integer(kernel, no_warnings):
    assert load(kernel, "int32", "float32", np.nan) == np.array(np.nan, np.float32).view(np.int32)


@pytest.mark.parametrize("scalar, tensor, value", [("int32", "float16", 3), ("float32", "float16", 0.5)])
def test_other_widths_convert_with_a_warning(kernel, scalar, tensor, value):
    with pytest.warns(TikWarning, match="convert"):
        assert load(kernel, scalar, tensor, value) == value


def test_other_widths_of_integers_wrap_without_a_warning(kernel, no_warnings):
    assert load(kernel, "int32", "int8", -3) == -3


def test_strict_mode_refuses_a_load_that_converts(soc, strict):
    with pytest.raises(TikParamError, match="convert"):
        load(tik.Tik(), "int32", "float16", 3)


# ------------------------------------------------------------------------------------------------ modules
def test_modules_of_the_wheel_import():
    """What MindSpore's own operators and compile code import from te, tbe and impl, TIK side."""
    tikemu.install(soc="Ascend910A")
    for name in ("te.platform.cce_params", "te.platform.fusion_manager", "tbe.common.context.op_context"):
        assert importlib.import_module(name) is sys.modules[name]
    select = importlib.import_module("impl.util.util_select_op_base")
    with pytest.raises(TikUnsupportedError):
        select.gen_param(classify="input0")
