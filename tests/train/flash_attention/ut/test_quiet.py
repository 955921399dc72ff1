"""Nothing of this package prints at import or at a first call, and MindSpore warns of no more than without it."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

PROGRAMS = Path(__file__).parent / "support"


def stderr(program: str) -> list[str]:
    """Lines that a program writes to stderr in a fresh interpreter."""
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, str(PROGRAMS / program)], capture_output=True, text=True, timeout=240, env=variables
    )
    assert done.returncode == 0, done.stderr
    return done.stderr.splitlines()


def places(lines: list[str]) -> set[str]:
    """Where in MindSpore's sources the warnings among the lines come from."""
    found = (re.search(r"\[mindspore/\S+:\d+\]", line) for line in lines)
    return {match[0] for match in found if match}


def test_nothing_prints_at_import_or_at_a_first_call():
    without_us = places(stderr("quiet_control.py"))
    assert [line for line in stderr("quiet_program.py") if not places([line]) & without_us] == []
