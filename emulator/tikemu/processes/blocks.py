"""The caller's side of a run in several processes: hands out shares of blocks, and enters their results in order."""

from __future__ import annotations

import dataclasses
import logging
import pickle
from collections.abc import Iterator, Mapping
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from .. import environment
from ..errors import TikProcessError
from ..isa.move import atomic_add
from ..machine.access_log import Addition, Spans, fill, meets, scatter
from ..machine.calls.site import CallSite
from ..machine.cores import Cores
from ..machine.execute import Session
from ..machine.inputs import Contents
from ..options import Options
from ..program import ir
from ..program.location import warn
from . import pool as pools
from .messages import Counts, Share

#: Bytes of atomic additions of one share that are kept.
MOST_ADDITIONS = 512 << 20
#: Shares per process at least, if there are enough blocks. A share may be ahead of the oldest incomplete share by this
#: many shares per process.
_SHARES, _AHEAD = 16, 8

#: Ways to run a program again after its shares met: the caller does the atomic additions, or it executes every block.
_ADDING, _ALONE = "adding", "alone"
_WAYS = {_ADDING: "again, and the caller adds", _ALONE: "in one process"}

_told: dict = {}  # warnings
_log = logging.getLogger("tikemu.processes")


class _Met(Exception):
    """Blocks have met, or something was reported: ``mode`` is how the program has to run."""

    def __init__(self, mode: str, reason: str) -> None:
        super().__init__(reason)
        self.mode = mode


def wanted(options: Options) -> int:
    """Return the number of processes from the options or the environment."""
    if options.processes is not None:
        return options.processes
    return environment.processes()


def run_in_processes(session: Session, cores: Cores, scalars: Mapping[str, Any], tensors: list[Contents]) -> bool:
    """Run the program of a session that has begun, if its options ask for processes.

    Args:
        session: the caller's session. Afterwards its global memory and its counts are as if it had executed the blocks.
        cores: gets the times of the cores, and the trace.
        scalars, tensors: what the run is given.

    Returns:
        Whether the program was run. If not, the session is in its state before the first block.
    """
    count = min(wanted(session.key[0]), session.key[3] or 1)
    if count == 1 or _needs_order(session):
        return False
    modes = vars(session.program).setdefault("_modes", {})
    while modes.get(session.key) != _ALONE:
        adding = modes.get(session.key) == _ADDING
        try:
            _Run(session, cores, adding).run(count, dict(scalars), tensors)
            return True
        except _Met as met:
            modes[session.key] = met.mode
            _log.info("kernel %s: %s; it runs %s", session.program.name, met, _WAYS[met.mode])
            session.begin(scalars, tensors)
    return False


def _needs_order(session: Session) -> bool:
    """Return whether blocks must run one after another in one process.

    They must if they wait for each other, share the L2 buffer or print. They must too if the times of blocks decide
    which blocks are traced.
    """
    options, numerics, timing, blocks, _ = session.key
    if session.compiled.barriers or options.l2 and timing:
        return True
    if options.trace and timing and blocks > session.runtime.soc.core_count:
        return True
    return numerics and any(isinstance(entry, ir.DebugPrint) for entry in ir.statements(session.program.body))


class _Run:
    """One run in several processes.

    Args:
        session, cores: see :func:`run_in_processes`.
        adding: the caller adds what blocks add atomically.
    """

    def __init__(self, session: Session, cores: Cores, adding: bool) -> None:
        self.session, self.cores, self.adding = session, cores, adding
        self.runtime = session.runtime
        self.blocks: int = session.key[3]
        self.cycles: list[float] = []
        self._written: dict[int, np.ndarray] = {}  # by uid, which bytes the shares so far have written,
        self._added: dict[int, np.ndarray] = {}  # added to,
        self._read: dict[int, np.ndarray] = {}  # and read
        self._shares: list[Share] = []
        self._traced = 0
        options = self.runtime.options
        if cores.trace is not None and options.max_trace_events > 0:
            self._traced = cores.trace.cores

    def run(self, count: int, scalars: dict[str, Any], tensors: list[Contents]) -> None:
        """Execute all blocks in ``count`` processes.

        Raises:
            _Met: they have to be executed in another way.
        """
        given = pickle.dumps(
            (scalars, [(info.uid, shape, fed) for info, shape, fed in tensors]), pickle.HIGHEST_PROTOCOL
        )
        pool = pools.take(count)
        try:
            counts = self._execute(pool, given)
        except _Met:
            pools.give(pool) if pool.drain() else pool.kill()
            raise
        except BaseException:
            pool.kill()
            raise
        pools.give(pool)
        for entry in counts:
            for number, tally in entry.tallies.items():
                self._site(number).retired.merge(tally)
            if self.runtime.timing:
                self.runtime.clock.add_counts(entry.scalar_busy, entry.flags, entry.waited, entry.events)
        self._finish()

    # -------------------------------------------------------------------------------------------- the processes
    def _program(self) -> bytes:
        """Return the program as bytes."""
        try:
            return pickle.dumps(dataclasses.replace(self.session.program, config={}), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # whatever the classes of the user's objects raise
            raise self._refused(f"{type(error).__name__}: {error}") from None

    def _refused(self, reason: str) -> _Met:
        name = self.session.program.name
        warn(f"kernel {name!r} cannot be sent to other processes, so it runs in one: {reason}", told=_told)
        return _Met(_ALONE, "it cannot be sent to other processes")

    def _execute(self, pool: pools.Pool, given: bytes) -> list[Counts]:
        """Hand out shares until all blocks are executed; returns what the processes have counted."""
        number = self.session.numbers.setdefault(self.adding, next(pools.numbers))
        options = dataclasses.replace(self.session.key[0], processes=1, progress=False)
        head = "open", number, (options, *self.session.key[1:]), self.adding
        program = None if all(number in known for known in pool.known) else self._program()
        for process in range(len(pool)):
            _send(pool, process, *head, None if number in pool.known[process] else program, given)
            pool.known[process].add(number)
        length = max(1, self.blocks // (_SHARES * len(pool)))
        firsts = iter(range(0, self.blocks, length))
        ahead: dict[int, Share] = {}
        counts: list[Counts] = []
        busy: dict[int, int] = {}  # by process that is ready, its number of open shares
        following: int | None = next(firsts)
        while len(counts) < len(pool):
            process, answer = pool.receive()
            kind, *rest = pickle.loads(answer)
            complete = len(self.cycles) == self.blocks  # before this answer: others may have been quicker
            if kind == "missing" and not complete:  # it keeps a few programs only
                program = program or self._program()
                _send(pool, process, *head, program, given)
            elif kind == "missing":
                counts.append(Counts({}))
            elif kind == "ready":
                busy[process] = 0
                if complete:
                    _send(pool, process, "close")
            elif kind == "share":
                busy[process] -= 1
                ahead[rest[0].first] = rest[0]
                while len(self.cycles) in ahead:
                    self._enter(ahead.pop(len(self.cycles)))
                if len(self.cycles) == self.blocks:
                    for each in busy:
                        _send(pool, each, "close")
            elif kind == "counts":
                counts.append(rest[0])
            elif kind == "fault":
                raise _Met(_ALONE, "a block breaks a rule")
            elif kind == "refused":
                raise self._refused(rest[0])
            else:
                raise TikProcessError(f"a process that executes blocks has failed:\n{rest[0]}")
            for each in sorted(busy, key=busy.__getitem__):
                limit = len(self.cycles) + _AHEAD * len(pool) * length
                while following is not None and following < limit:
                    # A process gets its next share ahead of time, as long as there is a share for every process.
                    if busy[each] >= (2 if self.blocks - following > length * len(pool) else 1):
                        break
                    size = min(length, self.blocks - following)
                    _send(pool, each, "execute", following, size, self._traced, MOST_ADDITIONS)
                    busy[each] += 1
                    following = next(firsts, None)
        return counts

    # -------------------------------------------------------------------------------------------- what shares did
    def _enter(self, share: Share) -> None:
        """Enter the writes of a share; all shares before it have been entered."""
        self._compare(share)
        for uid, where, content, marks in share.written:
            memory = self.session.gm[uid].memory
            scatter(memory.data, where, content)
            if marks is not None:
                scatter(memory.defined, where, marks)
        for addition in share.additions or ():
            self._add(addition)
        share.written, share.additions = [], None
        share.reads, share.writes, share.sums = {}, {}, {}
        self.cycles += share.cycles
        self._shares.append(share)
        self.session.progress.block(len(self.cycles), self.blocks)

    def _compare(self, share: Share) -> None:
        """Raise _Met if a share has met with an earlier one."""
        if share.additions is not None and sum(len(addition.data) for addition in share.additions) > MOST_ADDITIONS:
            raise _Met(_ALONE, f"blocks add more than {MOST_ADDITIONS} bytes")
        if self.adding and share.findings:
            raise _Met(_ALONE, "something was found, perhaps in the contents of sums that are not complete")
        races = self.runtime.block_races is not None
        if self._meet(self._written, share.reads) or self._meet(self._written, share.sums):
            raise _Met(_ALONE, "a block reads what another one wrote")
        if self._meet(self._added, share.reads):
            raise _Met(_ALONE, "a block reads what others add to")
        touched = self._written, self._added, self._read
        if races and (any(self._meet(bits, share.writes) for bits in touched) or self._meet(self._read, share.sums)):
            raise _Met(_ALONE, "blocks write to the same place")
        if self._meet(self._added, share.sums) and not self.adding:
            raise _Met(_ADDING, "blocks add to the same place")
        self._note(self._written, share.writes)
        self._note(self._added, share.sums)
        if races:
            self._note(self._read, share.reads)
        for uid, added in share.sums.items() if self.adding else ():
            bits = np.zeros(len(self.session.gm[uid].memory.data), bool)
            fill(bits, added)
            if self._meet({uid: bits}, share.writes):
                raise _Met(_ALONE, "a block writes and adds to the same place")

    def _meet(self, accessed: Mapping[int, np.ndarray], spans: Mapping[int, Spans]) -> bool:
        return any(uid in accessed and meets(accessed[uid], where) for uid, where in spans.items())

    def _note(self, accessed: dict[int, np.ndarray], spans: Mapping[int, Spans]) -> None:
        for uid, where in spans.items():
            if uid not in accessed:
                accessed[uid] = np.zeros(len(self.session.gm[uid].memory.data), bool)
            fill(accessed[uid], where)

    def _add(self, addition: Addition) -> None:
        """Add to global memory what a block added to a copy of it."""
        base, n0, s0, n1, s1, width = addition.piece
        memory = self.session.gm[addition.uid].memory
        target: np.ndarray = np.ndarray((n0, n1, width // 4), np.float32, memory.data, base, (s0, s1, 4))
        run: Any = atomic_add(target, np.frombuffer(addition.data, np.float32).reshape(target.shape))
        run()
        self._site(addition.site).retired.overflows += run.status.overflow
        if memory.defined is not None:
            np.ndarray((n0, n1, width), np.uint8, memory.defined, base, (s0, s1, 1))[...] = 1

    # -------------------------------------------------------------------------------------------- counts
    def _site(self, number: int) -> CallSite:
        return cast(CallSite, self.runtime.sites[number])

    def _finish(self) -> None:
        """Compute everything that follows from the order of the blocks."""
        cores, runtime = self.cores, self.runtime
        for cycles in self.cycles:
            start, core = cores.take(self.blocks)
            cores.give(core, start + cycles)
        for share in self._shares:
            for number, size in share.code_bytes.items():
                site = self._site(number)
                site.code_bytes = size if site.code_bytes is None else site.code_bytes
            for block, events in share.events.items():
                cores.trace.open(block).extend(_traced(*events))
            for finding in share.findings:
                runtime.found(finding)
        for share in self._shares:
            for location, message in share.warnings:
                runtime.warn(location, message)


def _send(pool: pools.Pool, process: int, *request: Any) -> None:
    pool.send(process, pickle.dumps(request, pickle.HIGHEST_PROTOCOL))


def _traced(shown: list[tuple], entries: list[tuple[int, float, float]]) -> Iterator[tuple[Any, float, float]]:
    """Return the events as a trace keeps them."""
    ops = []
    for name, pipe, category, location, reads, writes in shown:
        micro = SimpleNamespace(reads=_accesses(reads), writes=_accesses(writes))
        ops.append(SimpleNamespace(name=name, pipe=pipe, category=category, location=location, micro=micro))
    return ((ops[number], start, end) for number, start, end in entries)


def _accesses(names: list[str]) -> list[Any]:
    return [SimpleNamespace(operand=SimpleNamespace(name=name)) for name in names]
