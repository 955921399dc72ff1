"""``error_manager_vector`` and ``error_manager_util``: functions that raise RuntimeError with a formatted text.

There are dozens of ``raise_err_...`` functions that differ in their texts only; each name exists and puts all its
arguments into the message.
"""

from __future__ import annotations

from typing import Any, Callable, NoReturn

from ..program.location import here


def violation(message: str) -> NoReturn:
    """Return a RuntimeError at the user's line."""
    raise RuntimeError(f"{message}\n  at {here()}")


def raiser(name: str) -> Callable[..., NoReturn]:
    """Return the function ``name``. Raises AttributeError for names that raise nothing."""
    if not name.startswith("raise_"):
        raise AttributeError(f"module 'error_manager' has no attribute {name!r}")

    def raise_error(*args: Any, **kwargs: Any) -> NoReturn:
        text = ", ".join([*(str(arg) for arg in args), *(f"{key}={value}" for key, value in kwargs.items())])
        violation(f"{name[len('raise_') :]}: {text}")

    raise_error.__name__ = name
    return raise_error


def get_error_message(args: dict[str, Any]) -> str:
    """Return the text of an error described by a dict."""
    return ", ".join(f"{key}: {value}" for key, value in args.items())


def raise_runtime_error(args: dict[str, Any]) -> NoReturn:
    """Raise a RuntimeError with the dict and its text."""
    raise RuntimeError(args, get_error_message(args))
