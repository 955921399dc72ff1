"""`flash-attention profile CASE --backend emulator`, and the curves of `flash-attention bench --plot`."""

import json

import pytest
from flash_attention import cli, plotting
from flash_attention.commands.bench import lengths, tik
from flash_attention.commands.bench.case import Case
from flash_attention.commands.bench.turns import Timing
from flash_attention.commands.profile import emulator
from flash_attention.commands.profile.emulator import Event, KernelCase

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
    for said in ("forward S=256 D=64 causal", "steady state, cycles", "PIPE_MTE1"):
        assert said in printed
    assert [line.split()[0] for line in printed.splitlines() if line.strip()[:3] in ("64 ", "128")] == ["64", "128"]
    for name in ("timeline.png", "roofline.png"):
        assert (tmp_path / name).read_bytes().startswith(PNG)
    events = [event for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert {event["args"]["writes"] for event in events if event["cat"] == "M"} >= {"output_0", "total_0"}


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


@pytest.mark.parametrize("command", ["profile --backend emulator", "bench --tik --plot", "bench --plot"])
def test_plots_name_what_is_missing(command, capsys, monkeypatch) -> None:
    monkeypatch.setattr(plotting.importlib.util, "find_spec", lambda name: None)
    assert cli.main(command.split()) == 2
    assert "pip install 'flash-attention[plot]'" in capsys.readouterr().err


def test_curves_are_sorted_into_panels(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    timings = [
        Timing(name, Case(seq, head_dim=64, causal=False), kind, (seconds,))
        for seq in (512, 256)
        for name, seconds in (("flash", 0.5), ("torch", 1.0))
        for kind in ("forward", "both", "backward")
    ]
    curves = lengths.of_timings(timings)
    assert set(curves) == {lengths.Panel("forward", 64, False), lengths.Panel("backward", 64, False)}
    flash, torch = (curves[lengths.Panel("forward", 64, False)][name] for name in ("flash", "torch"))
    assert [seq for seq, _ in flash] == [256, 512]
    assert [speed for _, speed in flash] == [2 * speed for _, speed in torch]
    assert lengths.draw(curves, 100.0, "GFLOP/s", "title", tmp_path / "curves.png").read_bytes().startswith(PNG)


def test_bench_plots_shares_of_the_peak(capsys, tmp_path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(tik, "PANELS", lengths.PANELS[:1])
    assert cli.main(["bench", "--tik", "--plot", "--seq", "64", "--seq", "128", "--out", str(tmp_path)]) == 0
    assert (tmp_path / "tik_lengths.png").read_bytes().startswith(PNG)
