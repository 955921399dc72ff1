"""Define the decorator of the programs of the zoo."""

from __future__ import annotations

import functools
from typing import Any, Callable


def program(function: Callable[[Any, Any], tuple]) -> Callable[[], tuple]:
    """Turn a function that fills a program into a builder of the program."""

    @functools.wraps(function)
    def build() -> tuple:
        from tbe import tik

        instance = tik.Tik(disable_debug=False)
        return (instance, *function(tik, instance))

    return build
