"""The main job of ./quickstart.sh at a tiny size, and `flash-attention bench` as a whole."""

import csv
import importlib.util
import re
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[4]
TINY = ["--seq", "256", "--layers", "1", "--heads", "1", "--head-dim", "32", "--sample", "4", "--sample-window", "64"]
TINY += ["--held-out", "2"]


def test_gpt_trains_alike_with_flash_and_composed_attention(run_python, tmp_path: Path) -> None:
    script = str(ROOT / "examples/compare_attention.py")
    printed = run_python(script, "--steps", "30", "--compare-steps", "10", "--out", str(tmp_path), *TINY)
    assert "first loss equal within float32 rounding: yes" in printed
    losses = []
    for name, steps in (("flash", 30), ("composed", 10)):
        with open(tmp_path / name / "loss.csv", encoding="utf-8") as file:
            losses.append([float(row["loss"]) for row in csv.DictReader(file)])
        assert len(losses[-1]) == steps
    assert sum(losses[0][-5:]) < 0.8 * sum(losses[0][:5])
    assert max(abs(flash - composed) for flash, composed in zip(*losses)) < 1e-3
    assert (tmp_path / "loss.png").stat().st_size > 1000
    assert re.search(r"held-out modules: \d\.\d\d bits per byte on 2 pieces of 256 bytes", printed)
    assert re.search(r"^bits per byte of held-out modules: \d\.\d\d$", printed, re.M)
    assert (tmp_path / "flash/sample.txt").read_bytes().startswith(b"def ")


@pytest.mark.spread
@pytest.mark.parametrize("options", [["--paged"], ["--paged", "--beams", "4", "--prompts", "ragged"]])
def test_generation_with_a_cache_gives_the_same_text(options: list, run_python) -> None:
    script = str(ROOT / "examples/generate.py")
    tiny = ["--steps", "2", "--seq", "128", "--layers", "1", "--heads", "1", "--head-dim", "32", "--length", "20"]
    assert "the same text: yes" in run_python(script, *tiny, *options)


@pytest.mark.parametrize(("difference", "said"), [(1e-6, "yes"), (1e-4, "NO")])
def test_the_first_losses_are_compared(difference: float, said: str, tmp_path: Path, monkeypatch, capsys) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "examples"))
    compare = importlib.import_module("compare_attention")
    summary = {"tokens_per_second": 1.0, "peak_megabytes": 1.0, "training_megabytes": 1.0}
    losses = {"cpu": 5 * (1 + difference), "composed": 5.0}
    monkeypatch.setattr(compare, "train", lambda attention, *_: (summary, [[losses[attention], 4.0], [1.0, 1.0]]))
    monkeypatch.setattr(sys, "argv", ["compare_attention.py", "--steps", "2", "--out", str(tmp_path)])
    assert compare.main() == (said == "NO")
    assert f"rounding: {said}" in capsys.readouterr().out


BENCH = ["-m", "flash_attention.cli", "bench", "--quick", "--rounds", "1", "--threads", "1"]


def test_bench_of_speed(run_python, tmp_path: Path) -> None:
    printed = run_python(*BENCH, "--dtype", "float32", "--out", str(tmp_path))
    assert "1 cases, about" in printed
    if importlib.util.find_spec("torch") is None:
        assert printed.count("torch is not installed") == 1
    assert "memory beyond inputs" in printed
    with open(tmp_path / "times.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["implementation"] for row in rows} >= {"flash", "composed"}
    assert all(float(row["median_seconds"]) > 0 for row in rows if row["pass"] != "backward")
    assert (tmp_path / "overview.png").exists()


@pytest.mark.parametrize(
    "kind, figure", [("--packed", "packed backward: of the ideal share"), ("--decode", "decode float32: of the copy")]
)
def test_bench_of_packed_sequences_and_decoding(run_python, kind: str, figure: str) -> None:
    printed = run_python(*BENCH, kind)
    assert figure in printed and "torch" in printed


def test_profile_as_a_whole(run_python) -> None:
    dtypes = ("float32", "float16", "bfloat16")
    options = ("--seq", "1024", "--rounds", "3", "--threads", "1", "--block-mask", "sink_window", "--dtype", *dtypes)
    printed = run_python("-m", "flash_attention.cli", "profile", *options)
    *rows, said, again, third = [line for line in printed.splitlines() if line.startswith("S=1024")]
    assert len(rows) == 6 and "GFLOP/s" in printed
    # Eight row blocks a head see their own tile, the one before, and the first.
    tiles = "64 row blocks visit 168 of 512 tiles of 128 x 128 (104 full, 64 partial), 32.8%"
    assert [line.split(": ")[1] for line in (said, again, third)] == [tiles] * 3 and "32.8%" in rows[0]
    # The second share of a row is relative to the processor's peak.
    assert all(int(re.findall(r"(\d+)%", row)[1]) <= 110 for row in rows), printed


TINIER = ["--seq", "128", "--layers", "1", "--heads", "1", "--head-dim", "64", "--sample", "0", "--dropout", "0.1"]
TINIER += ["--held-out", "0"]


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
    assert run_python("-c", BOTH, str(ROOT / "examples/train_gpt.py"), str(tmp_path), *TINIER).count("float16") >= 2
    emulated, native = (losses(tmp_path / backend) for backend in ("emulator", "cpu"))
    assert len(emulated) == 3 and emulated[2] < emulated[0] - 0.5
    # The two differ by 1e-5; without dropout the losses would move by 4e-3, without ALiBi by 2e-3.
    assert max(abs(one - other) for one, other in zip(emulated, native)) < 1e-4
