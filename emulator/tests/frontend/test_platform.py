"""Queries about the SoC (core.md 1.3 to 1.5)."""

import pytest
import tikemu
from tikemu import Options
from tikemu.errors import TikParamError, TikWarning
from tikemu.frontend import platform_info
from tikemu.frontend.platform_info import (
    api_check_support,
    get_soc_spec,
    intrinsic_check_support,
    set_current_compile_soc_info,
    te_set_version,
)


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
    message = "set_current_compile_soc_info: .* got .*; the selection stays Ascend910ProB"
    with pytest.warns(TikWarning, match=message) as told:
        assert set_current_compile_soc_info(*arguments) == "error"
    assert told[0].filename == __file__
    assert get_soc_spec("SOC_VERSION") == "Ascend910ProB"


def test_illegal_selections_are_errors_in_strict_mode():
    message = "soc_version must be Ascend910 or one of .*, got 'Ascend310B1'"
    with tikemu.use_options(Options(strict=True)), pytest.raises(TikParamError, match=message):
        set_current_compile_soc_info("Ascend310B1")


def test_cores_and_core_type():
    assert te_set_version("Ascend910", aicore_num=8, l1_fusion=True) == "success"
    assert get_soc_spec("CORE_NUM") == 8 and get_soc_spec("AICORE_TYPE") == "AiCore"
    assert set_current_compile_soc_info("Ascend910", core_type="VectorCore") == "success"
    assert get_soc_spec("CORE_NUM") == 32 and get_soc_spec("AICORE_TYPE") == "VectorCore"


def test_figures():
    set_current_compile_soc_info("Ascend910")
    sizes = {"UB": 262144, "L2": 33554432, "L1": 1048576, "L0A": 65536, "L0B": 65536, "L0C": 262144, "SMASK": 0}
    assert {name: get_soc_spec(f"{name}_SIZE") for name in sizes} == sizes
    others = {"CUBE_SIZE": (16, 16, 16), "AICORE_TYPE": "AiCore", "CORE_NUM": 32, "SOC_VERSION": "Ascend910"}
    assert {name: get_soc_spec(name) for name in others} == others
    assert get_soc_spec("SHORT_SOC_VERSION") == "Ascend910"


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
    assert platform_info.selection() is None


# Names, the dtypes that they take, and the dtypes that they refuse.
API_SUPPORT = """
tik.vadd: - float16 int32 / int16
vadd tik.data_move tik.for_range: - /
tik.vec_and: uint16 / float16
tik.vcmax: float16 / float32
tik.load2dv1: float16 /
tik.Tensor: float32 /
tik.data_move_pad: / - float16
tik.vcopy tik.vgather tik.load2dv2 tik.load3dv2 tik.v4dtrans tik.vreduce tik.vcmpvs_gt tik.no_such_thing: / -
te.lang.cce.vadd: float32 / int16
te.lang.cce.vdiv tbe.dsl.vlog te.lang.cce.reduce_max: float32 /
te.lang.cce.vand: / float16
te.lang.cce.cast_to: f322f16 / f162s16
te.lang.cce.nothing topi.vadd: / float32
tik.vconv: f322f16 f322s32 f322s32r float162float32 / f322f16r f162s16 float322float32
tik.vec_conv: f322f16 s322f16deq / f162f16
tik.set_atomic_add: - float32 / float16
"""
INTRINSIC_SUPPORT = """
Intrinsic_vconv: - f322s32r f162f32 f322f16o s322f16deq / s322f16 f322f32r f162s16
Intrinsic_vadd: float16 f16 /
Intrinsic_broadcast_ub_to_cc: - /
Intrinsic_vgather Intrinsic_nothing: / -
"""


def answers(table):
    """Return the name, dtype and answer for every pair of a table. - is the empty dtype."""
    result = []
    for line in table.strip().splitlines():
        names, sides = line.split(":")
        for taken, dtypes in zip((True, False), sides.split("/")):
            result += [(name, dtype.strip("-"), taken) for name in names.split() for dtype in dtypes.split()]
    return result


@pytest.mark.parametrize("name, dtype, answer", [*answers(API_SUPPORT), ("", "", False)])
def test_api_check_support(name, dtype, answer):
    assert api_check_support(name, dtype) is answer


@pytest.mark.parametrize("name, mode, answer", answers(INTRINSIC_SUPPORT))
def test_intrinsic_check_support(name, mode, answer):
    assert intrinsic_check_support(name, mode) is answer


def test_queries_take_strings():
    for query in (api_check_support, intrinsic_check_support):
        with pytest.raises(TikParamError):
            query(None)
        with pytest.raises(TikParamError):
            query("tik.vadd", None)
