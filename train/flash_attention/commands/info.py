"""versions, processor and devices, and which backends can run here, with the reason where one cannot"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import os
import platform
import sys
from pathlib import Path

from flash_attention import __version__
from flash_attention.other_copies import other_copies
from flash_attention.text_table import table

DISTRIBUTIONS = ("mindspore", "numpy", "tikemu", "torch")
FORCED_ISA = "FLASH_ATTENTION_CPU_ISA"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser  # no options


def run(options: argparse.Namespace) -> int:
    del options
    rows = [["flash_attention", f"{__version__} in {Path(__file__).resolve().parents[1]}"]]
    rows += [["also on the path", line] for line in other_copies(__version__)]
    rows += [["Python", f"{platform.python_version()} ({sys.executable})"]]
    rows += [[name, installed_version(name) or "not installed"] for name in DISTRIBUTIONS]
    rows += [["CANN", cann_version() or "not found (ASCEND_HOME_PATH, ASCEND_TOOLKIT_HOME)"]]
    rows += [["processor", f"{processor()}, {len(os.sched_getaffinity(0))} of {os.cpu_count()} cores usable"]]
    rows += [["CPU kernel", cpu_kernel()]]
    rows += [["MindSpore device", device_target()]]
    print(table(["", ""], rows).split("\n", 2)[2])
    print("\nbackends")
    print(table(["name", "here"], backends(), indent="  "))
    return 0


def installed_version(name: str) -> str | None:
    """Version of an installed distribution, or of a package that is importable without one."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        if importlib.util.find_spec(name) is None:
            return None
        return getattr(importlib.import_module(name), "__version__", "installed, version unknown")


def cann_version() -> str | None:
    """Version line and folder of the CANN toolkit that the environment points to."""
    for variable in ("ASCEND_HOME_PATH", "ASCEND_TOOLKIT_HOME"):
        folder = os.environ.get(variable)
        if folder and Path(folder).is_dir():
            for info in sorted(Path(folder).glob("**/ascend_toolkit_install.info")):
                for line in info.read_text(encoding="utf-8", errors="replace").splitlines():
                    if line.lower().startswith("version="):
                        return f"{line.partition('=')[2]} in {folder}"
            return f"unknown version in {folder}"
    return None


def processor() -> str:
    """Model of the processor as the kernel names it."""
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith(("model name", "CPU implementer")):
                return line.partition(":")[2].strip() + f" ({platform.machine()})"
    except OSError:
        pass
    return platform.machine()


def cpu_kernel() -> str:
    """Instruction sets that the native kernel can use here, or why it cannot be loaded."""
    from flash_attention.backends.cpu.library import instruction_sets

    try:
        return f"instruction sets {', '.join(instruction_sets())}; uses {os.environ.get(FORCED_ISA) or 'the first'}"
    except OSError as error:
        return str(error)


def device_target() -> str:
    """The device that MindSpore computes on unless told otherwise."""
    import mindspore

    return mindspore.get_context("device_target")


def backends() -> list[list[str]]:
    """Name and verdict of every backend."""
    from flash_attention.backends.registry import backend_names, forced_backend, get_backend

    forced = forced_backend()
    rows = []
    for name in backend_names():
        verdict = get_backend(name).unavailable() or "ready"
        rows.append([name, verdict + (" (forced by FLASH_ATTENTION_BACKEND)" if name == forced else "")])
    return rows
