"""The selected SoC and the queries about it: ``tbe.common.platform`` (core.md 1.3 to 1.5)."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..options import default_options
from ..program.dtypes import BITS
from ..program.location import fail, warn
from ..soc import ASCEND_910A, PROFILES, SocProfile, find

DEFAULT_SOC = ASCEND_910A
CORE_TYPES = ("AiCore", "VectorCore")
#: The names that programs use as keys; each constant is its own name.
KEYS = (
    *("SOC_VERSION", "FULL_SOC_VERSION", "SHORT_SOC_VERSION", "AICORE_TYPE", "CORE_NUM", "UB_SIZE", "L2_SIZE"),
    *("L1_SIZE", "CUBE_SIZE", "L0A_SIZE", "L0B_SIZE", "L0C_SIZE", "SMASK_SIZE"),
)

#: APIs of the container that exist besides the instructions.
CONTAINER_APIS = (
    *("Tik", "Dprofile", "Tensor", "Scalar", "ScalarArray", "InputScalar", "for_range", "if_scope", "elif_scope"),
    *("else_scope", "new_stmt_scope", "tik_break", "tik_continue", "tik_return", "BuildCCE", "all", "any", "negate"),
    *("reshape", "reinterpret_cast_to", "set_as", "start_debug", "debug_print"),
)


@dataclass(frozen=True)
class Selection:
    """Hold the arguments of ``set_current_compile_soc_info``."""

    version: str
    soc: SocProfile
    core_type: str
    l1_fusion: bool


_selection: Selection | None = None
_assumed = False


def set_current_compile_soc_info(
    soc_version: str, core_type: str = "AiCore", aicore_num: int | None = None, l1_fusion: bool | None = None
) -> str:
    """Select the SoC for what is built from now on.

    Args:
        soc_version: "Ascend910", "Ascend910A", "Ascend910B" (first generation), "Ascend910ProA", "Ascend910ProB" or
            "Ascend910PremiumA".
        core_type: "AiCore" or "VectorCore".
        aicore_num: cores to use, 1 to the number the SoC has; None: all.
        l1_fusion: accepted, no effect.

    Returns:
        "success", or "error" if an argument is not legal. After an error the selection stays as it was. Programs seldom
        look at the result, so a warning at the program's line says why (in strict mode an error).
    """
    refused = select(soc_version, core_type, aicore_num, l1_fusion)
    if refused is None:
        return "success"
    selected = f"{DEFAULT_SOC.name}, which is assumed" if _selection is None else _selection.version
    message = f"set_current_compile_soc_info: {refused}; the selection stays {selected}"
    if default_options().checks("soc"):
        fail(message)
    warn(message)
    return "error"


def select(soc_version: Any, core_type: Any = "AiCore", aicore_num: Any = None, l1_fusion: Any = None) -> str | None:
    """Select the SoC; returns why an argument is not legal, or None."""
    global _selection
    soc = find(soc_version) if isinstance(soc_version, str) else None
    if soc is None:
        return f"soc_version must be Ascend910 or one of {', '.join(PROFILES)}, got {soc_version!r}"
    if core_type not in CORE_TYPES:
        return f"core_type must be one of {', '.join(CORE_TYPES)}, got {core_type!r}"
    if aicore_num is not None:
        if isinstance(aicore_num, bool) or not isinstance(aicore_num, int) or not 1 <= aicore_num <= soc.core_count:
            return f"aicore_num must be an int in [1, {soc.core_count}], got {aicore_num!r}"
        soc = soc.with_cores(aicore_num)
    _selection = Selection(soc_version, soc, core_type, bool(l1_fusion))
    return None


te_set_version = set_current_compile_soc_info  # the older name


def te_set_l2_mode(mode: int) -> str:
    """Accept a mode without effect: the L2 buffer is an option of a run. Returns "success"."""
    return "success"


def selection() -> Selection | None:
    """Return the selection, for :func:`restore`."""
    return _selection


def restore(selected: Selection | None) -> None:
    """Go back to an earlier selection; None: nothing is selected."""
    global _selection, _assumed
    _selection, _assumed = selected, False


def current_soc() -> SocProfile:
    """Return the profile of the selected SoC. Without a selection it is Ascend 910: a warning, in strict mode an error
    (D2d).
    """
    global _assumed
    if _selection is not None:
        return _selection.soc
    message = (
        "no SoC is selected, for which the documents assume Ascend310; tikemu takes Ascend910 (call "
        "set_current_compile_soc_info or tikemu.install(soc=...) first)"
    )
    if default_options().checks("soc"):
        fail(message)
    if not _assumed:
        _assumed = True
        warn(message)
    return DEFAULT_SOC


def reported_ub_size() -> int:
    """Return the size in bytes that ``get_soc_spec("UB_SIZE")`` returns (D1)."""
    configured = default_options().ub_reported
    return current_soc().ub_size if configured is None else configured


def get_soc_spec(key: str) -> Any:
    """Return a figure of the selected SoC.

    Args:
        key: "SOC_VERSION", "AICORE_TYPE" (str), "CORE_NUM", "UB_SIZE", "L2_SIZE", "L1_SIZE", "L0A_SIZE", "L0B_SIZE",
            "L0C_SIZE", "SMASK_SIZE" (int, bytes), "CUBE_SIZE" (tuple).

    Raises:
        TikParamError: unknown key.
    """
    if not isinstance(key, str) or key not in KEYS:
        fail(f"get_soc_spec knows the keys {', '.join(KEYS)}, got {key!r}")
    soc = current_soc()
    if key == "UB_SIZE":
        return reported_ub_size()
    if key.endswith("_SIZE"):
        return getattr(soc, key.lower())
    version = "Ascend910" if _selection is None else _selection.version
    return {
        "SOC_VERSION": version,
        "FULL_SOC_VERSION": version,
        "SHORT_SOC_VERSION": "Ascend910",
        "AICORE_TYPE": "AiCore" if _selection is None else _selection.core_type,
        "CORE_NUM": soc.core_count,
    }[key]


def api_check_support(intrinsic: str, dtype: str = "") -> bool:
    """Return whether Ascend 910 has a TIK API such as "tik.vadd" for a dtype (D2e).

    The answer comes from the table that the instructions themselves use. ``dtype`` of a conversion may be its short
    form ("f322f16", "f322s32r"). A function of the DSL ("te.lang.cce.vdiv", "tbe.dsl.vdiv") has the dtypes of the
    instruction that it becomes. The DSL itself is out of scope, but programs choose their path by this answer.
    """
    from ..isa import registry

    if not isinstance(intrinsic, str) or not isinstance(dtype, str):
        fail(f"api_check_support takes two strings, got {intrinsic!r} and {dtype!r}")
    prefix, _, name = intrinsic.rpartition(".")
    if prefix in _DSL_PREFIXES:
        name = _DSL_NAMES.get(name, name)
    elif prefix not in ("tik", ""):
        return False
    conversion = _CONVERSION.match(dtype)
    if name in ("vconv", "vec_conv") and conversion is not None:
        source, target, mode = conversion.groups(default="")
        return _converts(source, target, mode)
    spec = registry.specs().get(name)
    if spec is not None:
        return spec.supported(dtype)
    return name in CONTAINER_APIS and (not dtype or dtype in BITS)


_DSL_PREFIXES = ("te.lang.cce", "te.lang.dynamic", "tbe.dsl")
#: Functions of the DSL -> the instruction that decides which dtypes they take, if the names differ.
_DSL_NAMES = {
    **{"vlog": "vln", "vcmpsel": "vsel", "reduce_max": "vmax", "reduce_min": "vmin"},
    **dict.fromkeys(("sum", "reduce_sum"), "vadd"),
    **dict.fromkeys(("cast_to", "round", "floor", "ceil"), "vconv"),
}
_SHORT_DTYPES = {f"{'s' if name.startswith('int') else name[0]}{bits}": name for name, bits in BITS.items()}
_CONVERSION = re.compile(r"(f16|f32|[su](?:8|16|32|64))2(f16|f32|[su](?:8|16|32|64))([rfcazo]|deq)?\Z")
_ROUND_MODES = {
    "": "",
    "r": "round",
    "f": "floor",
    "c": "ceil",
    "a": "away-zero",
    "z": "to-zero",
    "o": "odd",
    "deq": "",
}


def intrinsic_check_support(intrinsic: str, dtype: str = "") -> bool:
    """Return whether Ascend 910 has a hardware intrinsic, such as "Intrinsic_vconv" in mode "f322s32r".

    The API of the same name decides; for ``Intrinsic_vconv`` the mode names both types and the rounding.
    """
    if not isinstance(intrinsic, str) or not isinstance(dtype, str):
        fail(f"intrinsic_check_support takes two strings, got {intrinsic!r} and {dtype!r}")
    name = intrinsic[len("Intrinsic_") :] if intrinsic.startswith("Intrinsic_") else intrinsic
    conversion = _CONVERSION.match(dtype)
    if name == "vconv" and dtype:
        # An intrinsic exists per mode. The API without a mode stands for all modes of a pair.
        if conversion is None:
            return False
        source, target, mode = conversion.groups(default="")
        return _converts(source, target, mode, exact=True)
    name = {
        "broadcast_ub_to_cc": "broadcast_ub_to_l0c",
        "data_move_out2ub": "data_move",
        "data_move_ub2out": "data_move",
        "load2d": "load2dv1",
        "load3d": "load3dv1",
    }.get(name, name)
    return api_check_support(f"tik.{name}", _SHORT_DTYPES.get(dtype, dtype))


def _converts(source: str, target: str, mode: str, exact: bool = False) -> bool:
    from ..isa.convert import PAIRS

    pair = _SHORT_DTYPES[target], _SHORT_DTYPES[source]
    if not mode and not exact:
        return pair in PAIRS
    # Only int32 to float16 takes a scale.
    return _ROUND_MODES[mode] in PAIRS.get(pair, ()) and (mode == "deq") == (pair == ("float16", "int32"))
