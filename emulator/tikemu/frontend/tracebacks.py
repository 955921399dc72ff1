"""Short tracebacks: an error about the user's program shows the lines that led to the emulator, and one inside it.

The message has the line of the program that breaks a rule, so the emulator's own calls tell the user nothing. With
TIKEMU_TRACEBACK=full in the environment tracebacks are whole.
"""

from __future__ import annotations

import functools
import inspect
from typing import Any, Callable, TypeVar, cast

from .. import environment
from ..errors import TikEnvironmentError, TikError

_NOT_WRAPPED = ("__init__", "__repr__", "__str__", "__len__", "__hash__")  # the user calls none, or it raises nothing
_Owner = TypeVar("_Owner", bound=type)
_Function = TypeVar("_Function", bound=Callable[..., Any])


def shortened(error: TikError) -> TikError:
    """Return the error without its traceback, which then begins at the next ``raise``."""
    if isinstance(error, TikEnvironmentError):
        return error.with_traceback(None)  # perhaps about that variable
    return error if environment.full_tracebacks() else error.with_traceback(None)


def short_traceback(function: _Function) -> _Function:
    """Return the function, with short tracebacks of TikError."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # of pytest
        try:
            return function(*args, **kwargs)
        except TikError as error:
            raise shortened(error)  # noqa: B904 - it is the same error

    return cast(_Function, call)


def short_operators(owner: _Owner) -> _Owner:
    """Return the class, with short tracebacks of operators, contexts and look-ups of attributes."""
    for name, value in list(vars(owner).items()):
        if name.startswith("__") and inspect.isfunction(value) and name not in _NOT_WRAPPED:
            setattr(owner, name, short_traceback(value))
    return owner
