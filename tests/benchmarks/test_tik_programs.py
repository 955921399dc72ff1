"""The programs that print needs, conversions and curves of the TIK operators on the modelled core."""

import dataclasses

import pytest
from flash_attention.commands.bench import tik
from flash_attention.kernels.tik import KernelProblem
from flash_attention.kernels.tik.hardware import INSTRUCTION_CACHE
from flash_attention.kernels.tik.instruction_forms import InstructionForms
from flash_attention.measuring import tik_kernels

from benchmarks import tik_conversions, tik_forms, tik_lengths
from benchmarks import tik_kernels as program

pytest.importorskip("tikemu")


@pytest.fixture
def two_shapes(monkeypatch: pytest.MonkeyPatch) -> tuple:
    """Both operators, head dimensions and maskings."""
    shapes = (("forward", 128, False), ("backward", 64, True))
    monkeypatch.setattr(tik, "SHAPES", shapes)
    return shapes


def test_costs_of_every_form(capsys, monkeypatch):
    # Both kinds of cases, whose cost at length is in test_instruction_forms.py.
    monkeypatch.setattr(tik_forms, "FORM_CASES", tik_forms.FORM_CASES[::4])
    assert tik_forms.main(["--seq", "128"]) == 0
    printed = capsys.readouterr().out
    for field in dataclasses.fields(InstructionForms):
        (line,) = (line for line in printed.splitlines() if line.startswith(field.name))
        assert line.count("%") == 2


@pytest.mark.parametrize(
    "change, said",
    [
        ({}, []),
        ({"code_bytes": INSTRUCTION_CACHE + 1}, ["code"]),
        ({"events": {"V->M": 5}}, ["events"]),
        ({"build_seconds": 11.0}, ["build time"]),
        ({"peak_bytes": {"UB": 1, "L1": 2, "L0A": 65537, "L0B": 4, "L0C": 262145}}, ["L0A", "L0C"]),
    ],
)
def test_what_is_too_much_is_named(change, said):
    measured = tik_kernels.measure(KernelProblem(1, 1, 64, 64, 32, cores=1))
    measured = dataclasses.replace(measured, **change)
    assert program.excess(measured) == said
    assert program.table([measured]).count("over: ") == len(said)


def test_conversions_are_traffic_over_the_memory_rate(two_shapes, capsys):
    problem = KernelProblem(1, 2, 64, 64, 32, cores=1)
    measured = tik_kernels.measure(problem)
    # Three conversions of query, key, value and output, each read and written.
    moved = 3 * 4 * 2 * (2 * 64 * 32 * 2)
    cycles = tik_conversions.traffic_cycles(measured, 3, 0.5)
    assert cycles == moved / (tik_conversions.BYTES_PER_CYCLE / 2)
    shares = tik_conversions.shares(measured, [])
    work, cycles = measured.utilisation * measured.cycles, tik_conversions.traffic_cycles(measured, 3, 0.6)
    assert shares["BNSD, SBH behind MatMul"][1] == pytest.approx(work / (measured.cycles + cycles))
    assert tik_conversions.main(["--seq", "128"]) == 0
    assert "backward D=64 causal" in capsys.readouterr().out


def test_curves_have_a_panel_for_every_shape(capsys, tmp_path, monkeypatch):
    pytest.importorskip("matplotlib")
    panels = tik_lengths.PANELS
    assert len(set(panels)) == 8
    monkeypatch.setattr(tik_lengths, "PANELS", panels[:1])
    curves = tik_lengths.measure([64, 128])
    assert {sync: [seq for seq, _ in points] for sync, points in curves[panels[0]].items()} == {
        sync: [64, 128] for sync in tik.SYNC
    }
    monkeypatch.setattr(tik_lengths, "PANELS", panels)
    assert tik_lengths.draw(curves, tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    "options, said",
    [
        (["--operator", "forward", "rows"], ["forward D=64 S=128 full", "rows D=64 S=128 causal", "L0C"]),
        (["--data", "2", "--sync", "auto"], ["forward D=64 S=128 causal"]),
        (["--buffers"], ["strategy", "L0C: ", " of 262144 bytes"]),
        (["--timeline", "0", "9000"], ["MTE2 |", "#"]),
    ],
)
def test_kernels_are_shown(options, said, capsys, monkeypatch):
    monkeypatch.setattr("sys.argv", ["tik_kernels", "--seq", "128", "--head-dim", "64", *options])
    program.main()
    printed = capsys.readouterr().out
    assert all(text in printed for text in said), printed
    assert "over: " not in printed
