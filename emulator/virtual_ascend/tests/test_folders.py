"""Folders of a run are gone with it, or with the next one."""

import os
import signal
import subprocess
import sys

import pytest
from virtual_ascend import folders

from emulator.virtual_ascend.tests.card import PACKAGES, on_card, start

pytestmark = pytest.mark.card
VARIABLES = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PACKAGES))}
MAKE = """
import os, sys
from pathlib import Path
from virtual_ascend import folders
print(folders.make(Path(sys.argv[1])), flush=True)
os.execvp("sleep", ["sleep", "60"])
"""


def test_a_folder_stays_as_long_as_its_run_and_is_removed_by_the_next(tmp_path):
    """The run replaces the process that made the folder. It is killed, so it cannot remove anything."""
    run = subprocess.Popen(
        [sys.executable, "-c", MAKE, str(tmp_path)], env=VARIABLES, stdout=subprocess.PIPE, text=True
    )
    try:
        left = run.stdout.readline().strip()
        own = folders.make(tmp_path)
        assert os.path.isdir(left) and own.is_dir()
    finally:
        run.send_signal(signal.SIGKILL)
        run.wait()
    folders.make(tmp_path)
    assert not os.path.exists(left) and own.is_dir()
    folders.remove(own)
    assert not own.exists()


def test_what_is_not_of_a_run_stays(tmp_path):
    other = tmp_path / "virtual_ascend_notes"
    other.mkdir()
    folders.make(tmp_path)
    assert other.is_dir()


def test_runs_leave_one_folder_at_most(python, tmp_path):
    for _ in range(2):
        done = on_card(python, "-c", "pass", cwd=tmp_path, TMPDIR=tmp_path)
        assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("virtual_ascend_*"))) == 1


@pytest.mark.parametrize(
    "words, told",
    [
        ("--memory nan --", "--memory: got nan, allowed is more than 0 and at most 1024"),
        ("--memory 1e6 --", "--memory: got 1000000.0"),
        ("--seed -1 --", "--seed: got -1, allowed is 0 or more"),
        ("--cards 0 --", "--cards: got 0, allowed is 1 or more"),
        ("--cores 31 --", "choose from 32, 30"),
        ("--formats softmax --", "--formats: got softmax, allowed is ENTRY=FORMAT"),
        ("--formats softmaxv2=FRACTAL_NZ --", "allowed is the entry of a built-in operator: softmax_v2"),
        (f"--report {__file__} --", "allowed is a folder that can be made: File exists"),
        ("--foo --", "unrecognized arguments: --foo"),
        ("--", "nonexistent.py"),
        ("--seed 3", "got nonexistent.py before --; programs belong behind it"),
    ],
)
def test_what_is_not_allowed(python, tmp_path, words, told):
    done = start(python, "-m", "virtual_ascend", *words.split(), "nonexistent.py", cwd=tmp_path)
    assert done.returncode == 2 and told in done.stderr, done.stderr


def test_no_program(python, tmp_path):
    done = start(python, "-m", "virtual_ascend", "--seed", "3", cwd=tmp_path)
    assert done.returncode == 2 and "no program" in done.stderr
