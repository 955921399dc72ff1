"""The programs that print what the TIK operators need on the modelled core."""

import dataclasses

import pytest
from flash_attention.kernels.tik import KernelProblem
from flash_attention.kernels.tik.hardware import INSTRUCTION_CACHE
from flash_attention.kernels.tik.instruction_forms import InstructionForms
from flash_attention.measuring import tik_kernels

from benchmarks import tik_forms
from benchmarks import tik_kernels as program

pytest.importorskip("tikemu")


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
