"""`flash-attention profile`: of a TIK operator on the emulator, and of composed attention by operator."""

import json

import mindspore
import numpy as np
import pytest
from flash_attention import cli, plotting, reference
from flash_attention.commands.profile import emulator, operators
from flash_attention.commands.profile.composed_steps import STEPS, ComposedSteps
from flash_attention.commands.profile.emulator import Event, KernelCase
from flash_attention.measuring.case import Case
from flash_attention.measuring.implementations import random_inputs

pytest.importorskip("tikemu")
PNG = b"\x89PNG"


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """The roofline has two short lengths."""
    monkeypatch.setattr(emulator, "LENGTHS", (64, 128))


@pytest.mark.usefixtures("short")
def test_profile_leaves_text_trace_and_plots(capsys, tmp_path) -> None:
    pytest.importorskip("matplotlib")
    assert cli.main(["profile", "forward,S=256,D=64,causal", "--backend", "emulator", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert (tmp_path / "profile.txt").read_text() in printed
    for said in ("forward S=256 D=64 causal", "steady state, cycles", "PIPE_MTE1", "who waited for whom"):
        assert said in printed
    assert [line.split()[0] for line in printed.splitlines() if line.strip()[:3] in ("64 ", "128")] == ["64", "128"]
    for name in ("timeline.png", "roofline.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)
    events = [event for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert {event["args"]["writes"] for event in events if event["cat"] == "M"} >= {"output_0", "total_0"}
    assert {event["name"] for event in events if event["cat"] == "wait"} >= {"waits for S"}
    (of_s,) = (line for line in printed.splitlines() if line.split()[:1] == ["S"] and "%" in line)
    assert "scalar" in of_s and "wait" not in of_s


@pytest.mark.usefixtures("short")
def test_a_pass_without_matrix_products_has_no_roofline(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    assert cli.main(["profile", "rows,S=128", "--backend", "emulator", "--out", str(tmp_path)]) == 0
    assert not (tmp_path / "roofline.png").exists() and (tmp_path / "timeline.png").exists()


def test_a_case_is_operator_lengths_and_rules_in_any_order() -> None:
    assert KernelCase.parse("") == KernelCase("forward", 2048, 128, "full")
    case = KernelCase.parse("causal_alibi,D=64,backward,S=512")
    assert case == KernelCase("backward", 512, 64, "causal_alibi")
    problem = case.problem()
    assert (problem.seq_q, problem.head_dim, problem.rules.causal, problem.bias) == (512, 64, True, "alibi")


@pytest.mark.parametrize("part", ["sideways", "S=0", "D=", "causal window"])
def test_what_is_no_part_of_a_case_is_named(part, capsys) -> None:
    assert cli.main(["profile", f"forward,{part}", "--backend", "emulator"]) == 2
    assert f"CASE: got {part!r}, allowed are forward, " in capsys.readouterr().err


def test_a_case_needs_the_emulator(capsys) -> None:
    assert cli.main(["profile", "forward"]) == 2
    assert "CASE: got 'forward', allowed is one with --backend emulator" in capsys.readouterr().err


def test_the_window_lies_where_the_cube_is_busiest() -> None:
    sparse = [Event("M", at, at + 10, "mmad", "scores") for at in range(0, 1000, 100)]
    dense = [Event("M", at, at + 90, "mmad", "scores") for at in range(1000, 2000, 100)]
    start, end = emulator.window(sparse + dense, 400)
    assert start >= 1000 and end == start + 400 <= 2000


def test_shares_of_stages_count_what_lies_in_the_window() -> None:
    shown = [Event("M", 90, 150, "mmad", "scores"), Event("M", 150, 160, "mmad", "output")]
    lines = emulator.stages(shown, 100, 200).splitlines()
    assert lines[2].split() == ["M", "60%", "scores", "50%,", "output", "10%"]


def test_plots_name_what_is_missing(capsys, monkeypatch) -> None:
    monkeypatch.setattr(plotting.importlib.util, "find_spec", lambda name: None)
    assert cli.main(["profile", "--backend", "emulator"]) == 2
    assert "pip install 'flash-attention[plot]'" in capsys.readouterr().err


@pytest.fixture
def pynative():
    """PYNATIVE for the test, and the mode as it was."""
    before = mindspore.get_context("mode")
    yield
    mindspore.set_context(mode=before)


@pytest.mark.usefixtures("pynative")
def test_the_steps_of_composed_attention_are_attention() -> None:
    case = Case(48, heads=2, head_dim=16)
    steps = ComposedSteps()
    for call in steps.prepare(case).values():
        call()
    query, key, value, d_output = random_inputs(case, 4)
    truth = reference.truth(case.problem, query, key, value, d_output=d_output)
    for name in ("output", "d_query", "d_key", "d_value"):
        np.testing.assert_allclose(steps.tensors[name].asnumpy(), getattr(truth, name), atol=2e-5)
    for name, step in STEPS.items():
        assert step.written(case) == steps.tensors[name].nbytes


class Stopped:
    """A worker whose calls all take a second."""

    def __init__(self, name: str):
        self.name = name

    def prepare(self, case: Case):
        return None

    def seconds(self, kind: str, least: float = 0.0) -> float:
        return 2.0 if kind == "both" else 1.0


def test_operators_are_added_up_in_each_pass() -> None:
    rows = operators.measure(Stopped("steps"), Stopped("flash"), Case(64, heads=1, head_dim=32), rounds=1)
    assert operators.Row("composed forward", "BatchMatMul", 2, 2.0, 64 * 64 * 4 + 64 * 32 * 4) in rows
    assert operators.Row("flash backward", "FlashAttention", 1, 1.0, 3 * 64 * 32 * 4) in rows
    lines = operators.text(rows).splitlines()
    assert [line.split()[2:] for line in lines if "composed forward   all" in line] == [
        ["all", "5", "5000.00", "100.0%", "0.1"]
    ]
    assert sum("100.0%" in line for line in lines) == 4


@pytest.mark.parametrize(
    "more, said", [(["--backend", "emulator"], "--operators"), (["--window-blocks", "2"], "got 2")]
)
def test_operators_are_of_the_cpu_and_without_window(more, said, capsys) -> None:
    assert cli.main(["profile", "--operators", *more]) == 2
    assert said in capsys.readouterr().err
