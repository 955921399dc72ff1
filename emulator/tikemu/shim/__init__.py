"""Make ``tbe``, ``te`` and the modules that TIK programs import from them importable without CANN."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

from ..errors import TikUnknownApiError, did_you_mean
from ..frontend import platform_info
from ..program.location import fail
from . import modules, out_of_scope

#: Packages that only CANN has; ``impl`` and ``topi`` are names that a project of the user may have too.
_CANN_PACKAGES = ("tbe", "te")


class _Loader(importlib.abc.Loader):
    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        name = module.__name__
        module.__doc__ = f"{name}, provided by tikemu."
        contents = modules.namespace_of(name)
        module.__dict__.update(contents)
        if "__getattr__" not in contents:
            vars(module)["__getattr__"] = lambda attribute: _import_submodule(name, attribute)


def _import_submodule(package: str, attribute: str) -> ModuleType:
    """Import a submodule when an attribute asks for it: ``te.platform`` after a bare ``import te``."""
    if attribute not in modules.submodules(package):
        known = [name for name in modules.namespace_of(package) if not name.startswith("_")]
        hint = did_you_mean(attribute, known)
        message = f"module {package!r} (provided by tikemu) has no attribute {attribute!r}{hint}"
        if attribute.startswith("_"):
            raise AttributeError(message)  # Python's own
        fail(message, TikUnknownApiError)
    return importlib.import_module(f"{package}.{attribute}")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, packages: Sequence[str] | None = None) -> None:
        self._packages = packages

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        wanted = self._packages is None or fullname.split(".")[0] in self._packages
        if not wanted or not modules.is_offered(fullname):
            return None
        return ModuleSpec(fullname, _LOADER, is_package=True, origin="tikemu")


_LOADER = _Loader()
_FRONT, _BACK = _Finder(_CANN_PACKAGES), _Finder()
_replaced: dict[str, ModuleType] = {}


def _is_ours(module: Any) -> bool:
    return getattr(getattr(module, "__spec__", None), "loader", None) is _LOADER


def _cann_present() -> bool:
    for package in _CANN_PACKAGES:
        if package in sys.modules:
            if not _is_ours(sys.modules[package]):
                return True
        else:
            spec = importlib.util.find_spec(package)
            if spec is not None and spec.loader is not _LOADER:
                return True
    return False


def install(soc: str | None = None, force: bool = False) -> bool:
    """Make ``tbe``, ``te``, ``impl.util.platform_adapter`` and ``topi.cce.util`` importable.

    Args:
        soc: select this SoC, as ``set_current_compile_soc_info`` does. Default: none is selected.
        force: hide a CANN that is installed.

    Returns:
        True if the emulator's modules are in place; False if a real CANN is installed and was left alone.

    Raises:
        TikParamError: unknown ``soc``.
    """
    refused = None if soc is None else platform_info.select(soc)
    if refused is not None:
        fail(refused.replace("soc_version", "soc"))
    present = _cann_present()
    if present and not force:
        return False
    if _BACK not in sys.meta_path:
        sys.meta_path.append(_BACK)
    if present:
        if _FRONT not in sys.meta_path:
            sys.meta_path.insert(0, _FRONT)
        for name in [name for name in sys.modules if name.split(".")[0] in _CANN_PACKAGES]:
            if not _is_ours(sys.modules[name]):
                _replaced[name] = sys.modules.pop(name)
    return True


def complete(extra: Mapping[str, Mapping[str, Any]]) -> None:
    """Serve modules that the installed ``te`` and ``tbe`` lack: the emulator's modules, and ``extra``.

    This is for a stand-in for CANN that has such packages. :func:`uninstall` undoes it.

    Args:
        extra: contents of further modules, by full name.
    """
    modules.ADDED.update(extra)
    if _BACK not in sys.meta_path:
        sys.meta_path.append(_BACK)


def uninstall() -> None:
    """Undo :func:`install`: the modules are gone, a hidden CANN is back, no SoC is selected."""
    for finder in (_FRONT, _BACK):
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)
    for name, module in list(sys.modules.items()):
        if _is_ours(module):
            del sys.modules[name]
            package, _, attribute = name.rpartition(".")
            if attribute and vars(sys.modules.get(package, module)).get(attribute) is module:
                delattr(sys.modules[package], attribute)
    sys.modules.update(_replaced)
    _replaced.clear()
    modules.ADDED.clear()
    platform_info.restore(None)
    out_of_scope.forget()


__all__ = ["complete", "install", "uninstall"]
