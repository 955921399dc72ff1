"""Options that hold if a program gives none: while it is recorded, and in ``tikdb.start_debug``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from .options import Options

_default = Options()


def default_options() -> Options:
    """Return the options in force."""
    return _default


def set_default_options(options: Options) -> Options:
    """Replace the options in force; returns the former options."""
    global _default
    if not isinstance(options, Options):
        raise TypeError(f"options must be a tikemu.Options, got {type(options).__name__}")
    before, _default = _default, options
    return before


@contextlib.contextmanager
def use_options(options: Options) -> Iterator[Options]:
    """Record and debug with these options: ``with tikemu.use_options(tikemu.Options(strict=True)): ...``."""
    before = set_default_options(options)
    try:
        yield options
    finally:
        set_default_options(before)
