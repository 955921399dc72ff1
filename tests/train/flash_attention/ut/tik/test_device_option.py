"""Test --device ascend: the same tests through the debugger's documented interface. Here the emulator has this
interface.
"""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[4]
# tikemu stands for CANN: the tests import tbe and call tikdb.start_debug, and meet nothing else of it.
AS_CANN = "import tikemu; tikemu.install(soc='Ascend910A'); tikemu.run = None; "
TESTS = (
    "test_helpers.py",
    "test_forward.py::test_sizes_out_of_the_ordinary[more_items_than_a_chunk_of_the_work_table]",
    "test_backward.py::test_representative_cases[B1-H2-S1-D40-float16-compact]",
)


pytestmark = pytest.mark.usefixtures("on_emulator")


def run(program: str) -> subprocess.CompletedProcess:
    """Return the tests of operators on a device, with a program that stands for CANN."""
    path = [str(ROOT / folder) for folder in ("train", "emulator")]
    program = f"import sys, pytest; sys.path[:0] = {path}; {program}sys.exit(pytest.main(sys.argv[1:]))"
    options = ["-q", "-n0", "-p", "no:cacheprovider", "--device", "ascend", *(str(HERE / test) for test in TESTS)]
    command = [sys.executable, "-c", program, *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=240)


def test_the_programs_run_under_a_debugger():
    done = run(AS_CANN)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout and "skipped" not in done.stdout


def test_without_cann_it_says_what_is_missing():
    done = run("sys.modules['tbe'] = None; ")
    assert done.returncode == 4
    assert "--device ascend needs CANN" in done.stdout + done.stderr
