"""The line of the user's program that called into the emulator."""

from __future__ import annotations

import importlib
import linecache
import os
import sys
import warnings
from typing import NoReturn

from ..errors import TikError, TikParamError, TikWarning
from .ir import Location

# As the interpreter knows it: sys.path may hold "..".
_PACKAGE = os.path.dirname(os.path.dirname(__file__)) + os.sep
#: Start of the file name of code that the emulator generates.
GENERATED = "<tikemu "

#: An import leads through these. Python freezes part of them.
_IMPORT_SYSTEM = (os.path.dirname(importlib.__file__) + os.sep, "<frozen importlib")

_own_files: dict[str, bool] = {}
_locations: dict[tuple[str, int], Location] = {}


def here() -> Location:
    """Return the innermost line on the stack that does not belong to the emulator."""
    frame = sys._getframe(1)
    while True:
        name = frame.f_code.co_filename
        own = _own_files.get(name)
        if own is None:
            own = _own_files[name] = name.startswith((_PACKAGE, GENERATED, *_IMPORT_SYSTEM))
        if not own or frame.f_back is None:
            break
        frame = frame.f_back
    key = (name, frame.f_lineno)
    location = _locations.get(key)
    if location is None:
        location = _locations[key] = Location(name, frame.f_lineno, linecache.getline(name, frame.f_lineno).strip())
    return location


def read_again() -> None:
    """Forget lines of files that have changed: a module may have been loaded again."""
    for name in {name for name, _ in list(_locations)}:
        linecache.checkcache(name)
    _locations.clear()


def warn(message: str, location: Location | None = None, told: dict | None = None) -> None:
    """Issue a TikWarning, at the user's line unless another location is given. Python prints the line with it.

    Args:
        told: keeps the warnings issued so far, as the registry of :mod:`warnings`; None: nothing is kept.
    """
    location = location or here()
    warnings.warn_explicit(TikWarning(message), None, location.file, location.line, registry=told)


def fail(message: str, error: type[TikError] = TikParamError) -> NoReturn:
    """Raise ``error`` with the user's line."""
    raise error(message, here())
