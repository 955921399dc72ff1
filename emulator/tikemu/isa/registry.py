"""The table of instructions: what exists, and what is refused by name."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from .spec import InstructionSpec

_specs: dict[str, InstructionSpec] = {}
_unsupported: dict[str, str] = {}
_loaded = False


def add(spec: InstructionSpec) -> None:
    """Enter one row. Raises ValueError if the name is taken."""
    if spec.name in _specs or spec.name in _unsupported:
        raise ValueError(f"instruction {spec.name!r} is defined twice")
    _specs[spec.name] = spec


def refuse(names: Iterable[str], reason: str) -> None:
    """Enter names that programs may use but that have no meaning here, with the reason."""
    for name in names:
        if name in _specs or name in _unsupported:
            raise ValueError(f"instruction {name!r} is defined twice")
        _unsupported[name] = reason


def specs() -> Mapping[str, InstructionSpec]:
    """All instructions by name."""
    _load()
    return MappingProxyType(_specs)


def unsupported() -> Mapping[str, str]:
    """Names that are refused, with the reason."""
    _load()
    return MappingProxyType(_unsupported)


def _load() -> None:
    """Import every module of this package once: each enters its rows."""
    global _loaded
    if not _loaded:
        _loaded = True
        package = importlib.import_module(__package__)
        for module in pkgutil.iter_modules(package.__path__):
            importlib.import_module(f"{__package__}.{module.name}")
