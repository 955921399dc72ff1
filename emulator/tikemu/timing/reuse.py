"""Keep results of an execution for the next, so that loops are simulated once.

These results are kept:

* the operations bound for a call (:mod:`tikemu.machine.calls`),
* the footprints of element accesses,
* the steady states of the pipes (:mod:`tikemu.timing.steady_state`),
* the compiled program between two runs.

With ``Options(reuse=False)`` nothing is kept. Every call is checked and bound, and every operation simulated, each time
it is executed. Results, checks and cycles are the same, only the run is slower.
"""

from __future__ import annotations

from abc import ABC, abstractmethod


class Reusable(ABC):
    """Keep something that later executions may use again."""

    __slots__ = ()

    @abstractmethod
    def forget(self) -> None:
        """Drop what is kept. What was counted stays."""

    def restart(self) -> None:  # noqa: B027
        """Begin a new run: counts start at 0."""
