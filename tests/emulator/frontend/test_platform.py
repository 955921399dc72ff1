"""Queries about the SoC (core.md 1.3 to 1.5)."""

from __future__ import annotations

import pytest
import tikemu
from tikemu.errors import TikParamError
from tikemu.frontend import platform_info
from tikemu.frontend.platform_info import (
    api_check_support,
    get_soc_spec,
    intrinsic_check_support,
    set_current_compile_soc_info,
    te_set_version,
)


@pytest.mark.parametrize(
    "version, cores",
    [
        ("Ascend910", 32),
        ("Ascend910A", 32),
        ("Ascend910B", 30),
        ("Ascend910ProA", 32),
        ("Ascend910ProB", 30),
        ("Ascend910PremiumA", 32),
    ],
)
def test_the_family(version, cores):
    assert set_current_compile_soc_info(version) == "success"
    assert get_soc_spec("CORE_NUM") == cores and get_soc_spec("SOC_VERSION") == version


@pytest.mark.parametrize(
    "arguments",
    [
        ("Ascend310",),
        ("Ascend910B1",),
        ("ascend910",),
        ("",),
        (None,),
        ("Ascend910", "AiCpu"),
        ("Ascend910", "AiCore", 0),
        ("Ascend910", "AiCore", 33),
        ("Ascend910B", "AiCore", 31),
        ("Ascend910", "AiCore", 2.0),
        ("Ascend910", "AiCore", True),
    ],
)
def test_illegal_selections_change_nothing(arguments):
    set_current_compile_soc_info("Ascend910ProB")
    assert set_current_compile_soc_info(*arguments) == "error"
    assert get_soc_spec("SOC_VERSION") == "Ascend910ProB"


def test_cores_and_core_type():
    assert te_set_version("Ascend910", aicore_num=8, l1_fusion=True) == "success"
    assert get_soc_spec("CORE_NUM") == 8 and get_soc_spec("AICORE_TYPE") == "AiCore"
    assert set_current_compile_soc_info("Ascend910", core_type="VectorCore") == "success"
    assert get_soc_spec("CORE_NUM") == 32 and get_soc_spec("AICORE_TYPE") == "VectorCore"


@pytest.mark.parametrize(
    "key, value",
    [
        ("UB_SIZE", 262144),
        ("L2_SIZE", 33554432),
        ("L1_SIZE", 1048576),
        ("CUBE_SIZE", (16, 16, 16)),
        ("L0A_SIZE", 65536),
        ("L0B_SIZE", 65536),
        ("L0C_SIZE", 262144),
        ("SMASK_SIZE", 0),
        ("AICORE_TYPE", "AiCore"),
        ("CORE_NUM", 32),
        ("SOC_VERSION", "Ascend910"),
        ("SHORT_SOC_VERSION", "Ascend910"),
    ],
)
def test_figures(key, value):
    set_current_compile_soc_info("Ascend910")
    assert get_soc_spec(key) == value


@pytest.mark.parametrize("key", ["UB", "ub_size", "", None, 3])
def test_unknown_keys(soc, key):
    with pytest.raises(TikParamError, match="UB_SIZE"):
        get_soc_spec(key)


def test_the_reported_size_of_the_unified_buffer_is_configurable(soc):
    with tikemu.use_options(tikemu.Options(ub_reported=253952)):
        assert get_soc_spec("UB_SIZE") == 253952
    assert get_soc_spec("UB_SIZE") == 262144


def test_queries_without_a_soc(strict):
    with pytest.raises(TikParamError, match="no SoC"):
        get_soc_spec("UB_SIZE")
    with tikemu.use_options(tikemu.Options()), pytest.warns(tikemu.TikWarning, match="no SoC"):
        assert get_soc_spec("SOC_VERSION") == "Ascend910"
    assert not platform_info.is_selected()


@pytest.mark.parametrize(
    "name, dtype, answer",
    [
        ("tik.vadd", "", True),
        ("tik.vadd", "float16", True),
        ("tik.vadd", "int32", True),
        ("tik.vadd", "int16", False),
        ("tik.vec_and", "uint16", True),
        ("tik.vec_and", "float16", False),
        ("tik.vcmax", "float16", True),
        ("tik.vcmax", "float32", False),
        ("vadd", "", True),
        ("tik.data_move", "", True),
        ("tik.load2dv1", "float16", True),
        ("tik.for_range", "", True),
        ("tik.Tensor", "float32", True),
        ("tik.data_move_pad", "", False),
        ("tik.data_move_pad", "float16", False),
        ("tik.vcopy", "", False),
        ("tik.vgather", "", False),
        ("tik.load2dv2", "", False),
        ("tik.load3dv2", "", False),
        ("tik.v4dtrans", "", False),
        ("tik.vreduce", "", False),
        ("tik.vcmpvs_gt", "", False),
        ("tik.no_such_thing", "", False),
        ("te.lang.cce.vadd", "float32", True),
        ("te.lang.cce.vdiv", "float32", True),
        ("tbe.dsl.vlog", "float32", True),
        ("te.lang.cce.vadd", "int16", False),
        ("te.lang.cce.vand", "float16", False),
        ("te.lang.cce.reduce_max", "float32", True),
        ("te.lang.cce.cast_to", "f322f16", True),
        ("te.lang.cce.cast_to", "f162s16", False),
        ("te.lang.cce.nothing", "float32", False),
        ("topi.vadd", "float32", False),
        ("", "", False),
        ("tik.vconv", "f322f16", True),
        ("tik.vconv", "f322s32", True),
        ("tik.vconv", "f322s32r", True),
        ("tik.vconv", "f322f16r", False),
        ("tik.vconv", "f162s16", False),
        ("tik.vec_conv", "f322f16", True),
        ("tik.vec_conv", "s322f16deq", True),
        ("tik.vec_conv", "f162f16", False),
        ("tik.set_atomic_add", "", True),
        ("tik.set_atomic_add", "float32", True),
        ("tik.set_atomic_add", "float16", False),
        ("tik.vconv", "float162float32", True),
        ("tik.vconv", "float322float32", False),
    ],
)
def test_api_check_support(name, dtype, answer):
    assert api_check_support(name, dtype) is answer


@pytest.mark.parametrize(
    "name, mode, answer",
    [
        ("Intrinsic_vconv", "f322s32r", True),
        ("Intrinsic_vconv", "f162f32", True),
        ("Intrinsic_vconv", "f322f16o", True),
        ("Intrinsic_vconv", "s322f16", False),
        ("Intrinsic_vconv", "f322f32r", False),
        ("Intrinsic_vconv", "f162s16", False),
        ("Intrinsic_vconv", "s322f16deq", True),
        ("Intrinsic_vconv", "", True),
        ("Intrinsic_vadd", "float16", True),
        ("Intrinsic_vadd", "f16", True),
        ("Intrinsic_vgather", "", False),
        ("Intrinsic_broadcast_ub_to_cc", "", True),
        ("Intrinsic_nothing", "", False),
    ],
)
def test_intrinsic_check_support(name, mode, answer):
    assert intrinsic_check_support(name, mode) is answer


def test_queries_take_strings():
    for query in (api_check_support, intrinsic_check_support):
        with pytest.raises(TikParamError):
            query(None)
        with pytest.raises(TikParamError):
            query("tik.vadd", None)
