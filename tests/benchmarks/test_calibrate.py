"""The report of a card becomes constants of the timing model."""

import json

import pytest
from flash_attention.commands.selftest import loops
from flash_attention.commands.selftest.card import Emulator
from flash_attention.commands.selftest.experiments import PREFIX

from benchmarks import calibrate

pytest.importorskip("tikemu")
QUICK = [loop for loop in loops.LOOPS if loop.unit == "cycles" and not loop.cached]


def report_of(chip: dict, questions=QUICK, slower: float = 1.0) -> dict:
    """Return the report of a card with these constants and a slower clock."""
    card = Emulator()
    times = {loop.name: [slower * one for one in card.seconds(loop, chip)] for loop in questions}
    experiments = [{"name": PREFIX + name, "times": seconds} for name, seconds in times.items()]
    experiments += [{"name": "chip"}, {"name": f"{PREFIX}launch", "times": [11e-6, 21e-6]}]
    return {"soc": "Ascend910A", "experiments": experiments}


def printed(report: dict, tmp_path, monkeypatch, capsys) -> str:
    """Return the text that the command prints for a report."""
    path = tmp_path / "card.json"
    path.write_text(json.dumps(report), encoding="utf-8")
    monkeypatch.setattr(calibrate.tik, "SHAPES", (("forward", 64, False),))
    assert calibrate.main([str(path), "--seq", "256"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "chip",
    [
        {"vector_reads_add": 0.0, "ub_scalar_read": 8.0, "vector_transcendental_f16": 8.0, "l0c_ub_bandwidth": 128.0},
        pytest.param({"vector_head": 11.0, "vector_two_sources": 2.0}, marks=pytest.mark.system),
        pytest.param({"issue_cycles": 7.0, "vector_latency": 30.0, "mask_drain": 1.0}, marks=pytest.mark.system),
    ],
)
def test_the_constants_of_a_chip_come_back(chip: dict) -> None:
    times = calibrate.times_of(report_of(chip))
    model = calibrate.Model("Ascend910A")
    measured = {loop.name: calibrate.answer(loop, times[loop.name], 1e9) for loop in QUICK}
    rows = {name: said for name, _, said in calibrate.fit(model, measured)}
    assert model.constants == pytest.approx(chip, rel=0.01)
    assert rows["hbm_bandwidth"] == "not asked"
    assert all(rows[name].startswith("becomes") == (name in chip) for name in rows if rows[name] != "not asked")


def test_the_command_says_what_changes(tmp_path, monkeypatch, capsys) -> None:
    text = printed(report_of({"vector_head": 14.0}, slower=1.25), tmp_path, monkeypatch, capsys)
    assert "clock 800 MHz, 1000 in the profile" in text
    assert "readings of the evidence that fit: head 14\n" in text
    (head,) = (line for line in text.splitlines() if line.startswith("vector_head"))
    assert head.split() == ["vector_head", "0", "becomes", "14"]
    assert "becomes 1.1e-05" in text
    (forward,) = (line.split() for line in text.splitlines() if line.startswith("forward D=64 full"))
    assert float(forward[3]) > float(forward[5])


def test_a_chip_unlike_any_value_of_a_constant_is_said(tmp_path, monkeypatch, capsys) -> None:
    report = report_of({})
    (slow,) = (one for one in report["experiments"] if one["name"] == f"{PREFIX}exp float32")
    slow["times"] = [one * 1000 for one in slow["times"]]
    text = printed(report, tmp_path, monkeypatch, capsys)
    assert "no value gives 5.1e+05: the structure of the model is wrong" in text


def test_a_report_without_times_is_refused() -> None:
    with pytest.raises(ValueError, match="no times of dup, 255 repeats, dup, 128 repeats"):
        calibrate.times_of({"experiments": [{"name": "chip"}]})


@pytest.mark.slow
def test_memory_and_latencies_come_back() -> None:
    chip = {"gm_read_latency": 500.0, "l2_read_latency": 200.0, "gm_read_bandwidth": 60.0, "hbm_bandwidth": 1.0e12}
    names = {calibrate.DECIDED_BY[name] for name in chip}
    model, card = calibrate.Model("Ascend910A"), Emulator()
    asked = [loop for loop in loops.LOOPS if loop.name in names]
    measured = {loop.name: calibrate.answer(loop, card.seconds(loop, chip), 1e9) for loop in asked}
    calibrate.fit(model, measured)
    assert model.constants == pytest.approx(chip, rel=0.03)
