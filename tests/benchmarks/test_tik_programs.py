"""The programs that print the needs of the TIK operators on the modelled core."""

import dataclasses
import re

import pytest
from flash_attention.kernels.tik.hardware import INSTRUCTION_CACHE
from flash_attention.kernels.tik.instruction_forms import InstructionForms
from flash_attention.measuring import tik_kernels
from flash_attention.measuring.readings import READINGS, STALLS

from benchmarks import tik_kernels as program
from tests.train.flash_attention.support.calls import make_kernel_problem

pytest.importorskip("tikemu")


@pytest.fixture
def shown(capsys, monkeypatch):
    """Return the program's output with options."""

    def printed(*options):
        monkeypatch.setattr("sys.argv", ["tik_kernels", *options])
        program.main()
        return capsys.readouterr().out

    return printed


def test_costs_of_every_form(shown, monkeypatch):
    # Both kinds of cases; test_instruction_forms.py has their cost in detail.
    monkeypatch.setattr(program, "FORM_CASES", program.FORM_CASES[::4])
    printed = shown("--forms", "--seq", "128")
    for field in dataclasses.fields(InstructionForms):
        if field.name == "write_absent":  # measured kernels lack no output
            continue
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
    measured = tik_kernels.measure(make_kernel_problem(1, 1, 64, 64, 32, cores=1))
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
def test_kernels_are_shown(options, said, shown):
    printed = shown("--seq", "128", "--head-dim", "64", *options)
    assert all(text in printed for text in said), printed
    assert "over: " not in printed


def test_every_reading_names_constants_of_the_model():
    from tikemu.soc import ASCEND_910A

    assert all(hasattr(ASCEND_910A.timing, name) for reading in (*READINGS.values(), STALLS) for name in reading)


def test_a_range_has_the_shares_of_the_readings(shown, monkeypatch):
    monkeypatch.setattr(program.tik, "SHAPES", (("forward", 128, False),))
    header, _, line = shown("--readings", "--seq", "512").splitlines()[:3]
    model, least, most, *shares = re.findall(r"\d+\.?\d*", line.partition("full")[2])
    *shares, stalls = map(float, shares)
    assert len(shares) == len(READINGS) - 1 and all(name in header for name in READINGS)
    assert int(least) == round(min(shares)) and int(most) == round(max(float(model), *shares)) and stalls < float(model)


def test_the_ends_of_the_ranges_are_the_model_and_the_slowest_reading():
    """`bench --tik` measures only these two."""
    kernel = tik_kernels.build(tik_kernels.problem_of(1024, 128), "forward")
    cycles = {name: tik_kernels.simulate(kernel, constants=given).cycles for name, given in READINGS.items()}
    assert cycles["model"] < 1.005 * min(cycles.values()) and cycles["slowest"] == max(cycles.values())
