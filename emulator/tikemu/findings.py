"""Questionable use of a TIK program: the classes that strict mode knows, and what is known of one finding."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .errors import Moment, TikError

#: Every class of findings, and what belongs to it.
CLASSES = {
    "undefined": "bytes that nothing has written reach a computation or an output",
    "race": "two blocks, or two pipes inside disable_sync, access the same bytes and nothing orders them",
    "overlap": "operands of one instruction overlap in a way that the hardware does not order",
    "bounds": "an access leaves its tensor and stays inside the memory (bounds='buffer')",
    "padding": "an access ends in the padding behind its tensor",
    "memory": "more of a memory than some releases of CANN leave, or than an instruction needs for itself",
    "work-tensor": "work_tensor is smaller than the documents suggest",
    "undocumented": "a call, mode, dtype or conversion that no document lists for Ascend 910",
    "unspecified": "operands for which the result is not specified, as in a division by 0",
    "value": "a number does not fit its type and is truncated, wrapped or made the largest one",
    "argument": "an argument that has no effect, or another one than it seems",
    "compare-mask": "the compare mask was overwritten before its use",
    "block-loop": "statements outside of the multi-core loop, or loops around it",
    "loop": "the bounds of a loop change in its body, or its end lies below its begin",
    "synchronisation": "wait_flag without set_flag; a barrier for more blocks than cores",
    "soc": "no SoC is selected",
}


@dataclass(frozen=True)
class Finding:
    """A questionable use.

    Attributes:
        kind: its class, a key of ``CLASSES``.
        error: what strict mode raises for it.
        message: what is wrong.
        location: the line of the program.
        moment: block and loop variables when it was found first; None if it was found while the program was recorded.
    """

    kind: str
    error: type[TikError]
    message: str
    location: Any
    moment: Moment | None = None

    def exception(self) -> TikError:
        """Return the error for it."""
        return self.error(self.message).at(self.location, self.moment)

    def __str__(self) -> str:
        return f"[{self.kind}] {self.exception()}"
