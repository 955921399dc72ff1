"""Time calls in turns. A change of the machine's load then meets all of them alike.

Calls of this process are timed by `medians`, whole implementations by `time_in_turns`. Each implementation has a
process of its own, so that thread pools and memory of one do not meet another's: a `Worker`, which runs this module.
The process imports what it needs at once, so that processes that are started together import side by side. It reads
requests and writes answers, one JSON object a line: {"prepare": case}, {"time": pass, "least": seconds} and
{"memory": pass}.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from flash_attention.measuring.case import PASSES, Case
from flash_attention.measuring.implementations import KNOWN

# Seconds until the threads of the implementation before have stopped spinning for more work.
PAUSE = 0.05
# Calls that are shorter are repeated in a turn until they take so many seconds together.
TURN = 0.05


def rounds_in_turns(steps: Sequence[Callable[[], Any]], rounds: int, budget: float = float("inf")) -> list[list]:
    """Return the results of each step in every round after a warm-up.

    Rounds end after `rounds`, or as soon as `budget` seconds are over, but not before the third.
    """
    for step in steps:
        step()
    found: list[list] = [[] for _ in steps]
    start = time.perf_counter()
    for number in range(rounds):
        if number >= min(3, rounds) and time.perf_counter() - start > budget:
            break
        for step, results in zip(steps, found):
            results.append(step())
    return found


def medians(calls: dict[str, Callable], rounds: int) -> dict[str, list[float]]:
    """Return the median seconds of every call, and of the functions that follow: a call may return the next one."""

    def chain(call: Any) -> list[float]:
        seconds = []
        while callable(call):
            start = time.perf_counter()
            call = call()
            seconds.append(time.perf_counter() - start)
        return seconds

    found = rounds_in_turns([partial(chain, call) for call in calls.values()], rounds)
    return {name: list(map(statistics.median, zip(*seconds))) for name, seconds in zip(calls, found)}


def least_seconds(call: Callable[[], object], count: int = 10) -> float:
    """Return the shortest of so many calls."""
    return min(elapsed(call) for _ in range(count))


def median_seconds(call: Callable[[], object], least: float) -> float:
    """Return the time of a call. If it is short, take the median of later ones until all took `least` seconds.

    The first call wakes the threads. Calls that follow each other, as in training, need not do so.
    """
    times: list[float] = []
    while not times or sum(times) < least:
        times.append(elapsed(call))
    return statistics.median(times[1:] or times)


def elapsed(call: Callable[[], object], clock: Callable[[], float] | None = None) -> float:
    """Return the seconds of one call, by `time.perf_counter` if no clock is given."""
    clock = clock or time.perf_counter
    start = clock()
    call()
    return clock() - start


def extra_bytes(call: Callable[[], object]) -> int:
    """Return how much one call raises the peak of the resident size. Freed heap is given back to the system before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    before = _resident_bytes("VmRSS")
    call()
    return _resident_bytes("VmHWM") - before


def _resident_bytes(field: str) -> int:
    text = Path("/proc/self/status").read_text(encoding="ascii")
    (kilobytes,) = re.findall(rf"^{field}:\s*(\d+)", text, re.MULTILINE)
    return int(kilobytes) * 1024


@dataclass(frozen=True)
class Timing:
    """Hold the seconds of every round of one implementation. A timing is of one case and one pass ("forward", "both" or
    "backward").
    """

    implementation: str
    case: Case
    kind: str
    seconds: tuple

    @property
    def median(self) -> float:
        return statistics.median(self.seconds)

    @property
    def gflops(self) -> float:
        """Return the rate of the products on visible pairs, 1e9 operations a second."""
        return self.case.flops(self.kind) / self.median / 1e9


def environment(**more: str) -> dict[str, str]:
    """Return the environment for a process that imports this package, with `more` variables."""
    root = str(Path(__file__).resolve().parents[2])
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [root, os.environ.get("PYTHONPATH")])), **more}


def on_cores(threads: int) -> dict:
    """Return the arguments of a subprocess that computes on so many cores."""
    cores = sorted(os.sched_getaffinity(0))[:threads]
    # Unless told otherwise, threads of NumPy's product spin for 2^26 cycles, which is through the next turn.
    variables = environment(OMP_NUM_THREADS=str(threads), OPENBLAS_THREAD_TIMEOUT="20")
    return {"text": True, "env": variables, "preexec_fn": lambda: os.sched_setaffinity(0, cores)}


class Worker:
    """An implementation in its own process on `threads` cores."""

    def __init__(self, name: str, threads: int):
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", __name__, name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **on_cores(threads),
        )
        assert self.process.stdin and self.process.stdout
        self.requests, self.answers = self.process.stdin, self.process.stdout

    def ask(self, **request) -> dict:
        """Send one request, and return its answer."""
        with contextlib.suppress(BrokenPipeError):  # it has died, which the next line finds
            self.requests.write(json.dumps(request) + "\n")
            self.requests.flush()
        line = self.answers.readline()
        if not line:
            _, printed = self.process.communicate()
            # MindSpore prints its own call stack after the line that says what happened.
            errors = [line for line in printed.splitlines() if re.match(r"\w+(Error|Exception|Exit)\b", line)]
            reason = errors[-1] if errors else "no message; it may have run out of memory"
            raise RuntimeError(f"implementation {self.name} died with status {self.process.returncode}: {reason}")
        return json.loads(line)

    def prepare(self, case: Case) -> str | None:
        """Make the inputs of `case`; return why the implementation cannot run it, or None."""
        return self.ask(prepare=asdict(case))["refused"]

    def require(self, case: Case) -> None:
        """Prepare as `prepare` does."""
        reason = self.prepare(case)
        if reason is not None:
            raise RuntimeError(f"{self.name} cannot run {case}: {reason}")

    def seconds(self, kind: str, least: float = 0.0) -> float:
        """Return the time of a call, see `median_seconds`."""
        return self.ask(time=kind, least=least)["seconds"]

    def extra_bytes(self, kind: str) -> int:
        """Return how much the peak of the process grows through one call."""
        return self.ask(memory=kind)["bytes"]

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *error) -> None:
        self.process.__exit__(*error)  # closes the pipes, at which the process ends


@contextlib.contextmanager
def working(names: Iterable[str], threads: int) -> Iterator[list[Worker]]:
    """Start a worker for each name; they import side by side."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Worker(name, threads)) for name in names]


def time_in_turns(
    workers: Sequence[Worker],
    case: Case | Sequence[Case],
    rounds: int,
    budget: float = 20.0,
    kinds: Sequence[str] = PASSES,
) -> tuple[list[Timing], dict[str, str]]:
    """Return the timings of workers that take the case, and the others' reasons by name. `case` is one for all, or a
    list with one for each.

    In each round every pass of every implementation has its turn, see `rounds_in_turns`. With both passes timed,
    "backward" is their difference in each round.
    """
    reasons, running = {}, []
    for worker, own in zip(workers, [case] * len(workers) if isinstance(case, Case) else case):
        reason = worker.prepare(own)
        if reason is None:
            running.append((worker, own))
        elif worker.name == "flash":
            raise RuntimeError(f"backend cpu cannot run {own}: {reason}")
        else:
            reasons[worker.name] = reason

    def turn(worker: Worker) -> list[float]:
        if len(running) > 1:
            time.sleep(PAUSE)
        return [worker.seconds(kind, TURN) for kind in kinds]

    timings = []
    found = rounds_in_turns([partial(turn, worker) for worker, _ in running], rounds, budget)
    for (worker, own), results in zip(running, found):
        times = dict(zip(kinds, zip(*results)))
        if set(kinds) == set(PASSES):
            times["backward"] = tuple(both - forward for forward, both in zip(times["forward"], times["both"]))
        timings += [Timing(worker.name, own, kind, seconds) for kind, seconds in times.items()]
    return timings, reasons


def serve(name: str) -> None:
    """Answer on the original standard output; whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    implementation = KNOWN[name]()
    with contextlib.suppress(ImportError):  # an error is told when something is asked
        implementation.load()
    calls: dict = {}
    for line in sys.stdin:
        request = json.loads(line)
        if "prepare" in request:
            calls = {}
            gc.collect()
            case = Case(**request["prepare"])
            reason = implementation.unavailable() or implementation.refuse(case)
            if reason is None:
                calls = implementation.prepare(case)
            answer: dict = {"refused": reason}
        elif "time" in request:
            answer = {"seconds": median_seconds(calls[request["time"]], request["least"])}
        else:
            answer = {"bytes": extra_bytes(calls[request["memory"]])}
        answers.write(json.dumps(answer) + "\n")
    sys.stderr.flush()
    os._exit(0)  # every answer is out, and MindSpore would take half a second to end


if __name__ == "__main__":
    serve(sys.argv[1])
