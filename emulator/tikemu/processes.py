"""Blocks of one program in several processes (``Options(processes=...)``).

The blocks of a program depend on each other only through global memory. A run with results spends nearly all its time
in them, so other processes may execute them. The results are the same to the last bit, whatever the blocks do:

* The processes are new interpreters of :class:`concurrent.futures.ProcessPoolExecutor`, never forks. After MindSpore
  has run graphs, the caller holds threads and locks that a fork would copy in any state.
* They share a copy of global memory. Each executes shares of consecutive blocks there, and notes which bytes it reads
  and writes (:mod:`tikemu.machine.access_log`).
* A byte that one share writes may be touched by no other share. If it is, the results may be wrong. The caller then
  executes the program alone, from the first block on. It does so in later runs too.
* Several shares may add to the same bytes of a tensor declared with ``is_atomic_add``, but their order decides about
  the last bit. So the run begins again. This time the processes send the added numbers, and the caller adds them in
  the order of the blocks. Later runs do so at once.
* If a block breaks a rule, the caller executes the program too, and meets the error that comes first in one process.

Cycles of a block do not depend on its start, so the caller only distributes the blocks over the cores.
"""

from __future__ import annotations

import dataclasses
import itertools
import logging
import multiprocessing
import os
import pickle
import signal
import sys
import threading
import traceback
import warnings
import weakref
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import wait as wait_for_end
from multiprocessing.context import SpawnContext, SpawnProcess
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple, cast

import numpy as np

from . import environment
from .errors import TikError, TikProcessError
from .findings import Finding
from .isa.move import atomic_add
from .machine import execute
from .machine.access_log import ADDED, READ, WRITTEN, Addition, Spans
from .machine.calls.site import CallSite
from .machine.cores import Cores, begin_block
from .machine.counters import Tally
from .machine.execute import Session
from .machine.inputs import Contents
from .machine.memories import GlobalTensor
from .program import ir
from .program.location import warn
from .result import Result

#: Shares per process at least, if there are enough blocks.
_SHARES = 16
#: Sessions that a process keeps for later runs.
_KEPT = 8
#: Seconds that the caller waits for shares that nobody wants any more. New processes start in about this time.
_MOMENT = 0.3

#: How another share may not have touched bytes that a share touches in this way.
_FORBIDDEN = {READ: WRITTEN | ADDED, WRITTEN: READ | WRITTEN | ADDED, ADDED: READ | WRITTEN}

_told: dict = {}  # warnings
_log = logging.getLogger("tikemu.processes")


def run(program: ir.Program, inputs: Mapping[str, Any], **how: Any) -> Result:
    """Execute a program as :func:`tikemu.machine.execute.run` does, in several processes if its options say so."""
    return execute.run(program, inputs, elsewhere=run_in_processes, **how)


#: Ways to run a program: blocks add to global memory, the caller does, or the caller executes every block.
_DIRECT, _ADDING, _ALONE = "directly", "again, and the caller adds", "in one process"


class _Met(Exception):
    """Blocks have met, or something was reported. The only argument says why the program has to run in one process."""

    way = _ALONE


class _Added(_Met):
    """Blocks have added to the same place."""

    way = _ADDING


class _Unsendable(_Met):
    """The program cannot be sent to another process."""


@dataclasses.dataclass
class Share:
    """Hold the results of consecutive blocks.

    Attributes:
        cycles: of each block.
        touched: bytes of global memory that were read, written and added to, by uid and kind.
        additions: the atomic additions that wait for the caller.
        events: of the traced blocks, by number (see :func:`_events`).
        code_bytes: of calls that were bound, by number of the site.
        warnings, findings: what was reported for the first time, in the order of the blocks.
    """

    cycles: list[float] = dataclasses.field(default_factory=list)
    touched: dict[int, dict[int, Spans]] = dataclasses.field(default_factory=dict)
    additions: list[Addition] = dataclasses.field(default_factory=list)
    events: dict[int, Any] = dataclasses.field(default_factory=dict)
    code_bytes: dict[int, int] = dataclasses.field(default_factory=dict)
    warnings: list[tuple[ir.Location, str]] = dataclasses.field(default_factory=list)
    findings: list[Finding] = dataclasses.field(default_factory=list)


class Job(NamedTuple):
    """Say what runs: number of the caller's session and of the run, places of the program and of global memory.

    With ``adding`` the caller adds what blocks add atomically.
    """

    session: int
    run: int
    adding: bool
    program: str
    memory: str
    scalars: dict[str, Any]


# -------------------------------------------------------------------------------------------------- shared memory
class _SharedBytes:
    """Bytes that other processes open by ``path``. The system frees them with the last process that has them."""

    def __init__(self, size: int) -> None:
        descriptor = os.memfd_create("tikemu")
        weakref.finalize(self, os.close, descriptor)
        os.ftruncate(descriptor, max(1, size))
        self.path = f"/proc/{os.getpid()}/fd/{descriptor}"
        self.array = _opened(self.path)


def _opened(path: str) -> np.ndarray:
    return np.asarray(np.memmap(path, np.uint8, "r+"))


def _parts(gm: Mapping[int, GlobalTensor]) -> list[np.ndarray]:
    """Return contents and marks of all tensors, as they follow each other in shared memory."""
    memories = [tensor.memory for tensor in gm.values()]
    return [part for memory in memories for part in (memory.data, memory.defined) if part is not None]


def _cut(shared: np.ndarray, parts: list[np.ndarray]) -> list[np.ndarray]:
    """Return the place of each part in shared memory."""
    ends = itertools.accumulate(map(len, parts))
    return [shared[end - len(part) : end] for part, end in zip(parts, ends)]


class _Shared:
    """A session's program and global memory where other processes find them."""

    numbers = itertools.count()

    def __init__(self, session: Session, tensors: list[Contents]) -> None:
        options = dataclasses.replace(session.key[0], processes=1, progress=False)
        program = dataclasses.replace(session.program, config={})
        shapes = [Contents(info, shape, None) for info, shape, _ in tensors]
        try:
            pickled = pickle.dumps((program, (options, *session.key[1:]), shapes), pickle.HIGHEST_PROTOCOL)
        except Exception as error:  # whatever the classes of the user's objects raise
            raise _Unsendable(f"{type(error).__name__}: {error}") from None
        self.program = _SharedBytes(len(pickled))
        self.program.array[:] = np.frombuffer(pickled, np.uint8)
        self.memory = _SharedBytes(sum(map(len, _parts(session.gm))))
        self.number, self.runs = next(self.numbers), itertools.count()

    def job(self, adding: bool, scalars: Mapping[str, Any]) -> Job:
        """Begin another run."""
        return Job(self.number, next(self.runs), adding, self.program.path, self.memory.path, dict(scalars))


# ------------------------------------------------------------------------------------------------ the other processes
class _Worker:
    """The session of a process that executes some of the blocks of a program."""

    def __init__(self, job: Job) -> None:
        try:
            program, key, tensors = pickle.loads(_opened(job.program).data)
        except Exception as error:  # an argument may be of the user's own class, which may not unpickle here
            raise _Unsendable(f"{type(error).__name__}: {error}") from None
        self.session = Session(key, program, tensors, journal=True)
        memories = [tensor.memory for tensor in self.session.gm.values()]
        places = iter(_cut(_opened(job.memory), _parts(self.session.gm)))
        for memory in memories:
            memory.place(next(places), None if memory.defined is None else next(places))
        self.run = -1

    def begin(self, job: Job) -> None:
        """Begin a run, unless it has begun."""
        if self.run != job.run:
            self.run, self.session.runtime.journal.adding = job.run, job.adding
            self.session.begin(job.scalars, [])

    def execute(self, first: int, count: int, traced: int) -> Share:
        """Execute ``count`` blocks from ``first`` on. Blocks below ``traced`` keep their events."""
        runtime, journal, share = self.session.runtime, self.session.runtime.journal, Share()
        journal.clear()
        warned, found = len(runtime.warned), len(runtime.findings)
        for block in range(first, first + count):
            events: list | None = [] if block < traced else None
            if runtime.timing:
                runtime.clock.simulator.trace = events
            begin_block(runtime, block, 0.0)
            runtime.core.reset()
            try:
                self.session.compiled.main()
            except TikError:
                raise _Met("a block breaks a rule") from None
            share.cycles.append(runtime.clock.end_block() if runtime.timing else 0.0)
            if events is not None:
                share.events[block] = _events(events)
        share.touched, share.additions = journal.touched(), journal.additions
        share.code_bytes = {number: site.code_bytes for number, site in self._sites() if site.code_bytes is not None}
        share.warnings = list(runtime.warned)[warned:]
        share.findings = list(runtime.findings.values())[found:]
        return share

    def _sites(self) -> Iterator[tuple[int, CallSite]]:
        sites = enumerate(self.session.runtime.sites)
        return ((number, site) for number, site in sites if isinstance(site, CallSite))

    def counts(self) -> tuple[dict[int, Tally], tuple | None]:
        """Return the counts since the run began: of the calls by number, and of the clock."""
        clock = self.session.runtime.clock
        if clock is not None:
            clock.settle()
        tallies = {number: site.tally() for number, site in self._sites()}
        if clock is None:
            return tallies, None
        simulator = clock.simulator
        return tallies, (simulator.scalar_busy, simulator.flags, simulator.waited, clock.events)


_workers: OrderedDict[int, _Worker] = OrderedDict()
_barrier: Any = None


def _execute(job: Job, first: int, count: int, traced: int) -> Share:
    worker = _workers.pop(job.session, None)
    if worker is not None and worker.run != job.run and not worker.session.reusable:
        worker = None
    while len(_workers) >= _KEPT or worker is None and _bytes_kept() > execute.KEEP_BYTES:
        _workers.popitem(last=False)
    worker = _workers[job.session] = worker or _Worker(job)
    worker.begin(job)
    return worker.execute(first, count, traced)


def _bytes_kept() -> int:
    return sum(worker.session.size for worker in _workers.values())


def _counts(job: Job) -> tuple[dict[int, Tally], tuple | None]:
    """Return the counts of this process. Each process answers once, as it waits for the others."""
    _barrier.wait()
    worker = _workers.get(job.session)
    return ({}, None) if worker is None or worker.run != job.run else worker.counts()


def _events(events: list) -> tuple[list[tuple], list[tuple[int, float, float]]]:
    """Return the events without their operations. An event has what a trace shows of its operation, and (number, start,
    end).
    """
    numbers: dict[int, int] = {}
    shown: list[tuple] = []
    entries: list[tuple[int, float, float]] = []
    for op, start, end in events:
        number = numbers.get(id(op))
        if number is None:
            number = numbers[id(op)] = len(shown)
            reads, writes = ([access.operand.name for access in group] for group in (op.micro.reads, op.micro.writes))
            shown.append((op.name, op.pipe, op.category, op.location, reads, writes))
        entries.append((number, start, end))
    return shown, entries


def _traced(shown: list[tuple], entries: list[tuple[int, float, float]]) -> Iterator[tuple[Any, float, float]]:
    """Return the events as a trace keeps them."""

    def accesses(names: list[str]) -> list[Any]:
        return [SimpleNamespace(operand=SimpleNamespace(name=name)) for name in names]

    ops = []
    for name, pipe, category, location, reads, writes in shown:
        micro = SimpleNamespace(reads=accesses(reads), writes=accesses(writes))
        ops.append(SimpleNamespace(name=name, pipe=pipe, category=category, location=location, micro=micro))
    return ((ops[number], start, end) for number, start, end in entries)


# --------------------------------------------------------------------------------------------------------- the pool
class _Process(SpawnProcess):
    """Execute blocks in a new interpreter. It neither imports the caller's main module nor hears Ctrl-C."""

    def start(self) -> None:
        main, mask = sys.modules["__main__"], signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        sys.modules["__main__"] = ModuleType("__main__")
        try:
            super().start()
        finally:
            sys.modules["__main__"] = main
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        _processes.append(self)


class _Context(SpawnContext):
    Process = _Process


def _prepare(barrier: Any) -> None:
    """Set the state of a new process."""
    global _barrier
    _barrier = barrier
    parent = multiprocessing.parent_process().sentinel
    threading.Thread(target=lambda: (wait_for_end([parent]), os._exit(1)), daemon=True).start()
    os.dup2(2, 1)
    warnings.simplefilter("ignore")  # the caller gives them
    np.seterr(all="ignore")


_lock = threading.Lock()
_processes: list[_Process] = []
_pool: tuple[int, ProcessPoolExecutor] | None = None
_shared: weakref.WeakKeyDictionary[Session, _Shared] = weakref.WeakKeyDictionary()


def _take(count: int) -> ProcessPoolExecutor:
    """Return the pool, whose processes are kept for the next run."""
    global _pool
    # Not is_alive(): a process that a thread of the pool is waiting for counts as alive there.
    if _pool is None or _pool[0] != count or wait_for_end([process.sentinel for process in _processes], 0):
        end_processes()
        context = _Context()
        _pool = count, ProcessPoolExecutor(count, context, _prepare, (context.Barrier(count),))
    return _pool[1]


def end_processes() -> None:
    """End the processes now, whatever they do. Later runs start new ones."""
    global _pool
    for process in _processes:
        process.kill()
    if _pool is not None:
        _pool[1].shutdown(cancel_futures=True)
    _pool = None
    _processes.clear()


def _forget() -> None:
    """Start anew in a forked process, which has neither the threads nor the processes."""
    global _lock, _pool
    _abandoned.append((_pool, list(_processes)))
    _lock, _pool = threading.Lock(), None
    _processes.clear()
    _shared.clear()


_abandoned: list[Any] = []
os.register_at_fork(after_in_child=_forget)


def _ended() -> TikProcessError:
    """Return the error for a process that has ended. The executor has ended the others by SIGTERM."""
    processes = list(_processes)
    if _pool is not None:
        _pool[1].shutdown()
    codes = {process.pid: process.exitcode for process in processes}
    pid, code = next(((pid, code) for pid, code in codes.items() if code not in (None, 0, -signal.SIGTERM)), (0, None))
    if code is None:
        return TikProcessError(f"a process that executes blocks has ended, and nobody knows how (one of {list(codes)})")
    how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
    hint = "; the system may have run out of memory" if code == -signal.SIGKILL else ""
    return TikProcessError(f"a process that executes blocks (pid {pid}) {how}{hint}")


# ------------------------------------------------------------------------------------------------------- the caller
def run_in_processes(session: Session, cores: Cores, scalars: Mapping[str, Any], tensors: list[Contents]) -> bool:
    """Run the program of a session that has begun, if its options ask for processes.

    Args:
        session: the caller's session. Afterwards its global memory and its counts are as if it had executed the blocks.
        cores: gets the times of the cores, and the trace.
        scalars, tensors: what the run is given.

    Returns:
        Whether the program was run. If not, the session is in its state before the first block.
    """
    asked = session.key[0].processes
    count = min(environment.processes() if asked is None else asked, session.key[3] or 1)
    modes = vars(session.program).setdefault("_modes", {})
    if count == 1 or _needs_order(session):
        return False
    name = session.program.name
    while modes.setdefault(session.key, _DIRECT) != _ALONE:
        try:
            with _lock:
                _Run(session, cores, modes[session.key] == _ADDING).run(count, scalars, tensors)
            return True
        except _Met as met:
            modes[session.key] = met.way
            if isinstance(met, _Unsendable):
                warn(f"kernel {name!r} cannot be sent to other processes, so it runs in one: {met}", told=_told)
            else:
                _log.info("kernel %s: %s; it runs %s", name, met, met.way)
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
    """Run a program once in several processes.

    Args:
        session, cores: see :func:`run_in_processes`.
        adding: the caller adds what blocks add atomically.
    """

    def __init__(self, session: Session, cores: Cores, adding: bool) -> None:
        self.session, self.cores, self.adding, self.runtime = session, cores, adding, session.runtime
        self.blocks: int = session.key[3]
        memories = {uid: tensor.memory for uid, tensor in session.gm.items()}
        self._touched = {uid: np.zeros(len(memory.data), np.uint8) for uid, memory in memories.items()}
        self._shares: list[Share] = []

    def run(self, count: int, scalars: Mapping[str, Any], tensors: list[Contents]) -> None:
        """Execute all blocks in ``count`` processes.

        Raises:
            _Met: they have to be executed in another way.
        """
        shared = _shared.get(self.session) or _shared.setdefault(self.session, _Shared(self.session, tensors))
        parts = _parts(self.session.gm)
        if parts:
            np.concatenate(parts, out=shared.memory.array)
        job, futures = shared.job(self.adding, scalars), []
        trace, options = self.cores.trace, self.runtime.options
        traced = trace.cores if trace is not None and options.max_trace_events > 0 else 0
        length = max(1, self.blocks // (_SHARES * count))
        try:
            pool = _take(count)
            for first in range(0, self.blocks, length):
                futures.append(pool.submit(_execute, job, first, min(length, self.blocks - first), traced))
            for future in futures:
                self._enter(future.result())
            counts = [future.result() for future in [pool.submit(_counts, job) for _ in range(count)]]
        except _Met:
            self._leave(futures)
            raise
        except BrokenProcessPool:
            error = _ended()
            end_processes()
            raise error from None
        except Exception as error:
            end_processes()
            raise TikProcessError(
                "a process that executes blocks has failed:\n" + "".join(traceback.format_exception(None, error, None))
            ) from error
        except BaseException:
            end_processes()
            raise
        # What the processes wrote; what was added is here already.
        touched = (flags for uid in self.session.gm for flags in self._flags(uid))
        for part, place, flags in zip(parts, _cut(shared.memory.array, parts), touched):
            np.copyto(part, place, where=flags != ADDED if self.adding else True)
        for tallies, clock in counts:
            for number, tally in tallies.items():
                self._site(number).retired.merge(tally)
            if clock is not None:
                self.runtime.clock.add_counts(*clock)
        self._finish()

    def _leave(self, futures: list[Future]) -> None:
        """Leave shares that nobody wants any more."""
        for future in futures:
            future.cancel()
        if wait(futures, _MOMENT).not_done:
            end_processes()

    def _flags(self, uid: int) -> list[np.ndarray]:
        """Return how the bytes of each part of a tensor were touched."""
        return [self._touched[uid]] * (1 if self.session.gm[uid].memory.defined is None else 2)

    # -------------------------------------------------------------------------------------------- what shares did
    def _enter(self, share: Share) -> None:
        """Compare a share with all before it, and do what it adds."""
        for uid, kinds in share.touched.items():
            flags, name = self._touched[uid], self.session.gm[uid].info.name
            pieces = [
                (flags[start:end], flag)
                for flag, (starts, ends) in kinds.items()
                for start, end in zip(starts.tolist(), ends.tolist())
            ]
            added = [piece for piece, flag in pieces if flag == ADDED]
            if any((piece & _FORBIDDEN[flag]).any() for piece, flag in pieces):
                raise _Met(f"blocks write to {name!r} where others read, write or add")
            if not self.adding and any((piece & ADDED).any() for piece in added):
                raise _Added(f"blocks add to the same place of {name!r}")
            for piece, flag in pieces:
                piece |= flag
            if self.adding and any((piece > ADDED).any() for piece in added):
                raise _Met(f"a block adds to {name!r} where it reads or writes")
        for addition in share.additions:
            self._add(addition)
        share.touched, share.additions = {}, []
        self._shares.append(share)
        self.session.progress.block(sum(len(share.cycles) for share in self._shares), self.blocks)

    def _add(self, addition: Addition) -> None:
        """Add to global memory what a block has added."""
        base, n0, s0, n1, s1, width = addition.piece
        memory = self.session.gm[addition.uid].memory
        target: np.ndarray = np.ndarray((n0, n1, width // 4), np.float32, memory.data, base, (s0, s1, 4))
        run: Any = atomic_add(target, np.frombuffer(addition.data, np.float32).reshape(target.shape))
        run()
        self._site(addition.site).retired.overflows += run.status.overflow
        if memory.defined is not None:
            np.ndarray((n0, n1, width), np.uint8, memory.defined, base, (s0, s1, 1))[...] = 1

    def _site(self, number: int) -> CallSite:
        return cast(CallSite, self.runtime.sites[number])

    def _finish(self) -> None:
        """Compute everything that follows from the order of the blocks."""
        cores, runtime = self.cores, self.runtime
        for cycles in itertools.chain.from_iterable(share.cycles for share in self._shares):
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
