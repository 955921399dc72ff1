"""Put `flash_attention_score` and `FlashAttentionScore` of this package in the place of MindSpore's."""

from __future__ import annotations

import importlib
import logging
import sys
from types import CodeType, FunctionType
from typing import Any

import mindspore as ms

from flash_attention.backends import registry
from flash_attention.bridge import versions
from flash_attention.compat.mindspore_ops import FlashAttentionScore, flash_attention_score

_OURS: dict[str, Any] = {"flash_attention_score": flash_attention_score, "FlashAttentionScore": FlashAttentionScore}
# The places from which client code imports them. They are put there even if MindSpore has none.
_PUBLIC = {
    "mindspore.ops": ("flash_attention_score",),
    "mindspore.ops.function.nn_func": ("flash_attention_score",),
    "mindspore.ops.operations.nn_ops": ("FlashAttentionScore",),
}
# The module that defines MindSpore's function, and keeps the primitive that the function calls.
_HOME = getattr(versions.flash_attention_score, "__module__", None)
_MISSING = object()
logger = logging.getLogger("flash_attention")


def _early_bound(*arguments, **keywords):
    """Serve as the code of MindSpore's function. It calls the name in that function's module, which is ours while the
    patch lasts.
    """
    return flash_attention_score(*arguments, **keywords)


class Patch:
    """Hold the replacements of one call of `patch_mindspore`. As a context manager it undoes them at the end of the
    block.

    Attributes:
        report (dict): per name, such as "mindspore.ops.flash_attention_score", "replaced", "added" or why it was left
            alone.
    """

    def __init__(self) -> None:
        self.report: dict[str, str] = {}
        self._before: list[tuple[Any, str, Any]] = []
        self._code: list[tuple[FunctionType, CodeType, tuple | None]] = []

    def __repr__(self) -> str:
        lines = (f"\n  {name}: {what}" for name, what in self.report.items())
        return f"{'Patch' if self._before else 'Patch, undone or without effect'}:{''.join(lines)}"

    def undo(self) -> None:
        """Put MindSpore's own functions back. Replacements by another call stay."""
        while self._code:
            function, code, defaults = self._code.pop()
            function.__code__, function.__defaults__ = code, defaults
        while self._before:
            module, name, before = self._before.pop()
            if before is _MISSING:
                delattr(module, name)
            else:
                setattr(module, name, before)

    def __enter__(self) -> Patch:
        return self

    def __exit__(self, *error) -> None:
        self.undo()

    def _late(self) -> list[str]:
        """Return the names under which modules of others have the primitive that was replaced."""
        theirs = [before for _, name, before in self._before if name == "FlashAttentionScore"]
        ours = ("mindspore", __name__.partition(".")[0])
        return [
            f"{module_name}.{name}"
            for module_name, module in sorted(sys.modules.items())
            if module_name.partition(".")[0] not in ours
            for name, held in list(getattr(module, "__dict__", {}).items())
            if held is not _MISSING and any(held is one for one in theirs)
        ]

    def _replace(self, module: Any, name: str) -> None:
        place = f"{module.__name__}.{name}"
        before = vars(module).get(name, _MISSING)
        if before is _OURS[name]:
            self.report[place] = "left alone: replaced before"
            return
        setattr(module, name, _OURS[name])
        self._before.append((module, name, before))
        self.report[place] = "added" if before is _MISSING else "replaced"
        if isinstance(before, FunctionType) and module.__name__ == _HOME == before.__module__:
            self._code.append((before, before.__code__, before.__defaults__))
            before.__code__, before.__defaults__ = _early_bound.__code__, None


def patch_mindspore() -> Patch:
    """Make `mindspore.ops.flash_attention_score` and the primitive `FlashAttentionScore` ours, wherever MindSpore's
    modules have them. If the device has MindSpore's own (Atlas A2 and later), they stay.

    Code that imported the function before gets ours too. Modules that imported the primitive before keep MindSpore's,
    so call this first; a warning and the report name such modules. If the device
    target later becomes one that has MindSpore's own, ours hand over to it. A second call changes nothing.

    Returns:
        Patch, with a report, `undo()`, and usable in `with`.

    Examples:
        >>> from flash_attention import patch_mindspore
        >>> patch = patch_mindspore()
        >>> patch.report["mindspore.ops.flash_attention_score"]
        'replaced'
        >>> patch.undo()
    """
    patch = Patch()
    if registry.get_backend("fused").unavailable() is None:
        target = ms.get_context("device_target")
        patch.report = {
            f"{module}.{name}": f"left alone: this {target} device has MindSpore's own"
            for module, names in _PUBLIC.items()
            for name in names
        }
        return patch
    for module_name, names in _PUBLIC.items():
        module = importlib.import_module(module_name)
        for name in names:
            patch._replace(module, name)
    for module_name, module in sorted(sys.modules.items()):
        if module_name.partition(".")[0] == "mindspore" and getattr(module, "__name__", None) == module_name:
            for name in _OURS:
                if module_name == _HOME and name == "FlashAttentionScore":
                    continue  # MindSpore's function needs its own primitive, if ours hand over to it
                if name in vars(module) and f"{module_name}.{name}" not in patch.report:
                    patch._replace(module, name)
    late = patch._late()
    for place in late:
        patch.report[place] = "left alone: imported before, call patch_mindspore first"
    if late:
        logger.warning("patch_mindspore: imported before it, these keep MindSpore's primitive: %s", ", ".join(late))
    return patch
