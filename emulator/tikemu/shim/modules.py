"""List the modules that the shim offers, and their contents."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import ModuleType
from typing import Any, Callable, Literal

from .. import tik
from ..frontend import platform_info
from ..program.dtypes import BITS
from . import context, error_manager, out_of_scope, para_check, registration, shape_util

Namespace = dict[str, Any]

#: Roots of the TBE DSL: these modules and everything below them that the catalogue does not name.
DSL_ROOTS = ("te.lang", "te.tvm", "tbe.dsl", "tbe.tvm", "tbe.lang", "topi", "impl.matmul_vector")


def _public(module: ModuleType) -> Namespace:
    return {name: getattr(module, name) for name in module.__all__}


def get_bit_len(dtype: str) -> int:
    """Return the number of bits per element of a type."""
    if dtype not in BITS:
        raise RuntimeError(f"unknown dtype {dtype!r}")
    return BITS[dtype]


def get_block_size() -> int:
    """Return the size of a block in bytes."""
    return 32


def _cce_params() -> Namespace:
    """Return the names of scopes and the sizes of the Cube in elements."""
    scopes = {name: value for name, value in _public(tik).items() if name.startswith("scope_")}
    return {
        **{"BLOCK_IN": 16, "BLOCK_OUT": 16, "BLOCK_REDUCE": 16, "BLOCK_REDUCE_INT8": 32, "BLOCK_VECTOR": 1},
        **{"C0_SIZE": 16, "VECTOR_INST_BLOCK_WIDTH": 256, "VECTOR_INST_BLOCK_NUM": 8},
        **scopes,
    }


def _platform() -> Namespace:
    keys = {key: key for key in platform_info.KEYS}
    versions = {f"ASCEND_{name}": f"Ascend{name}" for name in ("310", "910", "310P", "910B", "SD")}
    names = (
        *("api_check_support", "get_soc_spec", "intrinsic_check_support", "set_current_compile_soc_info"),
        *("te_set_l2_mode", "te_set_version"),
    )
    queries = {name: getattr(platform_info, name) for name in names}
    sizes = {"get_bit_len": get_bit_len, "get_block_size": get_block_size}
    return {**keys, **versions, **queries, **sizes, **_cce_params()}


class FusionManager:
    """``fusion_manager``: its decorator marks compute functions of the DSL; anything else belongs to the DSL."""

    @staticmethod
    def register(_op_type: str) -> Callable[[Any], Any]:
        return lambda function: function

    def __getattr__(self, name: str) -> Any:
        return out_of_scope.DslName(f"fusion_manager.{name}")


class BuildConfig:
    """``build_config``: a context of build switches; nothing in the emulator depends on them."""

    def __init__(self, **switches: Any) -> None:
        self.switches = switches

    def __call__(self, **switches: Any) -> BuildConfig:
        return BuildConfig(**switches)

    def __enter__(self) -> BuildConfig:
        return self

    def __exit__(self, *exception: Any) -> Literal[False]:
        return False


def _error_util() -> Namespace:
    return {
        "get_error_message": error_manager.get_error_message,
        "raise_runtime_error": error_manager.raise_runtime_error,
        "__getattr__": error_manager.raiser,
    }


def _adapter() -> Namespace:
    """Return the contents of ``impl.util.platform_adapter``: everything under one roof."""
    parts: Namespace = {"build_config": BuildConfig()}
    for name, source in (
        ("tik", "tbe.tik"),
        ("tbe_platform", "tbe.common.platform"),
        ("para_check", "tbe.common.utils.para_check"),
        ("shape_util", "tbe.common.utils.shape_util"),
        ("tbe_context", "tbe.common.context"),
        ("tbe_register", "tbe.common.register"),
        ("error_manager_vector", "tbe.common.utils.errormgr.error_manager_vector"),
        ("error_manager_cube", "tbe.common.utils.errormgr.error_manager_cube"),
    ):
        parts[name] = importlib.import_module(source)
    parts["register_operator"] = registration.register_operator
    parts["register_operator_compute"] = registration.register_op_compute
    for name in ("tbe", "tvm", "classify", "OpImplMode", "OpPatternMode", "operation", "tbe_build"):
        parts[name] = out_of_scope.DslName(f"impl.util.platform_adapter.{name}")
    return parts


_IMPL_CONSTANTS = {
    **{f"DATA_TYPE_{name.upper()}": name for name in BITS},
    **{"BLOCK_SIZE": 32, "VECTOR_BYTE_SIZE": 256, "MAX_REPEAT_TIMES": 255, "MASK64": 64, "MASK128": 128},
    **{"REPEAT_STRIDE_EIGHT": 8, "BLOCK_STRIDE_ONE": 1, "STRIDE_ZERO": 0, "STRIDE_ONE": 1, "REPEAT_TIME_ONCE": 1},
    **{"DEFAULT_NBURST": 1, "DEFAULT_BURST_LEN": 1, "SID": 0},
    **{"DATA_SIZE_ONE": 1, "DATA_SIZE_TWO": 2, "DATA_SIZE_FOUR": 4, "DATA_SIZE_EIGHT": 8},
    **{"SIZE_ONE": 1, "SIZE_TWO": 2, "SIZE_FOUR": 4, "SIZE_EIGHT": 8, "SIZE_SIXTEEN": 16},
}


def _common_util() -> Namespace:
    return {
        "get_data_size": lambda dtype: get_bit_len(dtype) // 8,
        "get_block_element": lambda dtype: 256 // get_bit_len(dtype),
        "ceil_div": _ceil_div,
        "ceil": _ceil_div,
        "align": lambda value, factor: _ceil_div(value, factor) * factor,
    }


def _ceil_div(value: int, factor: int) -> int:
    return -(-value // factor)


def _shapes_and_checks() -> Namespace:
    return {**_public(para_check), **_public(shape_util)}


#: Contents of the modules, with their full names.
_CONTENTS: tuple[tuple[Callable[[], Namespace], str], ...] = (
    (dict, "tbe tbe.common tbe.tvm.topi.cce te te.utils topi.cce impl impl.util"),
    (lambda: _public(tik), "tbe.tik tbe.tik.api te.tik te.tik.api"),
    (
        _platform,
        "tbe.common.platform tbe.common.platform.platform_info te.platform te.platform.platform_info "
        "te.platform.cce_conf",
    ),
    (_cce_params, "te.platform.cce_params"),
    (lambda: _public(para_check), "tbe.common.utils.para_check te.utils.para_check"),
    (lambda: _public(shape_util), "tbe.common.utils.shape_util te.utils.shape_util"),
    (_shapes_and_checks, "tbe.common.utils tbe.common.utils.op_util te.utils.op_utils te.utils.check_para"),
    (
        lambda: {
            **_shapes_and_checks(),
            "VERSION_MINI": "mini",
            "VERSION_CLOUD": "cloud",
            "get_product_version": lambda: "cloud",
        },
        "tbe.tvm.topi.cce.util topi.cce.util",
    ),
    (
        _error_util,
        "tbe.common.utils.errormgr tbe.common.utils.errormgr.error_manager_util te.utils.error_manager "
        "te.utils.error_manager.error_manager_util",
    ),
    (
        lambda: {"__getattr__": error_manager.raiser},
        "tbe.common.utils.errormgr.error_manager_vector tbe.common.utils.errormgr.error_manager_cube "
        "te.utils.error_manager.error_manager_vector te.utils.error_manager.error_manager_cube",
    ),
    (lambda: _public(registration), "tbe.common.register tbe.common.register.register_api"),
    (lambda: _public(context), "tbe.common.context tbe.common.context.op_context te.platform.operation"),
    (
        lambda: {
            "build_config": BuildConfig(),
            "get_current_build_config": lambda key=None: None,
            "set_current_build_config": lambda key, value: None,
        },
        "tbe.common.buildcfg te.platform.cce_build",
    ),
    (lambda: {"fusion_manager": FusionManager()}, "te.platform.fusion_manager"),
    (lambda: dict(_IMPL_CONSTANTS), "impl.constant_util"),
    (_common_util, "impl.common_util impl.util.util_common"),
    (_adapter, "impl.util.platform_adapter"),
    (  # descriptions of formats for the graph engine, which no kernel needs
        lambda: {
            name: out_of_scope.DslName(f"impl.util.util_select_op_base.{name}")
            for name in ("gen_param", "get_dynamic_param_in_json")
        },
        "impl.util.util_select_op_base",
    ),
)
#: Contents of every module, by full name.
CATALOGUE = {name: contents for contents, names in _CONTENTS for name in names.split()}


#: Contents of modules that another package offers through the shim, by full name. They come first.
ADDED: dict[str, Mapping[str, Any]] = {}


def is_offered(name: str) -> bool:
    """Return whether the shim has a module of this name."""
    return name in ADDED or name in CATALOGUE or is_dsl(name)


def is_dsl(name: str) -> bool:
    """Return whether a module belongs to the TBE DSL."""
    return name not in CATALOGUE and any(name == root or name.startswith(root + ".") for root in DSL_ROOTS)


def namespace_of(name: str) -> Namespace:
    """Return the contents of a module of the shim."""
    if name in ADDED:
        return dict(ADDED[name])
    if not is_dsl(name):
        return CATALOGUE[name]()
    if not any(other.startswith(name + ".") for other in CATALOGUE):
        out_of_scope.announce(name)
    # A parent of a module in scope (topi.cce.util) is out of scope itself, but announces it only if one of its own
    # names is looked up.
    contents: Namespace = {"placeholder": out_of_scope.Placeholder} if name in ("te.tvm", "tbe.tvm") else {}
    return {"__getattr__": lambda attribute: _dsl_name(name, attribute), **contents}


def _dsl_name(module: str, attribute: str) -> out_of_scope.DslName:
    if attribute.startswith("__"):
        raise AttributeError(attribute)
    out_of_scope.announce(module)
    return out_of_scope.DslName(f"{module}.{attribute}")


def submodules(name: str) -> list[str]:
    """Return the names of the modules directly below one."""
    prefix = name + "."
    return sorted(
        {other[len(prefix) :].split(".")[0] for other in (*CATALOGUE, *DSL_ROOTS) if other.startswith(prefix)}
    )
