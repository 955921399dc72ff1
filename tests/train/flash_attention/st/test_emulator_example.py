"""Test that a model on the TIK operators has cpu's losses in float16."""

import csv
from pathlib import Path

import pytest

pytest.importorskip("tikemu")
pytestmark = pytest.mark.system

SCRIPT = Path(__file__).resolve().parents[4] / "examples/train_gpt.py"
TINY = ["--seq", "128", "--layers", "1", "--heads", "1", "--head-dim", "64", "--sample", "0", "--dropout", "0.1"]
TINY += ["--held-out", "0"]


# The example twice, in one process: to import MindSpore takes as long as the three steps.
BOTH = """
import runpy, sys
from pathlib import Path

script, folder, *tiny = sys.argv[1:]
sys.path.insert(0, str(Path(script).parent))
for backend in ("emulator", "cpu"):
    sys.argv = [script, *tiny, "--steps", "3", "--out", f"{folder}/{backend}", "--backend", backend]
    sys.argv += ["--dtype", "float16"] if backend == "cpu" else []
    runpy.run_path(script, run_name="__main__")
"""


def losses(out: Path) -> list:
    """Return the losses of a run."""
    with open(out / "loss.csv", encoding="utf-8") as file:
        return [float(row["loss"]) for row in csv.DictReader(file)]


def test_losses_on_the_emulator_are_those_of_the_cpu_backend(run_python, tmp_path):
    assert run_python("-c", BOTH, str(SCRIPT), str(tmp_path), *TINY).count("float16") >= 2
    emulated, native = (losses(tmp_path / backend) for backend in ("emulator", "cpu"))
    assert len(emulated) == 3 and emulated[2] < emulated[0] - 0.5
    # The two differ by 1e-5; without dropout the losses would move by 4e-3, without ALiBi by 2e-3.
    assert max(abs(one - other) for one, other in zip(emulated, native)) < 1e-4
