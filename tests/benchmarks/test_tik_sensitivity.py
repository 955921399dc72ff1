"""Print ranges of figures under readings of the evidence on the chip."""

import re

import pytest
from flash_attention.measuring import tik_kernels
from flash_attention.measuring.readings import READINGS, STALLS

from benchmarks import tik_sensitivity

pytest.importorskip("tikemu")


def test_every_reading_names_constants_of_the_model() -> None:
    from tikemu.soc import ASCEND_910A

    assert all(hasattr(ASCEND_910A.timing, name) for reading in (*READINGS.values(), STALLS) for name in reading)


def test_a_range_has_the_shares_of_the_readings(capsys, monkeypatch) -> None:
    monkeypatch.setattr(tik_sensitivity, "CASES", (("forward", 128, False),))
    assert tik_sensitivity.main(["--seq", "512"]) == 0
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
