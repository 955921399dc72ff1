"""The clock of one core, as the machine drives it: repetitions are replayed, all else is simulated."""

from __future__ import annotations

from typing import Any, Callable

from ..soc import SocProfile
from .footprints import Footprint
from .simulator import PipeSimulator, TimedOp
from .steady_state import SteadyStateReplay, keep_most


class CoreClock:
    """Time on one core.

    Args:
        soc, trace_limit, warn: see :class:`PipeSimulator`.
        replay: replay repetitions (see :mod:`.steady_state`); the times are the same without it.

    Attributes:
        simulator: simulates operation by operation.
        replay: remembers and replays.
        footprints: the footprints that operations refer to.
    """

    def __init__(
        self,
        soc: SocProfile,
        trace_limit: int = 0,
        warn: Callable[[str, Any], None] = lambda message, location: None,
        replay: bool = True,
    ) -> None:
        self.simulator = PipeSimulator(soc, trace_limit, warn)
        self.replay = SteadyStateReplay(self.simulator, replay)
        self.footprints = self.simulator.footprints
        self._issue = soc.timing.issue_cycles

    # -------------------------------------------------------------------------------------------- runs and blocks
    def restart(self) -> None:
        """Begin a new run: nothing has happened, nothing is counted."""
        self.replay.abandon()
        self.replay.events = {}
        self.simulator.restart()

    def begin_block(self, start: float, replay: bool = False) -> None:
        """Begin a block at ``start``: everything is complete. With ``replay`` it may be like an earlier one."""
        self.replay.abandon()
        self.simulator.reset(start)
        if replay:
            self.replay.begin_block()

    def end_block(self) -> float:
        """Time at which everything of the block is complete."""
        return self.replay.end_block()

    @property
    def now(self) -> float:
        """Return the scalar unit's time."""
        self.settle()
        return self.simulator.now

    @property
    def finish(self) -> float:
        """Time at which everything issued so far is complete."""
        self.settle()
        return self.simulator.finish

    @property
    def scalar_busy(self) -> float:
        """Return the scalar unit's cycles of work, without the issue of other pipes' instructions."""
        self.replay.count()
        return self.simulator.scalar_busy

    @property
    def flags(self) -> int:
        """Return the number of flag instructions that the automatic synchronisation inserted."""
        self.replay.count()
        return self.simulator.flags

    @property
    def waited(self) -> list[float]:
        """Return the cycles that pipes waited, see :mod:`.waits`."""
        self.replay.count()
        return self.simulator.waited

    @property
    def events(self) -> dict[tuple[int, int], int]:
        """Return the most tokens that waited at one time, per (source, destination) pipe."""
        self.replay.count()
        total = dict(self.replay.events)
        keep_most(total, self.simulator.events)
        return total

    def add_counts(
        self, scalar_busy: float, flags: int, waited: list[float], events: dict[tuple[int, int], int]
    ) -> None:
        """Add what another clock has counted."""
        self.simulator.scalar_busy += scalar_busy
        self.simulator.flags += flags
        for index, cycles in enumerate(waited):
            self.simulator.waited[index] += cycles
        keep_most(self.replay.events, events)

    @property
    def trace(self) -> list | None:
        """See :class:`PipeSimulator`."""
        return self.simulator.trace

    @trace.setter
    def trace(self, events: list | None) -> None:
        self.simulator.trace = events

    # -------------------------------------------------------------------------------------------- what is kept
    def settle(self) -> None:
        """Bring all times and counts up to date."""
        self.replay.settle()

    def forget(self) -> None:
        """Drop remembered actions, and footprints that can no longer delay anything.

        Prepared operations must not refer to these footprints.
        """
        self.replay.forget()
        self.footprints.prune(self.simulator.now)

    # -------------------------------------------------------------------------------------------- actions
    def step(self, ops: tuple[TimedOp, ...]) -> None:
        """Execute operations one after another, with automatic synchronisation."""
        replay = self.replay
        place = replay.place
        if place is None:
            self.simulator.execute(ops)
            return
        following = place.get(id(ops))
        if following is None:
            replay.extend(id(ops), self.simulator.execute, ops, ops)
        else:
            replay.place = following

    def scalar(self, cycles: float) -> None:
        """Count work of the scalar unit."""
        replay = self.replay
        place = replay.place
        if place is None:
            self.simulator.scalar(cycles)
            return
        following = place.get(-cycles)
        if following is None:
            replay.extend(-cycles, self.simulator.scalar, cycles)
        else:
            replay.place = following

    def iteration(self, loop: int = 0) -> None:
        """Count one step of a loop."""
        self.replay.iteration(loop)
        self.scalar(self._issue)

    def scalar_read(self, footprint: Footprint) -> None:
        """Load from a tensor by the scalar unit: the pipe that wrote it drains first."""
        self._act((footprint, False), self.simulator.scalar_read, footprint)

    def scalar_write(self, footprint: Footprint) -> None:
        """Store into a tensor by the scalar unit: earlier accesses of other pipes come first."""
        self._act((footprint, True), self.simulator.scalar_write, footprint)

    def await_value(self, in_pipe: bool) -> None:
        """Wait for the value that the scalar unit read last, see :meth:`PipeSimulator.await_value`."""
        self._act(("value", in_pipe), self.simulator.await_value, in_pipe)

    def _act(self, key: tuple[Any, bool], function: Callable[[Any], None], argument: Any) -> None:
        replay = self.replay
        place = replay.place
        if place is None:
            function(argument)
            return
        following = place.get(key)
        if following is None:
            replay.extend(key, function, argument)
        else:
            replay.place = following

    # -------------------------------------------------------------------------------------------- disable_sync
    def enter_unsynced(self) -> None:
        """Begin a scope without automatic synchronisation: only accesses before it are waited for."""
        self.replay.settle()
        self.simulator.enter_unsynced()

    def leave_unsynced(self) -> None:
        """End the scope: its accesses become visible to the synchronisation."""
        self.simulator.leave_unsynced()

    def step_unsynced(self, op: TimedOp) -> None:
        """Execute one operation inside an unsynchronised scope: it does not wait for others of the scope."""
        self.simulator.step_unsynced(op)
