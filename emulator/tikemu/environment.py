"""Read the environment variables of tikemu. A value without meaning is an error, and never taken for another one."""

from __future__ import annotations

import os
import re

from .errors import TikEnvironmentError

NATIVE, TRACEBACK, PROCESSES = "TIKEMU_NATIVE", "TIKEMU_TRACEBACK", "TIKEMU_PROCESSES"


def native() -> str:
    """Return how the compiled helper is used: "" as it is, "0" not at all, "generic" its portable code."""
    mode = _choice(NATIVE, ("0", "1", "generic"))
    return "" if mode == "1" else mode


def full_tracebacks() -> bool:
    """Return whether tracebacks show the emulator's own calls."""
    return _choice(TRACEBACK, ("full", "short")) == "full"


def processes() -> int:
    """Return the number of processes that execute blocks."""
    text = _text(PROCESSES)
    if text and not re.fullmatch("0*[1-9][0-9]{0,8}", text):
        raise TikEnvironmentError(
            f"the environment variable {PROCESSES} must be a number of processes, at least 1, got {text!r}"
        )
    return int(text or 1)


def check() -> None:
    """Check every variable. Raises TikEnvironmentError."""
    native()
    full_tracebacks()
    processes()


def _text(name: str) -> str:
    return os.environ.get(name, "").strip()


def _choice(name: str, allowed: tuple[str, ...]) -> str:
    text = _text(name)
    if text and text not in allowed:
        raise TikEnvironmentError(f"the environment variable {name} must be one of {', '.join(allowed)}, got {text!r}")
    return text
