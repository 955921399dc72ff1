"""How a bench tells questionable use without a program that is recorded or run."""

from __future__ import annotations

import warnings
from typing import Any

from tikemu import Options, TikWarning


class Judgement:
    """Options of default or strict mode, and what was told under them.

    Attributes:
        options: of the mode.
        said: messages of questionable use, in default mode.
    """

    def __init__(self, strict: bool) -> None:
        self.options = Options(strict=strict)
        self.said: list[str] = []

    def report(self, kind: str, error: Any, message: str) -> None:
        """What recorder and runtime do: an error in strict mode, otherwise a warning."""
        if self.options.raises(kind):
            raise error(message)
        self.said.append(message)
        warnings.warn(message, TikWarning, stacklevel=2)


def fault(error: Any, message: str) -> None:
    """What the runtime does with an error of an instruction."""
    raise error(message)
