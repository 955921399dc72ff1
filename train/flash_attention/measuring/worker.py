"""A process that runs one implementation: reads requests and writes answers, one JSON object a line.

It imports what it needs at once, so that processes that are started together import side by side.

Requests: {"prepare": case}, {"time": pass, "least": seconds}, {"memory": pass}. Each implementation has a process of
its own, so that thread pools and memory of one do not meet another's.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

#: Where the implementations are, below `flash_attention`.
KNOWN = {
    **{name: f"measuring.implementations.{name.capitalize()}" for name in ("flash", "torch", "composed", "gemm")},
    "multiply_adds": "measuring.implementations.MultiplyAdds",
}


def serve(name: str) -> None:
    """Answer on the original standard output; whatever libraries print goes to standard error."""
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)

    from flash_attention.measuring.case import Case

    module, _, kind = KNOWN[name].rpartition(".")
    implementation = getattr(importlib.import_module(f"flash_attention.{module}"), kind)()
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
            answer = {"seconds": seconds_of(calls[request["time"]], request["least"])}
        else:
            answer = {"bytes": extra_bytes(calls[request["memory"]])}
        answers.write(json.dumps(answer) + "\n")
    sys.stderr.flush()
    os._exit(0)  # every answer is out, and MindSpore would take half a second to end


def seconds_of(call: Callable[[], None], least: float) -> float:
    """Return the time of a call. If it is short, take the median of later ones until all took `least` seconds.

    The first call wakes the threads. Calls that follow each other, as in training, need not do so.
    """
    times: list[float] = []
    while not times or sum(times) < least:
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times[1:] or times)


def extra_bytes(call: Callable[[], None]) -> int:
    """Return how much one call raises the peak of the resident size. Freed heap is given back to the system before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # resets the peak
    before = status_bytes("VmRSS")
    call()
    return status_bytes("VmHWM") - before


def status_bytes(field: str) -> int:
    """Return the value of a memory field of /proc/self/status."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"/proc/self/status has no {field}")


if __name__ == "__main__":
    serve(sys.argv[1])
