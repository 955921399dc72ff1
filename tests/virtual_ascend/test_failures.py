"""What goes wrong on the card reaches the program as an exception that says what, and nothing hangs."""

import re
from pathlib import Path

import pytest

from tests.virtual_ascend.card import on_card, said

pytestmark = pytest.mark.card
FOLDER = Path(__file__).parent


def outcome(python, folder, failure, *options):
    """What the program prints."""
    return said(on_card(python, FOLDER / "failing_programs.py", failure, cwd=folder, options=options))


def test_an_operator_in_tik_runs(python, tmp_path):
    assert "result [0. 2. 4.]" in outcome(python, tmp_path, "twice")


def test_an_access_outside_a_tensor_names_kernel_tensor_and_line(python, tmp_path):
    text = outcome(python, tmp_path, "reads_outside")
    assert text.startswith("RuntimeError") and "kernel reads_outside" in text
    assert "'x'" in text and "tik_entries.py" in text and "program.data_move(work, x" in text


def test_an_output_that_stays_undefined_is_an_error(python, tmp_path):
    text = outcome(python, tmp_path, "leaves_some")
    assert text.startswith("RuntimeError") and "kernel leaves_some" in text and "'y'" in text


def test_a_killed_device_process(python, tmp_path):
    text = outcome(python, tmp_path, "killed")
    assert "first 2.0" in text and "RuntimeError" in text and "the device process has ended: it was killed" in text


def test_a_device_process_that_is_killed_at_work(python, tmp_path):
    text = outcome(python, tmp_path, "killed_at_work")
    assert "first 2.0" in text and "last" not in text and "the device process has ended: it was killed" in text


def test_a_sunk_dataset_that_ends_early(python, tmp_path):
    text = outcome(python, tmp_path, "data_end")
    assert "RuntimeError" in text and "trained" not in text
    assert re.search(r"a GetNext waits for data, .*: the host sent \d+ batches to channel", text)


def test_a_sunk_dataset_without_data(python, tmp_path):
    text = outcome(python, tmp_path, "no_data")
    assert "There is no valid data in dataset" in text and "trained" not in text


def test_out_of_memory(python, tmp_path):
    text = outcome(python, tmp_path, "memory", "--memory", "1.5")
    assert "RuntimeError" in text and "memory" in text


def test_a_missing_operator_is_named(python, tmp_path):
    text = outcome(python, tmp_path, "missing")
    assert "RuntimeError" in text and "no operator" in text and "cholesky" in text.lower()
