"""Processes that execute blocks: started when they are needed, kept for the next run, ended with the interpreter."""

from __future__ import annotations

import atexit
import contextlib
import itertools
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
import weakref
from io import BufferedReader, BufferedWriter
from pathlib import Path
from typing import BinaryIO, cast

from ..errors import TikProcessError
from .messages import read, send

_BOOT = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from tikemu.processes.worker import main; main()"
#: Seconds that a process has to end by itself.
_PATIENCE = 5.0
#: Seconds that the caller waits for processes with work that nobody wants any more. New ones start in about this time.
_MOMENT = 0.3


class Pool:
    """Processes, each with a pipe in both directions.

    Args:
        count: how many.

    Attributes:
        known: per process, the numbers of the sessions that have sent their program to it.
    """

    def __init__(self, count: int) -> None:
        if not sys.executable:
            raise TikProcessError("several processes need sys.executable, the path of the interpreter, which is empty")
        paths = [str(Path(__file__).parents[2]), *(os.path.abspath(path) for path in sys.path)]
        self._arrived: queue.SimpleQueue[tuple[int, bytes | None]] = queue.SimpleQueue()
        self._processes: list[subprocess.Popen] = []
        self._readers: list[threading.Thread] = []
        self.known: list[set[int]] = [set() for _ in range(count)]
        self._unanswered = 0
        _pools.add(self)
        try:
            for number in range(count):
                # In a session of its own Ctrl-C of the terminal does not reach it. It ends with its input.
                process = subprocess.Popen(
                    [sys.executable, "-c", _BOOT, json.dumps(paths)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    start_new_session=True,
                )
                self._processes.append(process)
                reader = threading.Thread(
                    target=_receive, args=(process.stdout, number, self._arrived), name="tikemu-reader", daemon=True
                )
                reader.start()
                self._readers.append(reader)
        except OSError as error:
            self.kill()
            raise TikProcessError(f"a process for blocks cannot be started: {error}") from error

    def __len__(self) -> int:
        return len(self._processes)

    @property
    def pids(self) -> list[int]:
        """Return the process ids."""
        return [process.pid for process in self._processes]

    @property
    def alive(self) -> bool:
        """Return whether all of them run."""
        return all(process.poll() is None for process in self._processes)

    def send(self, number: int, request: bytes) -> None:
        """Send a request to a process, which answers each one."""
        self._unanswered += 1
        try:
            send(cast(BinaryIO, self._processes[number].stdin), request)
        except OSError:
            self._ended(number)

    def receive(self, timeout: float | None = None) -> tuple[int, bytes]:
        """Return the next answer and the number of its process."""
        number, answer = self._arrived.get(timeout=timeout)
        if answer is None:
            self._ended(number)
        self._unanswered -= 1
        return number, answer

    def drain(self) -> bool:
        """Wait a moment for the open answers, which nobody wants any more. Returns whether they have come."""
        with contextlib.suppress(queue.Empty, TikProcessError):
            end = time.monotonic() + _MOMENT
            while self._unanswered:
                self.receive(max(0.0, end - time.monotonic()))
        return not self._unanswered

    def _ended(self, number: int) -> None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._processes[number].wait(_PATIENCE)
        code = self._processes[number].poll()
        if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:  # the system keeps no exit code then
            raise TikProcessError(
                f"a process that executes blocks (pid {self.pids[number]}) has ended; SIGCHLD is ignored here, so "
                "nobody knows how"
            )
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with exit code {code}"
        hint = "; the system may have run out of memory" if code == -9 else ""
        raise TikProcessError(f"a process that executes blocks (pid {self.pids[number]}) {how}{hint}")

    def close(self) -> None:
        """Let them end."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process in self._processes:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_PATIENCE)
        self.kill()

    def kill(self) -> None:
        """End them now, whatever they do."""
        for process in self._processes:
            process.kill()
        for process in self._processes:
            process.wait()
            with contextlib.suppress(OSError):
                process.stdin.close()
        for reader, process in zip(self._readers, self._processes):
            reader.join()
            process.stdout.close()

    def abandon(self) -> None:
        """Forget the processes in a fork: they are not ours, and must not wait for us when they end."""
        for process in self._processes:
            for stream in (cast(BufferedWriter, process.stdin), cast(BufferedReader, process.stdout)):
                with contextlib.suppress(OSError):
                    stream.raw.close()  # not the buffer: a thread may have held its lock
            process.returncode = 0  # so that nothing waits for a process that is no child of ours


def _receive(stream: BinaryIO, number: int, arrived: queue.SimpleQueue[tuple[int, bytes | None]]) -> None:
    try:
        while True:
            arrived.put((number, read(stream)))
    except (EOFError, OSError):
        arrived.put((number, None))


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()
_idle: list[Pool] = []
_lock = threading.Lock()
#: Numbers for sessions, never used twice.
numbers = itertools.count(1)


def take(count: int) -> Pool:
    """Return a pool of ``count`` processes, for the caller alone."""
    with _lock:
        idle, _idle[:] = list(_idle), []
    chosen = None
    for pool in idle:
        if chosen is None and len(pool) == count and pool.alive:
            chosen = pool
        else:
            pool.close()
    return Pool(count) if chosen is None else chosen


def give(pool: Pool) -> None:
    """Keep a pool for the next run."""
    with _lock:
        _idle.append(pool)


def _close_all() -> None:
    while _idle:
        _idle.pop().close()


def _forget() -> None:
    """Start anew in a forked process."""
    global _lock
    _lock = threading.Lock()
    _idle.clear()
    for pool in list(_pools):
        pool.abandon()
    _pools.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
