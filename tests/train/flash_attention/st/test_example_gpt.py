"""The main job of ./quickstart.sh at a tiny size, and `flash-attention bench` as a whole."""

import csv
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[4]
TINY = ["--seq", "256", "--layers", "1", "--heads", "1", "--head-dim", "32", "--sample", "4", "--sample-window", "64"]


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
    assert (tmp_path / "flash/sample.txt").read_bytes().startswith(b"def ")


def test_generation_with_a_cache_gives_the_same_text(run_python) -> None:
    script = str(ROOT / "examples/generate.py")
    tiny = ["--steps", "2", "--seq", "128", "--layers", "1", "--heads", "1", "--head-dim", "32", "--length", "20"]
    assert "the same text: yes" in run_python(script, *tiny, "--paged")


def test_a_wrong_attention_is_noticed(tmp_path: Path) -> None:
    """The comparison fails when FlashAttention computes something else: here without ALiBi."""
    for name in ("train_gpt.py", "compare_attention.py"):
        text = (ROOT / "examples" / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(text.replace("alibi=True, backend", "backend"), encoding="utf-8")
    assert "alibi=True" not in (tmp_path / "train_gpt.py").read_text(encoding="utf-8").split("class Block")[1]
    command = [sys.executable, "compare_attention.py", "--steps", "2", "--out", str(tmp_path), *TINY]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "train")}
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=environment)
    assert done.returncode == 1 and "rounding: NO" in done.stdout, done.stdout + done.stderr


def test_bench_as_a_whole(run_python, tmp_path: Path) -> None:
    options = ["--quick", "--dtype", "float32", "--rounds", "1", "--threads", "1", "--out", str(tmp_path)]
    printed = run_python("-m", "flash_attention.cli", "bench", *options)
    for figure in ("faster than torch", "faster than full causal", "spread of time per token", "extra memory"):
        assert figure in printed
    with open(tmp_path / "times.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert {row["implementation"] for row in rows} >= {"flash", "composed"}
    assert all(float(row["median_seconds"]) > 0 for row in rows if row["pass"] != "backward")
    assert (tmp_path / "bench.png").exists() and (tmp_path / "figures.csv").exists()


def test_profile_as_a_whole(run_python) -> None:
    printed = run_python("-m", "flash_attention.cli", "profile", "--seq", "256", "--rounds", "1", "--threads", "1")
    assert "GFLOP/s" in printed and "S=256 float32" in printed
