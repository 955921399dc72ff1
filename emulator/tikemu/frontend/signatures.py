"""Calls that do not fit a signature: errors with the user's line and the nearest known name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Callable

from ..errors import TikCallError, TikError, did_you_mean
from ..program.location import here
from .tracebacks import shortened


def checked_call(function: Callable[..., Any], aliases: Mapping[str, str] | None = None) -> Callable[..., Any]:
    """Return a method that raises TikCallError if the arguments do not fit its signature.

    Args:
        function: the method.
        aliases: other keywords that programs use for its parameters.
    """
    aliases = aliases or {}

    @functools.wraps(function)
    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # of pytest
        if aliases and kwargs:
            kwargs = {aliases.get(name, name): value for name, value in kwargs.items()}
        try:
            return function(self, *args, **kwargs)
        except TikError as error:
            raise shortened(error)  # noqa: B904 - it is the same error
        except TypeError as error:
            # A traceback with a further frame comes from inside the function.
            if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                raise
        raise TikCallError(_complaint(function, len(args), kwargs), here())

    return call


def checked_methods(owner: type, names: Iterable[str]) -> None:
    """Replace methods of a class by their checked forms."""
    for name in names:
        setattr(owner, name, checked_call(getattr(owner, name)))


def _complaint(function: Callable[..., Any], count: int, kwargs: Mapping[str, Any]) -> str:
    """Return the fault of a call of ``count`` positional arguments and these keywords."""
    parameters = list(inspect.signature(function).parameters.values())[1:]  # without self
    label = function.__qualname__.replace("Tik.", "").replace("Definitions.", "").replace(".__init__", "")
    named = [entry for entry in parameters if entry.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    positional = [entry.name for entry in named]
    required = [entry.name for entry in named if entry.default is inspect.Parameter.empty]
    takes = f"{label}({', '.join(str(entry.replace(annotation=inspect.Parameter.empty)) for entry in parameters)})"
    unknown = [name for name in kwargs if name not in positional]
    twice = [name for name in positional[:count] if name in kwargs]
    missing = [name for name in required if name not in positional[:count] and name not in kwargs]
    if unknown:
        return f"{label} has no argument {unknown[0]!r}{did_you_mean(unknown[0], positional)}: {takes}"
    if twice:
        return f"{label} got {twice[0]!r} by position and by keyword: {takes}"
    if missing:
        *others, last = map(repr, missing)
        return f"{label} lacks {', '.join(others)}{' and ' if others else ''}{last}: {takes}"
    return f"{label} takes at most {len(positional)} positional arguments, got {count}: {takes}"
