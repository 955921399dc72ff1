"""Names of the TBE DSL (``te.lang.cce``, ``tbe.dsl``, ``te.tvm``): they can be imported, but not used.

Programs import them beside TIK, often without using them, so the import gives a TikWarning and only a use raises
TikUnsupportedError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NoReturn

from ..errors import TikUnsupportedError
from ..program.location import fail, warn

_warned = False


def announce(module: str) -> None:
    """Say once that a module of the DSL was imported."""
    global _warned
    if not _warned:
        _warned = True
        warn(
            f"{module} belongs to the TBE DSL, which is out of tikemu's scope: it runs TIK programs; using "
            "a name of the DSL raises TikUnsupportedError"
        )


def forget() -> None:
    """Warn again at the next import."""
    global _warned
    _warned = False


class DslName:
    """A name of the TBE DSL. Everything but ``isinstance`` and further attributes raises TikUnsupportedError."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> DslName:
        if name.startswith("__"):
            raise AttributeError(name)
        return DslName(f"{self._name}.{name}")

    def _refuse(self, *_args: Any, **_kwargs: Any) -> NoReturn:
        fail(
            f"{self._name} belongs to the TBE DSL, which is out of tikemu's scope: it runs TIK programs (tbe.tik)",
            TikUnsupportedError,
        )

    __call__ = __enter__ = __bool__ = __iter__ = __getitem__ = __len__ = _refuse

    def __exit__(self, *exception: Any) -> Literal[False]:
        return False

    def __instancecheck__(self, instance: Any) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<{self._name}: TBE DSL, out of scope>"


class Placeholder:
    """``tvm.placeholder``: the description of an operand; programs that branch into TIK make them beforehand."""

    def __init__(
        self, shape: Sequence[int], dtype: str = "float32", name: str = "placeholder", **_options: Any
    ) -> None:
        self.shape, self.dtype, self.name = tuple(shape), dtype, name


__all__ = ["DslName", "Placeholder", "announce", "forget"]
