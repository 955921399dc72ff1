"""Call that do not fit a signature: errors with the user's line and the nearest known name."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping
from typing import Any, Callable

from ..errors import TikCallError, TikError, did_you_mean
from ..program.location import here
from .tracebacks import shortened


def checked_call(function: Callable[..., Any], aliases: Mapping[str, str] | None = None) -> Callable[..., Any]:
    """Return a method whose call raises TikCallError where the arguments do not fit its signature.

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
            # With another frame behind this one it was raised inside the function.
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
    label = function.__qualname__.replace("Tik.", "").replace(".__init__", "")
    positional = [entry.name for entry in parameters if entry.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD]
    required = [name for name in positional if _of(parameters, name).default is inspect.Parameter.empty]
    takes = f"{label}({', '.join(map(_shown, parameters))})"
    unknown = [name for name in kwargs if name not in positional]
    twice = [name for name in positional[:count] if name in kwargs]
    missing = [name for name in required if name not in positional[:count] and name not in kwargs]
    if unknown:
        return f"{label} has no argument {unknown[0]!r}{did_you_mean(unknown[0], positional)}: {takes}"
    if twice:
        return f"{label} got {twice[0]!r} by position and by keyword: {takes}"
    if missing:
        return f"{label} lacks {_listed(missing)}: {takes}"
    return f"{label} takes at most {len(positional)} positional arguments, got {count}: {takes}"


def _of(parameters: list[inspect.Parameter], name: str) -> inspect.Parameter:
    return next(entry for entry in parameters if entry.name == name)


def _shown(parameter: inspect.Parameter) -> str:
    """Return a parameter as a reader writes it, without its type."""
    return str(parameter.replace(annotation=inspect.Parameter.empty))


def _listed(names: list[str]) -> str:
    quoted = [repr(name) for name in names]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"
