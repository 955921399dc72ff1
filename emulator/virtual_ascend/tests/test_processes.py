"""Blocks of operators in TIK over several processes, and the cost of a launch."""

import re
from pathlib import Path

import pytest
from virtual_ascend.device.processes import LARGE, LONG, Processes

from emulator.virtual_ascend.tests.card import on_card, said

pytestmark = pytest.mark.card
PROGRAM = Path(__file__).with_name("launch_times.py")


def test_large_launches_are_shared_at_once_and_others_when_they_take_long():
    processes = Processes(4)
    assert [processes.choose("k", 32, size) for size in (LARGE - 1, LARGE)] == [1, 4]
    assert processes.choose("k", 1, LARGE) == 1
    processes.took("k", 1, LONG)
    assert [processes.choose(name, 32, 0) for name in ("k", "another")] == [4, 1]


def test_the_quicker_way_is_kept():
    processes = Processes(4)
    for number, seconds in ((1, 3 * LONG), (4, 4 * LONG), (1, 2 * LONG)):
        assert processes.choose("k", 32, 0) == number
        processes.took("k", number, seconds)
    assert processes.choose("k", 32, 0) == 1
    processes.took("k", 4, LONG)
    assert processes.choose("k", 32, 0) == 4
    processes.took("k", 1, LONG / 2)
    assert processes.choose("k", 32, 0) == 1


def test_a_large_launch_that_turns_out_short_is_not_shared_again():
    processes = Processes(4)
    processes.took("k", 4, LONG / 2)
    assert processes.choose("k", 32, LARGE) == 1


@pytest.mark.parametrize("count", (pytest.param(1, marks=pytest.mark.slow), 2))
def test_launches(python, tmp_path, count):
    printed = said(on_card(python, PROGRAM, 2, cwd=tmp_path, options=("--processes", count)))
    launch, computed = map(float, re.search(r"launch (\S+) ms computation (\S+) ms", printed).groups())
    assert computed > 0 and launch - computed < 5, printed
    found = re.findall(r"workers (\d+) right (\w+)", printed)
    assert found == 2 * [("2" if count > 1 else "0", "True")], printed
