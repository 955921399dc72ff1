"""Error and warning classes of the emulator.

The exact classes of the real TIK front end are not public; the emulator uses one small hierarchy in which the class
says what kind of rule was broken and the message carries the argument, the value, what is allowed, and the line of
the user's program.
"""

from __future__ import annotations

from typing import Any


class TikError(RuntimeError):
    """Base class of everything the emulator raises about a TIK program.

    Attributes:
        message: what is wrong.
        location: the line of the user's program (:class:`tikemu.ir.Location`); None until somebody knows it.
    """

    def __init__(self, message: str = "", location: Any = None) -> None:
        super().__init__(message)
        self.message, self.location = message, location

    def at(self, location: Any) -> TikError:
        """This error with the line of the user's program, unless it has one already."""
        if self.location is None:
            self.location = location
        return self

    def __str__(self) -> str:
        return self.message if self.location is None else f"{self.message}\n  at {self.location}"


class TikParamError(TikError):
    """An argument is out of range, or of the wrong type, dtype, scope or shape."""


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
    """The API, dtype, mode or data path does not exist on the selected SoC, or has no specification."""


class TikUnsupportedArgumentError(TikUnsupportedError, TikParamError):
    """The API exists on the selected SoC, but not with this dtype, mode or data path."""


class TikUnknownApiError(TikUnsupportedError, AttributeError):
    """No document or program names an API of this name; ``hasattr`` answers False."""


class TikSyncError(TikError):
    """Two accesses to the same bytes are not ordered: between cores, or inside an unsynchronised scope."""


class TikUndefinedError(TikError):
    """Strict mode: bytes that nothing has written reach a computation or an output."""


class TikBuildError(TikError):
    """The program as a whole cannot be built."""


class TikDebugError(TikError):
    """The debugger is used in a way it does not allow."""


class TikWarning(UserWarning):
    """Questionable use that the hardware would plausibly execute; an error in strict mode."""
