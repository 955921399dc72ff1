"""The runtime by itself: memory that shows wrong accesses, and streams in any order that events allow."""

import os
from pathlib import Path

import pytest

from emulator.virtual_ascend.tests.card import PACKAGES, said, start

pytestmark = pytest.mark.card
PROGRAM = Path(__file__).with_name("runtime_calls.py")


def ask(python, folder, question, **variables):
    """Return lines that the program prints."""
    return said(start(python, PROGRAM, question, cwd=folder, **variables)).splitlines()


def test_memory_holds_nan_before_it_is_written_and_after_it_was_freed(python, tmp_path):
    assert ask(python, tmp_path, "fresh") == ["new True", "written True", "freed True", "again True True"]


def test_nobody_reads_behind_a_block_or_frees_it_twice(python, tmp_path):
    assert ask(python, tmp_path, "bounds") == ["behind True between True True", "twice True True"]


def test_an_event_decides_and_else_the_seed(python, tmp_path):
    runs = [ask(python, tmp_path, "order", VIRTUAL_ASCEND_SEED=seed) for seed in (0, 0, 1)]
    orders = [run[0].split()[-1] for run in runs]
    assert orders[0] == orders[1] != orders[2]
    assert all(set(order) == {"0", "1"} for order in orders)
    assert [run[1] for run in runs] == ["with event " + 20 * "1"] * 3


def test_nothing_runs_before_somebody_waits(python, tmp_path):
    assert ask(python, tmp_path, "lazy") == ["1 nan 2.0", "6 2.0 1.0"]


def test_a_wait_that_cannot_end_is_an_error(python, tmp_path):
    assert ask(python, tmp_path, "stuck", VIRTUAL_ASCEND_PATIENCE=1) == ["stuck 507011"]


def test_what_a_program_forks_has_no_card_and_does_not_keep_it(python, tmp_path):
    variables = {"VIRTUAL_ASCEND_PYTHON": python, "VIRTUAL_ASCEND_PYTHONPATH": os.pathsep.join(map(str, PACKAGES))}
    assert ask(python, tmp_path, "forked", **variables) == ["program 0", "child 507000"]
