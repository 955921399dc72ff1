"""Put attention operators of this package in the place of MindSpore's."""

from __future__ import annotations

import importlib
import logging
import sys
from types import CodeType, FunctionType
from typing import Any

import mindspore as ms

from flash_attention.backends import registry
from flash_attention.bridge import versions
from flash_attention.call.checks import check_bool
from flash_attention.compat import mindspore_ops
from flash_attention.compat.mindspore_ops import flash_attention_score
from flash_attention.compat.mindspore_ops.inference import decided, say
from flash_attention.compat.mindspore_ops.refused import REFUSED

#: What takes MindSpore's place, by name.
OURS: dict[str, Any] = {**{name: getattr(mindspore_ops, name) for name in mindspore_ops.__all__}, **REFUSED}
_MEANINGS = {
    True: "True: without attn_mask, next_tokens 0 means causal",
    False: "False: without attn_mask, next_tokens 0 means nothing",
    None: "undecided: next_tokens 0 without attn_mask is refused",
}
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
        report (dict): per name, such as "mindspore.ops.flash_attention_score", "replaced", "added", "refused" or why it
            was left alone; under "inference", the meaning of calls that inference and training read in different ways.
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
        say(self, None)
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
        """Return the names of replaced primitives in modules of others."""
        theirs = [before for _, name, before in self._before if name != "flash_attention_score"]
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
        if before is OURS[name]:
            self.report[place] = "left alone: replaced before"
            return
        setattr(module, name, OURS[name])
        self._before.append((module, name, before))
        self.report[place] = "refused" if name in REFUSED else "added" if before is _MISSING else "replaced"
        if isinstance(before, FunctionType) and module.__name__ == _HOME == before.__module__:
            self._code.append((before, before.__code__, before.__defaults__))
            before.__code__, before.__defaults__ = _early_bound.__code__, None


def patch_mindspore(inference: bool | None = None) -> Patch:
    """Make MindSpore's attention operators ours, wherever MindSpore's modules have them.

    They are the functions and primitives of `flash_attention.compat.mindspore_ops`. Others raise NotImplementedError:
    nsa_*, kv_scale_cache, mla, mla_preprocess and the primitives of gradients. If the device has MindSpore's own
    (Atlas A2 and later), they stay.

    Code that imported flash_attention_score before gets ours too. Modules that imported another name before keep
    MindSpore's, so call this first; a warning and the report name such modules. If the device target later becomes one
    that has MindSpore's own, ours hand over to it. A second call changes nothing but the meaning.

    Args:
        inference (bool): the meaning of FlashAttentionScore in padded layouts and sparse_mode 0, without attn_mask and
            with next_tokens 0. True: causal, as MindSpore's inference operators take it. False: every key is visible,
            as its documentation says. Default: None; a global jit config with `infer_boost` on counts as True, and
            without it such a call is refused.

    Returns:
        Patch, with a report, `undo()`, and usable in `with`.

    Raises:
        TypeError: inference is neither a bool nor None.

    Examples:
        >>> from flash_attention import patch_mindspore
        >>> patch = patch_mindspore()
        >>> patch.report["mindspore.ops.flash_attention_score"]
        'replaced'
        >>> patch.undo()
    """
    if inference is not None:
        check_bool("inference", inference)
    patch = Patch()
    if registry.get_backend("fused").unavailable() is None:
        target = ms.get_context("device_target")
        patch.report = {
            f"{module}.{name}": f"left alone: this {target} device has MindSpore's own"
            for module, names in _PUBLIC.items()
            for name in names
        }
        return patch
    say(patch, inference)
    patch.report["inference"] = _MEANINGS[decided()]
    for module_name, names in _PUBLIC.items():
        module = importlib.import_module(module_name)
        for name in names:
            patch._replace(module, name)
    for module_name, module in sorted(sys.modules.items()):
        if module_name.partition(".")[0] == "mindspore" and getattr(module, "__name__", None) == module_name:
            for name in OURS:
                if module_name == _HOME and name == "FlashAttentionScore":
                    continue  # MindSpore's function needs its own primitive, if ours hand over to it
                if name in vars(module) and f"{module_name}.{name}" not in patch.report:
                    patch._replace(module, name)
    late = patch._late()
    for place in late:
        patch.report[place] = "left alone: imported before, call patch_mindspore first"
    if late:
        logger.warning("patch_mindspore: imported before it, these keep MindSpore's: %s", ", ".join(late))
    return patch
