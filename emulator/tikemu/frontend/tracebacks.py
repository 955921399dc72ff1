"""Short tracebacks: an error about the user's program shows the lines that led to the emulator, and one inside it.

The message has the line of the program that breaks a rule, so the emulator's own calls tell the user nothing. With
TIKEMU_TRACEBACK=full in the environment tracebacks are whole.
"""

from __future__ import annotations

import functools
import inspect
import os
from typing import Any, Callable, TypeVar

from ..errors import TikError

VARIABLE = "TIKEMU_TRACEBACK"
_NOT_WRAPPED = ("__init__", "__repr__", "__str__", "__len__", "__hash__")  # the user calls none, or it raises nothing
_Owner = TypeVar("_Owner", bound=type)


def shortened(error: TikError) -> TikError:
    """Return the error without its traceback, which then begins at the next ``raise``."""
    return error if os.environ.get(VARIABLE) == "full" else error.with_traceback(None)


def short_traceback(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function, with short tracebacks of TikError."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True  # of pytest
        try:
            return function(*args, **kwargs)
        except TikError as error:
            raise shortened(error)  # noqa: B904 - it is the same error

    return call


def short_operators(owner: _Owner) -> _Owner:
    """Return the class, with short tracebacks of operators, contexts and look-ups of attributes."""
    for name, value in list(vars(owner).items()):
        if name.startswith("__") and inspect.isfunction(value) and name not in _NOT_WRAPPED:
            setattr(owner, name, short_traceback(value))
    return owner
