"""What the programs of the zoo share."""

from __future__ import annotations

import functools
from typing import Any, Callable


def program(function: Callable[[Any, Any], tuple]) -> Callable[[], tuple]:
    """A builder out of a function that fills a program, gets ``tbe.tik`` and the empty Tik instance, and returns what
    the builder returns behind that instance."""

    @functools.wraps(function)
    def build() -> tuple:
        from tbe import tik

        instance = tik.Tik(disable_debug=False)
        return (instance, *function(tik, instance))

    return build
