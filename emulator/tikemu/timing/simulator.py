"""Discrete events on the in-order pipes of one core (timing.md 5, tik/README.md D31, D32).

The scalar unit S walks through the program in order and hands every instruction to the queue of its pipe. A pipe works
through its queue in order. An instruction starts when its pipe is free and everything it depends on is complete. It
occupies the pipe for ``cycles``, and its result can be used ``latency`` cycles later. Instructions of a pipe complete
in order.

The automatic synchronisation makes instructions wait for the results they need. A dependence between two pipes costs
``set_flag`` and ``wait_flag``, which S issues, and the handshake. Inside a pipe a dependent instruction waits for the
result. If a pipe already knows that a result is complete, no further flag is needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from typing import Any, Callable

from ..soc import PIPES, SocProfile
from .footprints import Footprint, FootprintTable
from .lanes import NEVER, LaneFootprint
from .trace import Bar
from .waits import BARRIER, ISSUE, OPERAND, QUEUE_FULL, ROW, SIZE

PIPE_INDEX = {name: index for index, name in enumerate(PIPES)}
#: All times are multiples of this many cycles; sums are exact up to 2**33 cycles.
QUANTUM = 2.0**-20
_S, _V = PIPE_INDEX["S"], PIPE_INDEX["V"]
_WORK_BAR = Bar("scalar", _S, PIPES[_S])
_ISSUE_BARS = [Bar("waits for S", index) for index in range(len(PIPES))]
_QUEUE_BARS = [Bar(f"queue of {name} full", _S) for name in PIPES]
_EVENT_BARS = [Bar(f"waits for {name}", _S) for name in PIPES]


def exact(cycles: float) -> float:
    """Round ``cycles`` to a multiple of QUANTUM."""
    return round(cycles / QUANTUM) * QUANTUM


class TimedOp:
    """A micro-operation as the engine sees it.

    Attributes:
        name: instruction name.
        pipe: index into PIPES.
        cycles, latency: see the module.
        reads, writes: footprints at the granularity of the automatic synchronisation.
        lanes: accesses of lanes that a bit mask chooses, each with whether they are written.
        accesses: all of these, each with whether it is written.
        mask: value of the mask register it needs, or None.
        chained: accumulates into what the previous instruction of its pipe writes, without waiting for the result.
        barrier, flag: as in MicroOp.
        share: cycles of a transfer at an equal share of the memory's bandwidth; 0 for everything else.
        gm: called for the current (cycles, latency, share) if they depend on the L2 buffer; None otherwise.
        special: a barrier, a flag, or an instruction of the scalar unit.
        count: executions.
        extra: cycles that the executions took beyond ``count * cycles``.
        location: the user's line.
    """

    __slots__ = (
        *(
            "name",
            "pipe",
            "cycles",
            "latency",
            "reads",
            "writes",
            "lanes",
            "accesses",
            "mask",
            "chained",
            "barrier",
            "flag",
            "share",
            "gm",
        ),
        *("special", "count", "extra", "location"),
    )

    def __init__(
        self,
        name: str,
        pipe: int,
        cycles: float,
        latency: float,
        reads: tuple[Footprint, ...] = (),
        writes: tuple[Footprint, ...] = (),
    ) -> None:
        self.name, self.pipe, self.cycles, self.latency = name, pipe, cycles, latency
        self.touch(reads, writes)
        self.mask: Any = None
        self.chained = False
        self.barrier: str | None = None
        self.flag: tuple[str, str, str, int] | None = None
        self.share = 0.0
        self.gm: Any = None
        self.special = pipe == _S
        self.count = 0
        self.extra = 0.0
        self.location: Any = None

    def touch(
        self,
        reads: tuple[Footprint, ...],
        writes: tuple[Footprint, ...],
        lanes: tuple[tuple[LaneFootprint, bool], ...] = (),
    ) -> None:
        """Set the footprints."""
        self.reads, self.writes, self.lanes = reads, writes, lanes
        whole: list[tuple[Any, bool]] = [(footprint, False) for footprint in reads]
        self.accesses = (*whole, *((footprint, True) for footprint in writes), *lanes)

    @property
    def category(self) -> str:
        """Return the pipe, as a trace names it."""
        return PIPES[self.pipe]

    @property
    def busy(self) -> float:
        """Return for how many cycles executions occupied the pipe."""
        return self.count * self.cycles + self.extra


class PipeSimulator:
    """Simulate operation by operation; the records have the time at which each access is complete.

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
        extra: what executions took beyond the cycles of their operation, by operation; CoreClock clears it.
    """

    def __init__(
        self, soc: SocProfile, trace_limit: int = 0, warn: Callable[[str, Any], None] = lambda message, location: None
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
        self._unsynced: dict[tuple[Any, int, bool], float] | None = None
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

    # -------------------------------------------------------------------------------------------- instructions
    def execute(self, ops: Iterable[TimedOp]) -> None:
        """Simulate operations."""
        # The hot loop of a run: state is held in local names, and the common case makes no call.
        free, done_by, known_by, starts, issue = self.free, self.done, self.known, self.starts, self._issue
        waited, trace, unsynced, frames = self.waited, self.trace, self._unsynced, self.footprints.frames
        mask_every = self._mask_every
        for op in ops:
            if op.special:
                self._special(op)
                continue
            pipe = op.pipe
            start = begin = free[pipe]
            if self._operand_ready > start:
                start = self._operand_ready
            known = known_by[pipe]
            needs = None
            for footprint, writes in op.accesses:
                for other in footprint.conflicts:
                    done = other.write_done
                    source = other.write_pipe
                    if done > known[source]:
                        if source == pipe:
                            if done > start and not op.chained:
                                start = done
                        elif needs is None:
                            needs = {source: done}
                        elif done > needs.get(source, NEVER):
                            needs[source] = done
                    if writes and other.readers:
                        for source, done in other.readers.items():
                            if source != pipe and done > known[source]:
                                if needs is None:
                                    needs = {source: done}
                                elif done > needs.get(source, NEVER):
                                    needs[source] = done
            if frames:
                for footprint, _ in op.accesses:
                    if footprint.frames:
                        start, needs = self._lane_needs(op, start, needs)
                        break
            operand = start
            if needs is not None:
                start, last = self._wait(pipe, needs, start)
            mask = op.mask
            if mask is not None and (mask != self.mask or mask_every) and self._write_mask(mask) > start:
                start = operand = done_by[pipe]
            now = self.now + issue
            if trace is not None:
                self._show_work(self.now, now)
            # The queue takes an instruction once the instruction ``depth`` places ahead has left it.
            ring = starts[pipe]
            if ring[0] > now:
                waited[QUEUE_FULL + pipe] += ring[0] - now
                if trace is not None:
                    trace.append((_QUEUE_BARS[pipe], now, ring[0]))
                now = ring[0]
            self.now = now
            if now > begin:
                waited[pipe * ROW + ISSUE] += now - begin
                if trace is not None:
                    trace.append((_ISSUE_BARS[pipe], begin, now))
                begin = now
            if start > begin:
                if operand > begin:
                    waited[pipe * ROW + OPERAND] += operand - begin
                    begin = operand
                if start > begin:
                    waited[pipe * ROW + last] += start - begin
            else:
                start = begin
            self._operand_ready = NEVER
            ring.append(start)
            end = start + op.cycles
            if op.share or op.gm is not None:
                end, done = self._transfer(op, start)
            else:
                done = end + op.latency
            free[pipe] = end
            if done > done_by[pipe]:
                done_by[pipe] = done
            else:
                done = done_by[pipe]
            op.count += 1
            if trace is not None:
                trace.append((op, start, end))
            if unsynced is not None:
                for footprint, writes in op.accesses:
                    unsynced[footprint, pipe, writes] = done
                continue
            for footprint in op.reads:
                footprint.readers[pipe] = done
            for footprint in op.writes:
                footprint.write_pipe = pipe
                footprint.write_done = done
                if footprint.readers:
                    footprint.readers.clear()
            if op.lanes:
                for lanes, writes in op.lanes:
                    lanes.record(done, writes)
        if trace is not None and len(trace) >= self.trace_limit:
            self.trace = None

    def _lane_needs(
        self, op: TimedOp, start: float, needs: dict[int, float] | None
    ) -> tuple[float, dict[int, float] | None]:
        """Add Vector's accesses to lanes of bit masks to what ``op`` waits for."""
        pipe = op.pipe
        known = since = self.known[pipe][_V]
        if pipe == _V:
            since = max(known, start)
        elif needs is not None:
            since = max(known, needs.get(_V, NEVER))
        before = since
        for footprint, writes in op.accesses:
            if footprint.frames:
                since = footprint.latest(since, writes and pipe != _V)
        if since > before:
            if pipe == _V:
                return since, needs
            needs = {_V: since} if needs is None else {**needs, _V: since}
        return start, needs

    def _write_mask(self, mask: Any) -> float:
        """Write the mask register; return when Vector has drained."""
        self.mask = mask
        drained = self.done[_V] if self._mask_drain else NEVER
        if self._mask_drain == 2 and drained > self.now:
            self._wait_of_s(BARRIER + _V, drained, _EVENT_BARS[_V])
            self.now = drained
        self.scalar(self._mask_write)
        return drained

    def _transfer(self, op: TimedOp, start: float) -> tuple[float, float]:
        """Return the end and completion of a move: as fast as the port and the core's share of the memory allow.

        The cores are alike and drift apart: a core that has moved less than its share for a while moves more later,
        while others pause.
        """
        cycles, latency, share = (op.cycles, op.latency, op.share) if op.gm is None else op.gm()
        entitled = max(self.entitled[op.pipe], start - self.borrow) + share
        self.entitled[op.pipe] = entitled
        end = max(start + cycles, entitled)
        beyond = end - start - op.cycles
        op.extra += beyond
        self.extra[op] = self.extra.get(op, 0.0) + beyond
        return end, end + latency

    def _wait(self, pipe: int, needs: dict[int, float], start: float) -> tuple[float, int]:
        """Set a flag from every pipe in ``needs`` to ``pipe``. Return the earliest start and its cause."""
        known, last, delay = self.known[pipe], pipe, self.flag_delay
        for source, done in needs.items():
            known[source] = done
            self.scalar(2 * self._flag_issue)
            self.flags += 2
            if done + delay > start:
                start, last = done + delay, source
            self._count_event(source, pipe, done, start if start > self.now else self.now)
        return start, last

    def _count_event(self, source: int, pipe: int, set_at: float, waited_at: float) -> None:
        """Count the tokens of a pair of pipes. Sets and waits of a pair come in order, so the oldest end first."""
        pair = (source, pipe)
        waits = self.waits.get(pair)
        if waits is None:
            waits = self.waits[pair] = deque()
        while waits and waits[0] <= set_at:
            waits.popleft()
        waits.append(waited_at)
        if len(waits) > self.events.get(pair, 0):
            self.events[pair] = len(waits)

    # -------------------------------------------------------------------------------------------- scalar unit
    def scalar(self, cycles: float) -> None:
        """Count work of the scalar unit."""
        if self.trace is not None:
            self._show_work(self.now, self.now + cycles)
        self.now += cycles
        self.scalar_busy += cycles

    def _show_work(self, start: float, end: float) -> None:
        """Add work of the scalar unit to the trace: a bar, or the last one longer if it ends at ``start``."""
        trace, last = self.trace, self._bar
        assert trace is not None
        if last is not None and last[0] is trace:
            _, begin, until = trace[last[1]]
            if start <= until:  # S goes back in time if what it waited for came before its flags
                trace[last[1]] = (_WORK_BAR, begin, max(until, end))
                return
        self._bar = trace, len(trace)
        trace.append((_WORK_BAR, start, end))

    def _wait_of_s(self, index: int, end: float, bar: Bar) -> None:
        """Let the scalar unit wait until ``end``; counted at ``index``."""
        self.waited[index] += end - self.now
        if self.trace is not None:
            self.trace.append((bar, self.now, end))

    def _idle(self, pipe: int, end: float) -> None:
        """Count free time of ``pipe`` up to ``end`` as a wait for S."""
        if end > self.free[pipe]:
            self.waited[pipe * ROW + ISSUE] += end - self.free[pipe]
            self.free[pipe] = end

    def settle_idle(self) -> None:
        """Count the waits of all pipes for S up to now. No time of an instruction depends on that."""
        for pipe in range(1, len(PIPES)):
            self._idle(pipe, self.now)

    def scalar_read(self, footprint: Footprint) -> None:
        """Load from a tensor by the scalar unit: the pipe that wrote it drains first."""
        needs = {}
        for other in footprint.conflicts:
            source = other.write_pipe
            if source != _S and other.write_done > self.known[_S][source]:
                needs[source] = self.done[source]
        known = self.known[_S][_V]
        if footprint.frames and footprint.latest(known, False) > known:
            needs[_V] = self.done[_V]
        near = footprint.region.memory.kind == "UB"
        self._scalar_access(needs, self._ub_read if near else self._gm_read)
        self.delivered = self.now + self._ub_delivery if near else self.now
        if self._unsynced is None:
            footprint.readers[_S] = self.now
        else:
            self._unsynced[footprint, _S, False] = self.now

    def await_value(self, in_pipe: bool) -> None:
        """Wait for the value read last: the next instruction's pipe does, if it is an operand, else the scalar unit
        itself."""
        if in_pipe:
            self._operand_ready = self.delivered
        elif self.delivered > self.now:
            self.scalar(self.delivered - self.now)

    def scalar_write(self, footprint: Footprint) -> None:
        """Store into a tensor by the scalar unit: earlier accesses of other pipes come first."""
        needs: dict[int, float] = {}
        for other in footprint.conflicts:
            accesses = dict(other.readers)
            accesses[other.write_pipe] = max(other.write_done, accesses.get(other.write_pipe, NEVER))
            for source, done in accesses.items():
                if source != _S and done > max(self.known[_S][source], needs.get(source, NEVER)):
                    needs[source] = done
        if footprint.frames:
            known = max(self.known[_S][_V], needs.get(_V, NEVER))
            done = footprint.latest(known, True)
            if done > known:
                needs[_V] = done
        self._scalar_access(needs, self._issue)
        if self._unsynced is None:
            footprint.write_pipe, footprint.write_done = _S, self.now
            footprint.readers.clear()
        else:
            self._unsynced[footprint, _S, True] = self.now

    def _scalar_access(self, needs: dict[int, float], cycles: float) -> None:
        if needs and self._unsynced is None:
            ready, last = self._wait(_S, needs, self.now)
            if ready > self.now:
                self._wait_of_s(last, ready, _EVENT_BARS[last])
            self.now = ready
        self.scalar(cycles)
        self.free[_S] = self.done[_S] = self.now

    # -------------------------------------------------------------------------------------------- synchronisation
    def _special(self, op: TimedOp) -> None:
        """Simulate instructions of the scalar unit, barriers and explicit flags."""
        if op.barrier is None and op.flag is None:
            for footprint in op.reads:
                self.scalar_read(footprint)
            for footprint in op.writes:
                self.scalar_write(footprint)
            start = self.now
            self.scalar(max(op.cycles, self._issue))
            self.done[_S] = self.now + op.latency
        elif op.barrier is not None:
            self.scalar(self._issue)
            start = self.now
            self._barrier(op.barrier)
            if op.barrier == "BLOCKS":
                self.scalar(op.cycles)
        else:
            self.scalar(self._flag_issue)
            start = self.now
            self._explicit_flag(*op.flag, op.location)
        op.count += 1
        if self.trace is not None:
            self.trace.append((op, start, self.now))

    def _barrier(self, pipe: str) -> None:
        if pipe in PIPE_INDEX:
            index = PIPE_INDEX[pipe]
            begin, end = self.free[index], max(self.free[index], self.done[index])
            self._idle(index, min(end, max(begin, self.now)))
            self.waited[index * ROW + OPERAND] += end - self.free[index]
            self.free[index] = end
            return
        last = max(range(len(PIPES)), key=self.done.__getitem__)
        if self.done[last] > self.now:
            self._wait_of_s(BARRIER + last, self.done[last], _EVENT_BARS[last])
        self.now = max(self.now, *self.done)
        for known in self.known:
            known[:] = self.done

    def _explicit_flag(self, kind: str, source: str, destination: str, event: int, location: Any) -> None:
        key = (PIPE_INDEX[source], PIPE_INDEX[destination], event)
        tokens = self._tokens.setdefault(key, deque())
        if kind == "set":
            tokens.append(self.done[key[0]] if key[0] != _S else self.now)
            return
        if not tokens:
            self._warn(f"wait_flag({source}, {destination}, {event}) has no set_flag before it", location)
            return
        done = tokens.popleft()
        pipe = key[1]
        ready = max(self.free[pipe], self.now, done + self.flag_delay)
        if pipe == _S:
            if ready > self.now:
                self._wait_of_s(key[0], ready, _EVENT_BARS[key[0]])
            self.now = ready
        else:
            self._idle(pipe, self.now)
            self.waited[pipe * ROW + key[0]] += ready - self.free[pipe]
        self.free[pipe] = ready
        self.known[pipe][key[0]] = max(self.known[pipe][key[0]], done)
        self._count_event(key[0], pipe, done, ready)

    # -------------------------------------------------------------------------------------------- disable_sync
    def enter_unsynced(self) -> None:
        """Begin a scope without automatic synchronisation: only accesses before it are waited for."""
        self.leave_unsynced()
        self._unsynced = {}

    def leave_unsynced(self, _: None = None) -> None:
        """End the scope: its accesses become visible to the synchronisation."""
        pending, self._unsynced = self._unsynced, None
        # In the order of the times, as lanes keep their accesses.
        for (footprint, pipe, write), done in sorted((pending or {}).items(), key=lambda entry: entry[1]):
            if isinstance(footprint, LaneFootprint):
                footprint.record(done, write)
            elif write and done >= footprint.write_done:
                footprint.write_pipe, footprint.write_done = pipe, done
            elif not write:
                footprint.readers[pipe] = max(done, footprint.readers.get(pipe, NEVER))

    def step_unsynced(self, op: TimedOp) -> None:
        """Execute one operation inside an unsynchronised scope: it does not wait for others of the scope."""
        self.execute((op,))
