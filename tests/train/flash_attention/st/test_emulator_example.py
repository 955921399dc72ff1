"""A model trains through the TIK operators, and its losses are those of the cpu backend in float16."""

import csv
from pathlib import Path

import pytest

pytest.importorskip("tikemu")

SCRIPT = Path(__file__).resolve().parents[4] / "examples/train_gpt.py"
TINY = ["--seq", "128", "--layers", "1", "--heads", "1", "--head-dim", "64", "--sample", "0", "--dropout", "0.1"]
TINY += ["--held-out", "0"]


def losses(run_python, out: Path, *options: str) -> list:
    """The losses of three steps of the example."""
    printed = run_python(str(SCRIPT), *TINY, "--steps", "3", "--out", str(out), *options)
    assert "float16" in printed
    with open(out / "loss.csv", encoding="utf-8") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def test_losses_on_the_emulator_are_those_of_the_cpu_backend(run_python, tmp_path):
    emulated = losses(run_python, tmp_path / "emulator", "--backend", "emulator")
    native = losses(run_python, tmp_path / "cpu", "--backend", "cpu", "--dtype", "float16")
    assert len(emulated) == 3 and emulated[2] < emulated[0] - 0.5
    # The two differ by 1e-5; without dropout the losses would move by 4e-3, without ALiBi by 2e-3.
    assert max(abs(one - other) for one, other in zip(emulated, native)) < 1e-4
