"""Test that failures on the card reach the program as exceptions, and nothing hangs."""

import re
from pathlib import Path

import pytest

from emulator.virtual_ascend.tests.card import on_card, said

pytestmark = pytest.mark.card
FOLDER = Path(__file__).parent


KILLED = "the device process has ended: it was killed"
#: Every run has the harder case: the device process is killed while it works.
SLOW = ("killed",)
#: Patterns that a program prints, and a word that it does not print.
SAID = {
    # An access outside a tensor: kernel, tensor and line.
    "reads_outside": (
        [r"\ARuntimeError", "kernel reads_outside", "'x'", r"tik_entries\.py", r"program\.data_move\(work, x"],
        "result",
    ),
    "leaves_some": ([r"\ARuntimeError", "kernel leaves_some", "'y'"], "result"),
    "killed": ([r"first 2\.0", "RuntimeError", KILLED], "second"),
    "killed_at_work": ([r"first 2\.0", KILLED], "last"),
    # A sunk dataset that ends early, or is empty.
    "data_end": (
        [
            "RuntimeError",
            r"a GetNext waits for data, and none came in 2 seconds .*: the host sent \d+ batches to channel",
        ],
        "trained",
    ),
    "no_data": (["There is no valid data in dataset"], "trained"),
    "memory": (["RuntimeError", "memory"], "sum"),
    "missing": (["RuntimeError", "no operator", "(?i)cholesky"], "result"),
    # An operator that still waits at the end of a program raises no exception.
    "endless": (["at the end"], "Runtime"),
}


@pytest.mark.parametrize("program", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in SAID])
def test_what_reaches_the_program(python, tmp_path, program):
    options = {"memory": ("--memory", "0.4"), "data_end": ("--patience", "2"), "endless": ("--patience", "1")}
    options = options.get(program, ())
    done = on_card(python, FOLDER / "failing_programs.py", program, cwd=tmp_path, options=options)
    text = said(done)
    expected, unexpected = SAID[program]
    for pattern in expected:
        assert re.search(pattern, text), pattern
    assert not re.search(rf"^{unexpected}", text, re.MULTILINE)
    last = {  # behind MindSpore's tail of messages
        "missing": ".*[Cc]holesky",
        "endless": r"kernel endless.* has run for \d+ seconds .* op_timeout of mindspore.set_context allows 3$",
    }
    if program in last:
        line = done.stderr.strip().splitlines()[-1]
        assert re.match(f"virtual-ascend: the first failure was: {last[program]}", line)
    if program == "endless":
        assert re.search(r"^virtual-ascend: kernel endless\S* .* has run for 1 seconds$", done.stderr, re.MULTILINE)
