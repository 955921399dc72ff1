"""Test the examples at a tiny size, in PYNATIVE, and their shared parts alone."""

from __future__ import annotations

import importlib
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any, Callable

import mindspore as ms
import numpy as np
import pytest

pytestmark = pytest.mark.system

EXAMPLES = Path(__file__).resolve().parents[4] / "examples"
SCRIPTS = sorted(path.name for path in EXAMPLES.glob("*.py") if path.name != "small_gpt.py")


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """Run the main function of an example in this process; return its output."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ms, "set_context", lambda **_: None)

    def run(name: str, *options: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", *options])
        module = importlib.import_module(name)
        if hasattr(module, "train"):  # takes a graph: see the slow tests
            monkeypatch.setattr(module, "train", lambda *_, **__: None)
        assert not module.main()
        return capsys.readouterr().out

    return run


@pytest.fixture
def shared(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return the module that the examples share."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    return importlib.import_module("small_gpt")


def rows(printed: str, pattern: str) -> list[list[float]]:
    """Return the numbers of the lines that begin with the pattern."""
    found = re.findall(rf"^ *{pattern}(.*)$", printed, re.MULTILINE)
    return [[float(text) for text in re.findall(r"-?[\d.]+", line)] for line in found]


TINY = ["--layers", "1", "--batch", "2", "--seq", "16", "--steps", "2", "--head-dim", "16", "--held-out", "1"]


def test_beyond_composed(example: Callable[..., str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A length that needs more memory than is free is drawn but not measured. All other lengths are measured."""
    module = importlib.import_module("beyond_composed")
    tried = []

    def step(command: list[str], **_: Any) -> Any:
        kind, seq = command[-3], int(command[-1])
        tried.append((kind, seq))
        megabytes = seq if kind == "flash" else seq**2 // 100
        row = {"seq": seq, "seconds": seq / 10, "megabytes": megabytes, "losses": [5.5, 5.5 + 1e-6]}
        return subprocess.CompletedProcess(command, 0, f"progress\n{json.dumps(row)}\n")

    monkeypatch.setattr(module.subprocess, "run", step)
    monkeypatch.setattr(module, "free_megabytes", lambda: 1000.0)
    printed = example("beyond_composed", "--lengths", "400", "100", "200", "800", "--out", str(tmp_path))
    composed = [100, 200]  # 1600 MB at 400
    assert tried == [("flash", seq) for seq in (100, 200, 400, 800)] + [("composed", seq) for seq in composed]
    assert rows(printed, "200") == [[20, 200, 20, 400]] and rows(printed, "400") == [[40, 400, 2]]
    assert "losses differ by at most 0e+00" in printed
    assert (tmp_path / "steps.png").stat().st_size > 1000


def test_long_text(example: Callable[..., str], tmp_path: Path) -> None:
    """All kinds train from the same Parameters. If the window holds all tiles, they compute the same."""
    options = ["--seq", "400", "--steps", "2", "--layers", "1", "--heads", "1", "--out", str(tmp_path), "--attention"]
    kinds = "block-sparse", "window", "dense", "composed"
    wide, narrow = (example("long_text", *options, *kinds, "--window", window) for window in ("3", "0"))
    found = [[rows(printed, kind)[0] for kind in kinds] for printed in (wide, narrow)]
    assert all(abs(one[place] - found[0][3][place]) <= 2e-4 for one in found[0] for place in (0, 1))
    assert found[1][2][:2] == found[0][2][:2] and len({tuple(one[:1]) for one in found[1][:3]}) == 3
    assert (tmp_path / "loss.png").stat().st_size > 1000


def test_tik_softmax(example: Callable[..., str], tmp_path: Path) -> None:
    pytest.importorskip("tikemu")
    sizes = ["--rows", "8", "--columns", "256", "--cores", "4"]
    printed = example("tik_softmax", *sizes, "--trace", str(tmp_path / "softmax.json"))
    assert "the error is at most NumPy's: yes" in printed and "PIPE_V" in printed
    assert (tmp_path / "softmax.json").stat().st_size > 1000
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    head, shown = (text.split("kernel softmax")[1].splitlines()[:4] for text in (example("tik_softmax"), page))
    assert head == shown
    (cycles,) = re.findall(r"estimate: ([\d,]+) cycles", example("tik_softmax", "--threads", "1"))
    assert f"a row waits for the one before: {cycles} cycles." in page


def test_tik_softmax_notices_a_wrong_result(example: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tikemu")
    module = importlib.import_module("tik_softmax")
    right = module.reference
    monkeypatch.setattr(module, "reference", lambda x: right(x.astype(np.float64)))
    monkeypatch.setattr(sys, "argv", ["tik_softmax.py", "--rows", "4", "--columns", "128", "--cores", "4"])
    assert module.main() == 1


def test_training_text_and_held_out_text_are_different_modules(shared: Any) -> None:
    training, held_out = (part.tobytes() for part in shared.standard_library())
    assert len(training) > 20 * len(held_out) > 20 * 50_000
    assert training[: 1 << 16] == shared.standard_library(1 << 16)[0].tobytes()
    for start in range(0, len(held_out) - 2000, len(held_out) // 20):
        assert held_out[start : start + 2000] not in training


def test_pieces_are_spread_over_the_text(shared: Any) -> None:
    text = np.arange(100, dtype=np.uint8)
    found = shared.pieces(text, 9, 5)
    assert found.shape == (5, 10) and found[0, 0] == 0 and found[-1, -1] == 99
    assert shared.pieces(text, 9, 1000).shape == (11, 10)


def test_every_position_knows_the_last_bytes_and_no_later_one(shared: Any) -> None:
    model = shared.GPT(1, 1, 16, _First)
    tokens = np.arange(12, dtype=np.int32)[None]
    before = model(ms.Tensor(tokens)).asnumpy()
    for changed in (0, 5, 11):
        other = tokens.copy()
        other[0, changed] = 200
        moved = np.abs(model(ms.Tensor(other)).asnumpy() - before).max(axis=-1)[0] > 1e-6
        assert list(np.flatnonzero(moved)) == list(range(changed, min(12, changed + shared.SEEN)))


class _First(ms.nn.Cell):
    """A stand-in for attention: every position keeps to itself."""

    def construct(self, query, key, value):
        return value
