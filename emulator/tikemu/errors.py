"""Error and warning classes of the emulator.

The exact classes of the real TIK front end are not public, so the emulator has one small hierarchy of its own. The
class says what kind of rule was broken. The message has the argument, the value, what is allowed, and the line of the
user's program.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Moment:
    """Hold the progress of a run.

    Attributes:
        block: index of the block; None in a program without a multi-core loop.
        block_count: blocks of the multi-core loop; None until the program has said so.
        loops: name and value of the loop variables around the line, outermost first. If two variables have the same
            name, the line of the loop follows the name.
    """

    block: int | None
    block_count: int | None
    loops: tuple[tuple[str, int], ...]

    def __str__(self) -> str:
        of = "" if self.block_count is None else f" of {self.block_count}"
        parts = [] if self.block is None else [f"block {self.block}{of}"]
        return ", ".join([*parts, *(f"{name} = {value}" for name, value in self.loops)])


class TikError(RuntimeError):
    """Base class of everything the emulator raises about a TIK program.

    Attributes:
        message: what is wrong.
        location: the line of the user's program (:class:`tikemu.program.ir.Location`); None until somebody knows it.
        moment: block and loop variables when it went wrong; None while a program is recorded, and if a run has
            neither.
        findings: of ``Options(findings="all")``, before a run ended with this error.
    """

    def __init__(self, message: str = "", location: Any = None) -> None:
        super().__init__(message)
        self.message, self.location = message, location
        self.moment: Moment | None = None
        self.findings: tuple[Any, ...] = ()

    def at(self, location: Any, moment: Moment | None = None) -> TikError:
        """Add the line of the user's program and the moment, unless the error has them."""
        if self.location is None:
            self.location = location
        if self.moment is None:
            self.moment = moment
        return self

    def __str__(self) -> str:
        place = "" if self.location is None else f"\n  at {self.location}"
        moment = f"\n  in {self.moment}" if self.moment else ""
        before = "".join(f"\nfound before: {finding}" for finding in self.findings)
        return f"{self.message}{place}{moment}{before}"


class TikParamError(TikError):
    """An argument is out of range, or of the wrong type, dtype, scope or shape."""


class TikCallError(TikParamError, TypeError):
    """The arguments of a call do not fit its signature: one is missing, unknown or given twice."""


class TikAlignError(TikParamError):
    """The start address of an operand is not aligned as its instruction demands."""


class TikIndexError(TikError, IndexError):
    """An index or slice lies outside the tensor."""


class TikMemoryError(TikError):
    """The live tensors of a memory exceed its capacity."""


class TikBoundsError(TikError):
    """A run-time access leaves its tensor, or a view needs more than ``max_mem_size``."""


class TikScopeError(TikError):
    """A tensor or scalar is used outside the statement scope that defined it."""


class TikUnsupportedError(TikError):
    """Report an API, dtype, mode or data path that the selected SoC lacks."""


class TikUnsupportedArgumentError(TikUnsupportedError, TikParamError):
    """Report a dtype, mode or data path that an API lacks on the selected SoC."""


class TikUnknownApiError(TikUnsupportedError, AttributeError):
    """An API of this name stands in no document or program; ``hasattr`` answers False."""


class TikSyncError(TikError):
    """Two accesses to the same bytes are not ordered: between cores, or inside an unsynchronised scope."""


class TikUndefinedError(TikError):
    """Strict mode: bytes that nothing has written reach a computation or an output."""


class TikProcessError(TikError):
    """Report a process that did not start, ended early or ran out of memory."""


class TikEnvironmentError(TikError, ValueError):
    """An environment variable of tikemu has a value without meaning."""


class TikBuildError(TikError):
    """The program as a whole cannot be built."""


class TikDebugError(TikError):
    """The debugger is used in a way it does not allow."""


class TikWarning(UserWarning):
    """Questionable use that the hardware would plausibly execute; an error in strict mode."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown ``name``: the nearest known name, if there is a near one."""
    nearest = difflib.get_close_matches(name, sorted(known), 3)
    equal = [entry for entry in nearest if _likeness(entry, name) == _likeness(nearest[0], name)]
    return f"; did you mean {' or '.join(map(repr, sorted(equal)))}?" if equal else ""


def _likeness(known: str, name: str) -> float:
    return difflib.SequenceMatcher(a=known, b=name).ratio()
