"""The records of a simulation: times of the pipes, counts, and waits."""

from __future__ import annotations

from collections import deque
from typing import Any, Callable

from ..soc import PIPES, SocProfile
from .footprints import Footprint, FootprintTable
from .waits import SIZE


class PipeRecords:
    """Record completion times on the pipes of one core, and counters.

    Args:
        soc: the chip.
        trace_limit: see ``trace``.
        warn: told (message, line) about questionable flags.

    Attributes:
        now: time of the scalar unit, cycles.
        footprints: the footprints that operations refer to.
        events: per (source, destination) pipe, the most tokens that were set and not yet waited for.
        scalar_busy: cycles of work of the scalar unit, without the issue of other pipes' instructions.
        flags: set_flag and wait_flag instructions that the automatic synchronisation inserted.
        waited: cycles that pipes waited, see :mod:`.waits`.
        trace: receives (operation, start, end) until it holds about ``trace_limit`` entries; None: nothing is kept.
        free, done: per pipe, the time at which it takes the next instruction, and at which all of it is complete.
        known: per pipe and source, what of the source the pipe knows to be complete.
        starts: per pipe, when the last instructions left its queue.
        waits: per pair of pipes, the ends of the waits for its events.
        mask: contents of the mask register.
        delivered: when the value that the scalar unit read last is there.
        entitled: per pipe, when its transfers would be complete if the cores had equal shares of the memory.
        extra: what executions took beyond the cycles of their operation, by operation; SteadyStateReplay clears it.
    """

    def __init__(
        self,
        soc: SocProfile,
        trace_limit: int = 0,
        warn: Callable[[str, Any], None] = lambda message, location: None,
    ) -> None:
        timing = soc.timing
        self._issue = timing.issue_cycles
        self._mask_write = timing.mask_write_cycles
        self._mask_every, self._mask_drain = bool(timing.mask_every), timing.mask_drain
        self._flag_issue = timing.flag_cycles
        self.flag_delay = timing.flag_cycles + timing.flag_handshake
        self._depth = int(timing.queue_depth)
        self._ub_read = timing.ub_scalar_read
        self._ub_delivery = timing.ub_scalar_latency - timing.ub_scalar_read
        self.borrow = timing.hbm_borrow_cycles
        self._gm_read = timing.gm_scalar_read
        self.footprints = FootprintTable()
        self.trace: list | None = None
        self._bar: tuple[list, int] | None = None  # trace and number of the last entry that shows work of S
        self.trace_limit = trace_limit
        self._warn = warn
        self.starts: list[deque[float]] = [deque(maxlen=self._depth) for _ in PIPES]
        self._unsynced: dict[tuple[Footprint, int, bool], float] | None = None
        self.restart()

    def restart(self) -> None:
        """Begin a new run: nothing has happened, nothing is counted."""
        self.events: dict[tuple[int, int], int] = {}
        self.scalar_busy = 0.0
        self.flags = 0
        self.waited = [0.0] * SIZE
        self.extra: dict[Any, float] = {}
        self.reset(0.0)

    def reset(self, start: float) -> None:
        """Begin a block: everything is complete at ``start``."""
        self.now = start
        self.free = [start] * len(PIPES)
        self.done = [start] * len(PIPES)
        self.known = [[start] * len(PIPES) for _ in PIPES]
        for ring in self.starts:
            ring.extend([start] * self._depth)
        self.mask: Any = None
        self.delivered = self._operand_ready = start
        self.entitled = [start] * len(PIPES)
        self.waits: dict[tuple[int, int], deque] = {}
        self._tokens: dict[tuple[int, int, int], deque] = {}
        self._unsynced = None
        self.footprints.reset()

    @property
    def finish(self) -> float:
        """Time at which everything issued so far is complete."""
        return max(self.now, *self.done)

    @property
    def repeatable(self) -> bool:
        """Return whether the next event depends on the records alone. No events are kept, no unsynchronised scope is
        open, no explicit flag waits.
        """
        return self.trace is None and self._unsynced is None and not any(self._tokens.values())
