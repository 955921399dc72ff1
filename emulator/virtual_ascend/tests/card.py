"""Programs on the virtual card, and their environments: MindSpore 2.0.0, and the versions with GE."""

from __future__ import annotations

import functools
import os
import subprocess
from pathlib import Path

import pytest

from emulator.virtual_ascend.tests.environments import development_environment, mindspore_environment

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = (ROOT / "emulator/virtual_ascend", ROOT / "emulator")


def card_python() -> Path:
    """Return a Python 3.9 with MindSpore 2.0.0 and pyelftools.

    VIRTUAL_ASCEND_TEST_PYTHON names it; otherwise an environment is made and kept.
    """
    chosen = os.environ.get("VIRTUAL_ASCEND_TEST_PYTHON")
    return Path(chosen) if chosen else mindspore_environment("3.9")


def ge_python(release: str) -> Path:
    """Return a Python with MindSpore "2.6.0" or "2.5.0", which goes through GE. Skip the test if there is none.

    VIRTUAL_ASCEND_TEST_PYTHON_2_6_0 names it; otherwise an environment is made from the development wheel and kept.
    """
    found = _ge_python(release)
    if isinstance(found, str):
        pytest.skip(found)
    return found


@functools.cache
def _ge_python(release: str) -> Path | str:
    """Return the Python, or why there is none."""
    chosen = os.environ.get(f"VIRTUAL_ASCEND_TEST_PYTHON_{release.replace('.', '_')}")
    try:
        return Path(chosen) if chosen else development_environment(release)
    except RuntimeError as error:
        return str(error)


def start(*command, cwd: Path, packages=(), minutes: float = 5, **variables) -> subprocess.CompletedProcess:
    """Run a command with this checkout's packages and the folders `packages`, for `minutes` at most."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "FLASH_ATTENTION"))}
    clean["PYTHONPATH"] = os.pathsep.join(map(str, [*PACKAGES, *packages]))
    clean |= {"OMP_NUM_THREADS": "1", **{name: str(value) for name, value in variables.items()}}
    words = [str(word) for word in command]
    return subprocess.run(words, cwd=cwd, env=clean, capture_output=True, text=True, timeout=60 * minutes)


def on_card(
    python: Path, *program, cwd: Path, options=(), packages=(), minutes: float = 5, **variables
) -> subprocess.CompletedProcess:
    """Run `virtual-ascend OPTIONS -- python PROGRAM`."""
    command = python, "-m", "virtual_ascend", *options, "--", "python", *program
    return start(*command, cwd=cwd, packages=packages, minutes=minutes, **variables)


def said(done: subprocess.CompletedProcess) -> str:
    """Return all output of a program that succeeded."""
    assert done.returncode == 0, f"{done.returncode}\n{done.stdout[-4000:]}\n{done.stderr[-6000:]}"
    return done.stdout
