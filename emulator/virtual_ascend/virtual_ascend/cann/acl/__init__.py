"""Provide the part of pyACL that runs single operators of an operator package.

Names, arguments and codes are from CANN's reference of pyACL. The modules ``rt`` and ``op`` load when they are used: a
program that asks for the chip's name starts no card.
"""

import importlib
import itertools
import os
from types import ModuleType
from typing import Any

#: Codes of AscendCL.
SUCCESS, INVALID_PARAMETER, OPERATOR_NOT_FOUND, OUT_OF_MEMORY = 0, 100000, 100024, 200000
COMPILE_FAILED, DRIVER_ERROR = 500002, 507899

_errors: list[str] = []
_handles: dict[int, Any] = {}
_numbers = itertools.count(1)


def __getattr__(name: str) -> ModuleType:
    if name in ("rt", "op"):
        return importlib.import_module(f"acl.{name}")
    raise AttributeError(f"module 'acl' has no attribute {name!r}: the virtual card has this part of pyACL only")


def fail(code: int, text: str) -> int:
    """Keep the text for ``get_recent_err_msg``; returns the code."""
    _errors.append(text)
    return code


def keep(thing: Any) -> int:
    """Keep an object, and return a handle. pyACL's functions give handles in the place of pointers."""
    number = next(_numbers)
    _handles[number] = thing
    return number


def of(handle: int) -> Any:
    """Return the object that a handle stands for."""
    return _handles[handle]


def drop(handle: int) -> int:
    """Forget the object that a handle stands for."""
    return SUCCESS if _handles.pop(handle, None) is not None else fail(INVALID_PARAMETER, f"no handle {handle}")


def init(config_path: str = "") -> int:
    """Stand in for aclInit."""
    importlib.import_module("acl.libraries").load()
    return SUCCESS


def finalize() -> int:
    """Stand in for aclFinalize."""
    return SUCCESS


def get_soc_name() -> str:
    """Stand in for aclrtGetSocName."""
    return os.environ["VIRTUAL_ASCEND_SOC"]


def get_recent_err_msg() -> str:
    """Stand in for aclGetRecentErrMsg: what went wrong since the last call."""
    text = "\n".join(_errors)
    _errors.clear()
    return text


def create_tensor_desc(data_type: int, dims: list, data_format: int) -> int:
    """Stand in for aclCreateTensorDesc."""
    return keep({"dtype": data_type, "ori_shape": list(dims), "shape": list(dims), "format": data_format})


def set_tensor_shape(desc: int, dims: list) -> int:
    """Stand in for aclSetTensorShape: of the tensor as it is stored."""
    of(desc)["shape"] = list(dims)
    return SUCCESS


def set_tensor_format(desc: int, data_format: int) -> int:
    """Stand in for aclSetTensorFormat: of the tensor as it is stored."""
    of(desc)["format"] = data_format
    return SUCCESS


def set_tensor_desc_name(desc: int, name: str) -> None:
    """Stand in for aclSetTensorDescName. Operators are found by the order of their tensors."""


def create_data_buffer(data: int, size: int) -> int:
    """Stand in for aclCreateDataBuffer."""
    return keep((data, size))


destroy_tensor_desc = destroy_data_buffer = drop
