"""Compile the kernels by CANN's TIK compiler, each in its own process. No card is needed."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from flash_attention import __version__
from flash_attention.address import destination
from flash_attention.backends.tik.environment import CHIPS, tbe_missing
from flash_attention.commands.info import cann_version
from flash_attention.commands.selftest.compile_one import ends
from flash_attention.commands.selftest.kernels import KERNELS
from flash_attention.commands.selftest.report import write
from flash_attention.files import require_writable
from flash_attention.measuring.timing import environment

REPORT = Path("compile.json")
STACK = 64 << 20  # bytes; CANN's guide warns that large operators exhaust the usual 8 MB
SAFE_FORMS = "shifted_operands=0,mixed_axpy=0,tensor_move=0,write_absent=0"
#: A failed compilation is tried again: TIK's debug level and environment of each try by its name.
RETRIES: dict[str, tuple[str, dict[str, str]]] = {
    "tbe_debug_level=2": ("2", {}),
    f"FLASH_ATTENTION_FORMS={SAFE_FORMS}": ("0", {"FLASH_ATTENTION_FORMS": SAFE_FORMS}),
}


def raise_stack() -> int:
    """Raise the stack of started programs to STACK, or what is allowed. Return its bytes, -1 for no limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_STACK)
    if soft != resource.RLIM_INFINITY and soft < STACK:
        soft = STACK if hard == resource.RLIM_INFINITY else min(STACK, hard)
        resource.setrlimit(resource.RLIMIT_STACK, (soft, hard))
    return soft


def run(options: argparse.Namespace) -> int:
    """Compile what the report lacks; the status is 130 after Ctrl-C."""
    broken = tbe_missing()
    if broken is not None:
        raise RuntimeError(f"--compile: {broken}")
    if importlib.util.find_spec("tqdm") is None:
        raise RuntimeError("--compile: the Python package tqdm is not installed: pip install tqdm")
    from tqdm import tqdm

    tasks = [(soc, name) for soc in CHIPS for name in KERNELS if options.only in f"{soc}: {name}"]
    if not tasks:
        raise ValueError(f"--only: got {options.only!r}, allowed is a part of a kernel's name")
    path, start = options.report or REPORT, time.perf_counter()
    if options.keep is not None:
        require_writable("--keep", options.keep)
    report = _begin(path)
    kernels, report["stack_bytes"] = report["kernels"], raise_stack()
    waiting = [(soc, name) for soc, name in tasks if f"{soc}: {name}" not in kernels]
    if len(waiting) < len(tasks):
        print(f"{len(tasks) - len(waiting)} kernels are in {path} already; without that file all are compiled")
    running: set[subprocess.Popen] = set()
    stopped = threading.Event()
    with ThreadPoolExecutor(max(1, min(8, len(os.sched_getaffinity(0))))) as pool:
        futures = {
            pool.submit(_compile, *task, options.limit, options.keep, running, stopped): task for task in waiting
        }
        try:
            for future in tqdm(as_completed(futures), total=len(futures), unit="kernel", disable=not futures):
                soc, name = futures[future]
                kernels[f"{soc}: {name}"] = future.result()
                report["seconds"] = round(report["seconds"] + kernels[f"{soc}: {name}"]["process_seconds"], 1)
                write(path, report)
        except BaseException as error:
            stopped.set()
            for future in futures:
                future.cancel()
            for process in list(running):
                process.kill()
            if not isinstance(error, KeyboardInterrupt):
                raise
            print(f"\nstopped; the same command goes on with what {path} lacks")
            return 130
    failed = [label for label in (f"{soc}: {name}" for soc, name in tasks) if "error" in kernels[label]]
    for label in failed:
        works = [
            f"; it compiles with {how}" for how, one in kernels[label].get("retries", {}).items() if "error" not in one
        ]
        print(f"FAILED  {label}: {kernels[label]['error'][0]}{''.join(works)}")
    print(
        f"{len(tasks) - len(failed)} of {len(tasks)} kernels compile, {time.perf_counter() - start:.0f} s; "
        f"please send {path} to {destination()}"
    )
    return int(bool(failed))


def _begin(path: Path) -> dict[str, Any]:
    """Return the existing report if it is of the same software, else a new report."""
    software = {
        "flash_attention": __version__,
        "cann": (cann_version() or "").partition(" in ")[0] or None,
        "python": platform.python_version(),
        "machine": platform.machine(),
    }
    if path.exists():
        try:
            report = json.loads(path.read_text(encoding="utf-8"))
            same = report["software"] == software and isinstance(report["kernels"], dict)
        except (ValueError, KeyError, TypeError):
            same = False
        if not same:
            allowed = "allowed are a new file and a report of this software"
            raise ValueError(f"--report: {path} is of other software, or no report; {allowed}")
        return report
    report = {"software": software, "seconds": 0.0, "kernels": {}}
    write(path, report)  # fails before anything is compiled if the place cannot be written
    return report


def _compile(
    soc: str, name: str, limit: float, keep: Path | None, running: set[subprocess.Popen], stopped: threading.Event
) -> dict[str, Any]:
    """Compile one kernel, and return its result. After an error, also return the results of all RETRIES."""

    def attempt(how: str, level: str, variables: dict[str, str]) -> dict[str, Any]:
        return _in_process(soc, name, level, variables, limit, keep and keep / how, running, stopped)

    start = time.perf_counter()
    result = attempt("", "0", {})
    if "error" in result and "timed_out" not in result:
        result["retries"] = {}
        for how, (level, variables) in RETRIES.items():
            if not stopped.is_set():
                result["retries"][how] = attempt(how, level, variables)
    return {**result, "process_seconds": round(time.perf_counter() - start, 2)}


def _in_process(
    soc: str,
    name: str,
    level: str,
    variables: dict[str, str],
    limit: float,
    keep: Path | None,
    running: set[subprocess.Popen],
    stopped: threading.Event,
) -> dict[str, Any]:
    """Compile one kernel in a process, and return its result, also if the process fails."""
    command = [sys.executable, "-m", "flash_attention.commands.selftest.compile_one", soc, name, level]
    with tempfile.TemporaryDirectory(prefix="flash_attention_") as folder:
        with subprocess.Popen(
            command,
            cwd=folder,
            env={**environment(), **variables},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,  # Ctrl-C is for the command, which ends its processes
        ) as process:
            running.add(process)
            if stopped.is_set():
                process.kill()
            try:
                told, warned = process.communicate(timeout=limit)
                result = _result(process.returncode, told, warned)
            except subprocess.TimeoutExpired:
                process.kill()
                process.communicate()
                result = {"error": [f"not done within {limit:g} s"], "timed_out": True}
            finally:
                running.discard(process)
        if keep is not None:
            target = keep / soc / "".join(one if one.isalnum() else "_" for one in name)
            shutil.copytree(folder, target, dirs_exist_ok=True)
    return result


def _result(status: int, told: str, warned: str) -> dict[str, Any]:
    """Return the result that a process printed last, with its warnings, or how it ended."""
    try:
        result = json.loads(told.splitlines()[-1])
    except (IndexError, ValueError):
        hint = " (its stack was too small, perhaps: ulimit -s)" if status == -signal.SIGSEGV else ""
        return {"error": [f"the process ended with status {status}{hint}", *ends(warned)]}
    warnings = [line for line in (*told.splitlines()[:-1], *warned.splitlines()) if "warn" in line.lower()]
    return {**result, "warnings": ends("\n".join(dict.fromkeys(warnings)))}
