"""The process that executes shares of blocks for the process that started it.

Requests come in through standard input, and answers go out through standard output. Output of the program goes to
standard error. The process ends when its standard input ends, also in the middle of a share, because nobody waits for
the answer any more.
"""

from __future__ import annotations

import os
import pickle
import queue
import signal
import threading
import traceback
import warnings
from collections import OrderedDict
from typing import Any, BinaryIO

import numpy as np

from ..errors import TikError
from ..machine.access_log import gather
from ..machine.calls.site import CallSite
from ..machine.cores import begin_block
from ..machine.execute import KEEP_BYTES, Session
from ..machine.inputs import Contents
from ..program.ir import Program, View
from .messages import Counts, Share, read, write

#: Sessions kept for later runs.
_KEPT = 8


class Blocks:
    """A session that executes some of the blocks of its program.

    Args:
        program, key: see :class:`Session`.
        keep_additions: see :class:`Journal`.
        given: uid, shape and contents of the GM tensors.
    """

    def __init__(self, program: Program, key: tuple, keep_additions: bool, given: list[tuple]) -> None:
        nodes = (*program.inputs, *program.outputs)
        infos = [*(node.tensor for node in nodes if isinstance(node, View)), *program.workspaces]
        self._infos = {info.uid: info for info in infos}
        self.session = Session(key, program, self._contents(given), keep_additions)
        self._bound: set[int] = set()

    def _contents(self, given: list[tuple]) -> list[Contents]:
        return [Contents(self._infos[uid], shape, fed) for uid, shape, fed in given]

    def begin(self, scalars: dict[str, Any], given: list[tuple]) -> None:
        """Begin a run."""
        self.session.begin(scalars, self._contents(given))

    def execute(self, first: int, count: int, traced: int, most: int) -> Share:
        """Execute ``count`` blocks.

        Args:
            first: number of the first block.
            count: how many.
            traced: blocks below this number keep their events.
            most: bytes of additions that are kept. After more bytes the share ends early.
        """
        runtime, journal, share = self.session.runtime, self.session.runtime.journal, Share(first)
        journal.clear()
        warned, found = len(runtime.warned), len(runtime.findings)
        for block in range(first, first + count):
            events: list | None = [] if block < traced else None
            if runtime.timing:
                runtime.clock.simulator.trace = events
            begin_block(runtime, block, 0.0)
            runtime.core.reset()
            self.session.compiled.main()
            share.cycles.append(runtime.clock.end_block() if runtime.timing else 0.0)
            if events is not None:
                share.events[block] = _events(events)
            if journal.additions_bytes > most:
                break
        share.reads, share.writes, share.sums = journal.reads(), journal.writes(), journal.sums()
        kept = (share.writes,) if journal.keep_additions else (share.writes, share.sums)
        for uid, where in (entry for group in kept for entry in group.items()):
            memory = self.session.gm[uid].memory
            marks = None if memory.defined is None else gather(memory.defined, where)
            share.written.append((uid, where, gather(memory.data, where), marks))
        share.additions = journal.additions if journal.keep_additions else None
        for number, site in enumerate(runtime.sites):
            if isinstance(site, CallSite) and site.code_bytes is not None and number not in self._bound:
                self._bound.add(number)
                share.code_bytes[number] = site.code_bytes
        share.warnings = list(runtime.warned)[warned:]
        share.findings = list(runtime.findings.values())[found:]
        return share

    def counts(self) -> Counts:
        """Return the counts of everything since the run began."""
        runtime, clock = self.session.runtime, self.session.runtime.clock
        if clock is not None:
            clock.settle()
        sites = [(number, site) for number, site in enumerate(runtime.sites) if isinstance(site, CallSite)]
        counts = Counts({number: site.tally() for number, site in sites})
        if clock is not None:
            simulator = clock.simulator
            counts.scalar_busy, counts.flags = simulator.scalar_busy, simulator.flags
            counts.waited, counts.events = simulator.waited, clock.events
        return counts


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


class Worker:
    """Answer requests.

    Args:
        answers: where the answers go.
    """

    def __init__(self, answers: BinaryIO) -> None:
        self._answers = answers
        self._sessions: OrderedDict[int, Blocks] = OrderedDict()
        self._current: Blocks | None = None

    def answer(self, request: bytes) -> None:
        """Do what a request asks for, and send the result."""
        try:
            kind, *arguments = pickle.loads(request)
            answer = getattr(self, kind)(*arguments)
        except TikError:
            answer = ("fault",)
        except BaseException:  # above all a lack of memory: the caller reports it
            answer = "failed", traceback.format_exc()
        try:
            write(self._answers, answer)
        except OSError:  # the caller does not listen any more
            os._exit(1)

    def open(self, number: int, key: tuple, keep_additions: bool, program: bytes | None, run: bytes) -> tuple:
        """Begin a run; ``number`` stands for the caller's session."""
        blocks = self._sessions.pop(number, None)
        if blocks is None and program is None:
            return ("missing",)
        scalars, given = pickle.loads(run)
        if blocks is None:
            try:
                unpickled = pickle.loads(program)
            except Exception as error:  # an argument may be of the user's own class, which may not unpickle here
                return "refused", f"{type(error).__name__}: {error}"
            blocks = Blocks(unpickled, key, keep_additions, given)
        self._current = blocks
        self._number = number
        blocks.begin(scalars, given)
        return ("ready",)

    def execute(self, first: int, count: int, traced: int, most: int) -> tuple:
        """See :meth:`Blocks.execute`."""
        return "share", self._current.execute(first, count, traced, most)

    def close(self) -> tuple:
        """End the run."""
        blocks, self._current = self._current, None
        counts = blocks.counts()
        if blocks.session.reusable:
            self._sessions[self._number] = blocks
        while len(self._sessions) > _KEPT or sum(kept.session.size for kept in self._sessions.values()) > KEEP_BYTES:
            self._sessions.popitem(last=False)
        return "counts", counts


def main() -> None:
    """Serve until standard input ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interruption is for the process that asks
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    warnings.simplefilter("ignore")  # the caller gives them
    arrived: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(requests, arrived), daemon=True).start()
    worker = Worker(answers)
    with np.errstate(all="ignore"):
        while True:
            worker.answer(arrived.get())


def _receive(requests: BinaryIO, arrived: queue.SimpleQueue[bytes]) -> None:
    try:
        while True:
            arrived.put(read(requests))
    except EOFError:
        os._exit(0)
