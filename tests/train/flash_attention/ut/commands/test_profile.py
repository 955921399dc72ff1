"""`flash-attention profile`: a TIK operator on the emulator, and the native kernel beside the processor's peak."""

import json
from dataclasses import replace

import pytest
from flash_attention import cli
from flash_attention.call.visits import visits
from flash_attention.commands.profile import emulator
from flash_attention.commands.profile.emulator import Event, KernelCase

pytest.importorskip("tikemu")


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the table over lengths to two short ones."""
    monkeypatch.setattr(emulator, "LENGTHS", (64, 128))


@pytest.mark.usefixtures("short")
def test_profile_leaves_text_and_trace(capsys, tmp_path) -> None:
    assert cli.main(["profile", "forward,S=256,D=64,causal", "--backend", "emulator", "--out", str(tmp_path)]) == 0
    printed = capsys.readouterr().out
    assert (tmp_path / "profile.txt").read_text() in printed
    for said in ("forward S=256 D=64 causal", "steady state, cycles", "PIPE_MTE1", "who waited for whom"):
        assert said in printed
    assert [line.split()[0] for line in printed.splitlines() if line.strip()[:3] in ("64 ", "128")] == ["64", "128"]
    assert {path.name for path in tmp_path.iterdir()} == {"profile.txt", "trace.json"}
    stages = printed[printed.index("steady state") : printed.index("kernel ")]
    assert max(map(len, stages.splitlines())) < 200 and " 0%," not in stages
    events = [event for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"] if event["ph"] == "X"]
    assert {event["args"]["writes"] for event in events if event["cat"] == "M"} >= {"output_0", "total_0"}
    assert {event["name"] for event in events if event["cat"] == "wait"} >= {"waits for S"}
    (of_s,) = (line for line in printed.splitlines() if line.split()[:1] == ["S"] and "%" in line)
    assert "scalar" in of_s and "wait" not in of_s


def test_a_case_is_operator_lengths_and_rules_in_any_order() -> None:
    assert KernelCase.parse("") == KernelCase("forward", 2048, 128, "full")
    case = KernelCase.parse("causal_alibi,D=64,backward,S=512")
    assert case == KernelCase("backward", 512, 64, "causal_alibi")
    problem = case.problem
    assert (problem.call.seq_q, problem.call.head_dim, problem.call.rules.causal, problem.call.bias) == (
        512,
        64,
        True,
        "alibi",
    )


@pytest.mark.usefixtures("short")
def test_a_block_mask_says_what_is_visited(capsys, tmp_path) -> None:
    command = ["profile", "backward,S=512,D=64", "--backend", "emulator", "--out", str(tmp_path)]
    assert cli.main([*command, "--block-mask", "sink_window", "--tile", "64"]) == 0
    printed = capsys.readouterr().out
    case = KernelCase("backward", 512, 64, pattern="sink_window", tile=64)
    seen = visits(case.problem.call, case.block_mask)
    assert 0.1 < seen.density < 0.6 and f"8 row blocks visit {seen.visited} of 64 tiles of 64 x 64" in printed
    (result, sparse), (full, dense) = case.measure(), replace(case, pattern="").measure()
    assert result.cycles < full.cycles
    assert sparse.utilisation / dense.utilisation == pytest.approx(seen.density * full.cycles / result.cycles)
    assert sparse.cycles_per_tile == pytest.approx(result.cycles / (seen.visited / 4))


@pytest.mark.parametrize("part", ["sideways", "S=0", "D=", "causal window"])
def test_what_is_no_part_of_a_case_is_named(part, capsys) -> None:
    assert cli.main(["profile", f"forward,{part}", "--backend", "emulator"]) == 2
    assert f"CASE: got {part!r}, allowed are forward, " in capsys.readouterr().err


def test_the_window_lies_where_the_cube_is_busiest() -> None:
    sparse = [Event("M", at, at + 10, "mmad", "scores") for at in range(0, 1000, 100)]
    dense = [Event("M", at, at + 90, "mmad", "scores") for at in range(1000, 2000, 100)]
    start, end = emulator.window(sparse + dense, 400)
    assert start >= 1000 and end == start + 400 <= 2000


def test_shares_of_stages_count_what_lies_in_the_window() -> None:
    shown = [Event("M", 90, 150, "mmad", "scores"), Event("M", 150, 160, "mmad", "output")]
    lines = emulator.stages(shown, 100, 200).splitlines()
    assert lines[2].split() == ["M", "60%", "scores", "50%,", "output", "10%"]
