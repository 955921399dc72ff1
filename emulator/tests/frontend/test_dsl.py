"""The container and control flow: what is recorded, what core.md 1 to 3 forbids, and the lines that errors name."""

import copy
import inspect
import time
import warnings

import pytest
import tikemu
from tikemu import tik
from tikemu.errors import TikParamError, TikUnsupportedError
from tikemu.frontend import platform_info
from tikemu.isa import registry

from emulator.tests.support.kernels import lines


def test_positional_forms_of_the_constructor(soc):
    assert not tik.Tik()._recorder.program.debug_enabled
    assert not tik.Tik(tik.Dprofile(), True)._recorder.program.debug_enabled
    assert tik.Tik(tik.Dprofile(), False)._recorder.program.debug_enabled
    assert tik.Tik(None, False, 1, 32)._recorder.program.debug_enabled
    assert tik.Tik(profiling=tik.Dprofile("v100", "cloud"), disable_debug=False)._recorder.soc.core_count == 32


def test_dprofile(soc):
    profile = tik.Dprofile("v100", "cloud")
    assert profile.get_aicore_num() == 32 and profile.get_l1_buffer_size() == 1 << 20
    assert profile.get_unified_buffer_size() == 262144
    mini = tik.Dprofile("v100", "mini")
    assert (mini.get_aicore_num(), mini.get_unified_buffer_size(), mini.get_l1_buffer_size()) == (2, 253952, 1048576)
    for arguments in (("v200", "aic"), ("v100",), ("v100", "lite")):
        with pytest.raises(TikUnsupportedError, match="Dprofile"):
            tik.Dprofile(*arguments)
    with pytest.raises(TikUnsupportedError, match="Ascend 310"):
        tik.Tik(mini)


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
    scopes = {f"scope_{name}" for name in ("gm", "ubuf", "cbuf", "cbuf_out", "ca", "cb", "cc")}
    values = {"Tensor", "Scalar", "InputScalar", "ScalarArray", "Expr", "all", "any", "negate"}
    assert {"Tik", "Dprofile"} | values | scopes <= set(dir(tik))


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


def test_recording_is_quick(kernel):
    """20000 unrolled statements in about a second or two; the bound leaves room for busy machines."""
    with kernel.for_range(0, 8, block_num=8):
        t = kernel.Tensor("float16", (128 * 255,), tik.scope_ubuf, "t")
        start = time.process_time()
        for i in range(5000):
            kernel.vec_add(128, t[i % 250 * 128], t[(i + 1) % 250 * 128], t[(i + 3) % 250 * 128], 1, 8, 8, 8)
    assert time.process_time() - start < 2
