"""Time implementations in turns. A change of the machine's load then meets all of them alike."""

from __future__ import annotations

import json
import os
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from flash_attention.measuring.case import PASSES, Case

# Seconds until the threads of the implementation before have stopped spinning for more work.
PAUSE = 0.05
# Calls that are shorter are repeated in a turn until they take so many seconds together.
TURN = 0.05


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


def calls_in_turns(calls: dict[str, Callable], rounds: int) -> dict[str, list]:
    """Return the seconds of every call and returned function, in every round after a warm-up."""
    seconds: dict[str, list] = {name: [] for name in calls}
    for _ in range(rounds + 1):
        for name, call in calls.items():
            times, step = [], call
            while callable(step):
                start = time.perf_counter()
                step = step()
                times.append(time.perf_counter() - start)
            seconds[name].append(times)
    return {name: times[1:] for name, times in seconds.items()}


class Worker:
    """An implementation in its own process on `threads` cores."""

    def __init__(self, name: str, threads: int):
        self.name = name
        self.process = subprocess.Popen(
            [sys.executable, "-m", "flash_attention.measuring.worker", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            **on_cores(threads),
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.requests, self.answers, self.errors = self.process.stdin, self.process.stdout, self.process.stderr

    def ask(self, **request) -> dict:
        """Send one request, and return its answer."""
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
        """Prepare as `prepare` does.

        Raises:
            RuntimeError: the implementation cannot run the case; with the reason.
        """
        reason = self.prepare(case)
        if reason is not None:
            raise RuntimeError(f"{self.name} cannot run {case}: {reason}")

    def seconds(self, kind: str, least: float = 0.0) -> float:
        """Return the time of a call. A short call is repeated until the calls took `least` seconds."""
        return self.ask(time=kind, least=least)["seconds"]

    def extra_bytes(self, kind: str) -> int:
        """Return how much the peak of the process grows through one call."""
        return self.ask(memory=kind)["bytes"]

    def close(self) -> None:
        for pipe in (self.requests, self.answers, self.errors):
            pipe.close()
        self.process.wait()

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_) -> None:
        self.close()


def time_in_turns(
    workers: list[Worker], case: Case | list[Case], rounds: int, budget: float, kinds: tuple = PASSES
) -> tuple[list, dict]:
    """Return the timings of workers that take the case, and the others' reasons by name. `case` is one for all, or a
    list with one for each.

    In each round every pass of every implementation has its turn, after one call of each to warm up. Rounds end after
    `rounds`, or when `budget` seconds are over, but not before the third. With both passes timed, "backward" is their
    difference in each round.
    """
    reasons, running = {}, []
    for worker, own in zip(workers, case if isinstance(case, list) else [case] * len(workers)):
        reason = worker.prepare(own)
        if reason is None:
            running.append((worker, own))
        else:
            reasons[worker.name] = reason
    seconds: list[dict[str, list[float]]] = [{kind: [] for kind in kinds} for _ in running]
    for worker, _ in running:
        for kind in kinds:
            worker.seconds(kind)
    start = time.perf_counter()
    for number in range(rounds):
        if number >= min(3, rounds) and time.perf_counter() - start > budget:
            break
        for (worker, _), times in zip(running, seconds):
            if len(running) > 1:
                time.sleep(PAUSE)
            for kind in kinds:
                times[kind].append(worker.seconds(kind, TURN))
    timings = []
    for (worker, own), times in zip(running, seconds):
        if set(kinds) == set(PASSES):
            times["backward"] = [both - forward for forward, both in zip(times["forward"], times["both"])]
        timings += [Timing(worker.name, own, kind, tuple(values)) for kind, values in times.items()]
    return timings, reasons


def time_alone(
    worker: Worker, case: Case, rounds: int, budget: float = 20.0, kinds: tuple = PASSES
) -> dict[str, Timing]:
    """Return the timings of one worker by pass, otherwise as `time_in_turns`.

    Raises:
        RuntimeError: it cannot run the case; with the reason.
    """
    timings, reasons = time_in_turns([worker], case, rounds, budget, kinds)
    for name, reason in reasons.items():
        raise RuntimeError(f"{'backend cpu' if name == 'flash' else name} cannot run {case}: {reason}")
    return {timing.kind: timing for timing in timings}
