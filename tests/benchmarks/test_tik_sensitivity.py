"""What other constants of the timing model do to the figures of the TIK operators."""

import re
from dataclasses import replace

import pytest
from flash_attention.commands.tune.variants import Case, Variant
from flash_attention.measuring import tik_kernels
from flash_attention.measuring.readings import READINGS, STALLS

from benchmarks import tik_sensitivity as sensitivity
from benchmarks.tik_sensitivity import Setting

pytest.importorskip("tikemu")
CASE = Case("forward", 64, 128, "full")
MEASURED = tik_kernels.Measurement(CASE.problem, "forward", "auto", 1000.0, 0.5, 100.0, {}, 20000, {}, {}, 1, 1.0)


@pytest.fixture
def narrow(monkeypatch: pytest.MonkeyPatch) -> None:
    """One small case, one group of constants."""
    monkeypatch.setattr(sensitivity, "CASES", (CASE,))
    monkeypatch.setattr(sensitivity, "SETTINGS", tuple(Setting("memory", factor) for factor in (0.5, 2.0)))
    monkeypatch.setattr(sensitivity, "GROUPS", {"memory": sensitivity.GROUPS["memory"]})
    monkeypatch.setattr(sensitivity, "variants", lambda case: [Variant("pair128")])
    monkeypatch.setattr(sensitivity, "code", lambda cases, measured: "code")


@pytest.mark.usefixtures("narrow")
def test_less_bandwidth_of_the_memory_costs_speed(capsys) -> None:
    assert sensitivity.run(256, compare_variants=True) == 0
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("forward D=128 full"))
    model, half, double = (float(cell) for cell in line.replace("/", " ").split()[3:])
    assert half < model < double


def test_every_group_names_constants_of_the_model() -> None:
    from tikemu.soc import ASCEND_910A

    for setting in (Setting(group, factor) for group in sensitivity.GROUPS for factor in sensitivity.FACTORS):
        usual = {name: getattr(ASCEND_910A.timing, name) for name in sensitivity.GROUPS[setting.group]}
        assert setting.constants == {name: value * setting.factor for name, value in usual.items()}
    assert Setting().constants == {}
    assert all(hasattr(ASCEND_910A.timing, name) for reading in (*READINGS.values(), STALLS) for name in reading)


@pytest.mark.usefixtures("narrow")
def test_the_range_of_a_share_is_that_of_the_readings(capsys) -> None:
    assert sensitivity.run(512, compare_variants=False) == 0
    header, _, line = capsys.readouterr().out.splitlines()[2:5]
    model, least, most, *shares = re.findall(r"\d+\.?\d*", line.partition("full")[2])
    *shares, stalls = map(float, shares)
    assert len(shares) == len(READINGS) - 1 and all(name in header for name in READINGS)
    assert int(least) == round(min(shares)) and int(most) == round(max(float(model), *shares)) and stalls < float(model)


def test_the_ends_of_the_ranges_are_the_model_and_the_slowest_reading() -> None:
    """`bench --tik` looks at these two alone."""
    kernel = tik_kernels.build(tik_kernels.problem_of(1024, 128), "forward")
    cycles = {name: tik_kernels.simulate(kernel, constants=given).cycles for name, given in READINGS.items()}
    assert cycles["model"] < 1.005 * min(cycles.values()) and cycles["slowest"] == max(cycles.values())


def measured(usual: float, other: float) -> dict:
    """Two variants by their cycles."""
    pairs = (Variant("pair128"), usual), (Variant("single128"), other)
    return {variant: replace(MEASURED, cycles=cycles) for variant, cycles in pairs}


def test_settings_under_which_another_variant_is_faster_are_named() -> None:
    found = {(CASE, setting): measured(100.0, 99.5) for setting in (Setting(), *sensitivity.SETTINGS)}
    assert sensitivity.changes([CASE], found) == []
    found[CASE, Setting("memory", 2.0)] = measured(110.0, 100.0)
    row = [str(CASE), "memory x2", "pair128", "single128", "+10.0%", "+0.5%"]
    assert sensitivity.changes([CASE], found) == [row]


def test_changes_are_told_from_what_the_model_chooses() -> None:
    found = {(CASE, setting): measured(105.0, 100.0) for setting in (Setting(), *sensitivity.SETTINGS)}
    found[CASE, Setting("memory", 0.5)] = measured(200.0, 210.0)
    row = [str(CASE), "memory x0.5", "single128", "pair128", "+5.0%", "-4.8%"]
    assert sensitivity.changes([CASE], found) == [row]


def test_code_beyond_the_cache_is_named() -> None:
    sizes = {Setting("code size", 0.5): 15000, Setting(): 25000, Setting("code size", 2.0): 40000}
    found = {(CASE, s): {Variant("pair128"): replace(MEASURED, code_bytes=size)} for s, size in sizes.items()}
    assert sensitivity.code([CASE], found).splitlines()[-1].split()[-4:] == ["15000", "25000", "40000", "x2"]
