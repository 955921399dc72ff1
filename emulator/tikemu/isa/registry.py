"""The table of instructions: what exists, and what is refused by name.

An entry reads::

    @instruction("vec_abs", params=(Mask("mask"), Tensor("dst"), Tensor("src"), repeat(), ...),
                 dtypes=("float16", "float32"), pipe="V", cost="simple")
    def vec_abs(call, a):
        ...
        return call.operation(...)

``a`` holds the resolved arguments by name: operands, numbers, masks; ``call`` complains, and knows SoC and core.
"""

from __future__ import annotations

import copyreg
import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, Callable

from .params import Param, Tensor
from .spec import InstructionSpec

_specs: dict[str, InstructionSpec] = {}
_unsupported: dict[str, str] = {}
_loaded = False


def add(spec: InstructionSpec) -> None:
    """Enter one row. Raises ValueError if the name is taken."""
    if spec.name in _specs or spec.name in _unsupported:
        raise ValueError(f"instruction {spec.name!r} is defined twice")
    _specs[spec.name] = spec


def instruction(*names: str, params: Sequence[Param], **fields: Any) -> Callable[[Any], Any]:
    """Enter a function into the instruction table under one or several names. See InstructionSpec for ``fields``.

    For ``kind="scalar"`` the decorated function is ``evaluate``; otherwise it is the binder.
    """

    def enter(function: Any) -> Any:
        slot = "evaluate" if fields.get("kind") == "scalar" else "binder"
        doc = fields.pop("doc", None) or (inspect.getdoc(function) or "").split("\n")[0]
        tensors = [param for param in params if isinstance(param, Tensor)]
        typed = tuple(tensor.name for tensor in tensors if tensor.dtypes is None and tensor.like is None)
        given = {"binder": None, slot: function, "doc": doc, "typed": typed, **fields}
        for name in names:
            add(InstructionSpec(name, tuple(params), **given))
        return function

    return enter


def refuse(names: Iterable[str], reason: str) -> None:
    """Enter names that programs may use but that have no meaning here, with the reason."""
    for name in names:
        if name in _specs or name in _unsupported:
            raise ValueError(f"instruction {name!r} is defined twice")
        _unsupported[name] = reason


def specs() -> Mapping[str, InstructionSpec]:
    """Return all instructions by name."""
    _load()
    return MappingProxyType(_specs)


def named(name: str) -> InstructionSpec:
    """Return the instruction of this name."""
    return specs()[name]


# One object each, also in a program that comes from another process.
copyreg.pickle(InstructionSpec, lambda spec: (named, (spec.name,)))


def unsupported() -> Mapping[str, str]:
    """Return the names that are refused, with the reason."""
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
