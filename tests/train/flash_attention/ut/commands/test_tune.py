"""`flash-attention tune`: what it measures, what it keeps, and the table that the strategies read."""

import json

import pytest
from flash_attention import cli
from flash_attention.commands.tune import device, search, variants
from flash_attention.commands.tune.search import Times
from flash_attention.commands.tune.variants import Case, Variant
from flash_attention.kernels.tik import tuning

CASES = [Case("forward", seq, 64, "full") for seq in (256, 1024)]


class StandIn:
    """A timer that needs no device: single128 is `gain` times as fast as the others from 1024 tokens on."""

    def __init__(self, gain: float = 1.25, fails_after: int = 10**9) -> None:
        self.gain, self.left = gain, fails_after
        self.calls: list[tuple[Case, Variant]] = []

    def __call__(self, case: Case, variant: Variant) -> float:
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        self.calls.append((case, variant))
        fast = variant == Variant("single128") and case.seq >= 1024
        return 100.0 / self.gain if fast else 100.0


def test_every_plan_that_fits_is_a_variant_once_and_the_usual_one_comes_first() -> None:
    for case in (CASES[0], Case("backward", 512, 128, "causal")):
        found = variants.variants(case)
        plans = [variants.plan_of(case, (case.entry(variant),)) for variant in found]
        assert plans[0] == variants.plan_of(case, ())
        assert len(found) == len(set(plans)) > 2
        assert [plan.strategy for plan in plans] == [variant.strategy for variant in found]


def test_a_variant_enters_the_table_for_the_lengths_around_it(tmp_path) -> None:
    times = Times(StandIn(), tmp_path / "state.json", "emulator")
    found = search.search(CASES, times)
    ((entry, beside),) = search.entries(found, times)
    assert entry == tuning.Entry("forward", 64, "full", 513, 2047, "single128")
    assert beside == {"gain": 0.25}
    usual, large = (line.split() for line in search.report(found).splitlines()[2:])
    assert usual[:6] == ["forward", "S=256", "D=64", "full", "pair128", "pair128"] and usual[7] == "-"
    assert large[5:8] == ["single128", "+25.0%", "+25.0%"]


def test_less_than_a_percent_changes_nothing(tmp_path) -> None:
    times = Times(StandIn(1.009), tmp_path / "state.json", "emulator")
    assert search.entries(search.search(CASES, times), times) == []


@pytest.mark.parametrize(("slow", "low", "high"), ((513, 1024, 2047), (2047, 513, 1024)))
def test_an_entry_ends_where_its_variant_is_slower_between_the_lengths(slow, low, high, tmp_path) -> None:
    def timer(case: Case, variant: Variant) -> float:
        return 200.0 if variant == Variant("single128") and case.seq == slow else StandIn()(case, variant)

    times = Times(timer, tmp_path / "state.json", "emulator")
    ((entry, _),) = search.entries(search.search(CASES, times), times)
    assert (entry.low, entry.high) == (low, high)


def test_an_interrupted_search_goes_on_where_it_was(tmp_path) -> None:
    state = tmp_path / "state.json"
    whole, first, rest = StandIn(), StandIn(fails_after=3), StandIn()
    expected = search.search(CASES, Times(whole, tmp_path / "other.json", "emulator"))
    with pytest.raises(KeyboardInterrupt):
        search.search(CASES, Times(first, state, "emulator"))
    assert search.search(CASES, Times(rest, state, "emulator")) == expected
    assert first.calls + rest.calls == whole.calls


@pytest.mark.parametrize("change", [{"kernels": "others"}, {"device": "ascend"}])
def test_times_of_other_kernels_or_devices_are_dropped(change, tmp_path, capsys) -> None:
    path, asked = tmp_path / "state.json", (CASES[0], Variant("pair128"))
    assert Times(lambda *_: 1.0, path, "emulator")(*asked) == 1.0
    assert Times(lambda *_: 2.0, path, "emulator")(*asked) == 1.0
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    assert Times(lambda *_: 3.0, path, "emulator")(*asked) == 3.0
    assert "starts anew" in capsys.readouterr().out


def test_lengths_of_an_entry_meet_those_of_its_neighbours() -> None:
    assert [search.around(seq, (256, 512, 2048)) for seq in (256, 512, 2048)] == [(129, 362), (363, 1023), (1025, 4095)]


@pytest.mark.parametrize("name", ["emulator", "ascend"])
def test_the_command_writes_the_table_that_the_strategies_read(name, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.setattr(search, "timer_of", lambda device: StandIn())
    options = ["--operator", "forward", "--head-dim", "64", "--seq", "1024", "--rules", "full", "--device", name]
    out, state = tmp_path / "table.json", tmp_path / "state.json"
    assert cli.main(["tune", *options, "--out", str(out), "--state", str(state)]) == 0
    assert f"written: {out}, 1 entries" in capsys.readouterr().out
    assert json.loads(state.read_text())["device"] == name
    with tuning.using(tuning.read(out)):
        chosen = [variants.plan_of(case, tuning.current()).strategy for case in CASES]
    assert chosen == ["pair128", "single128"]


def test_cycles_of_the_emulator_are_those_of_the_variant() -> None:
    pytest.importorskip("tikemu")
    case = Case("forward", 128, 32, "full")
    usual, narrow = (variants.emulated(case, Variant(name)) for name in ("single128", "single32"))
    assert 0 < usual < narrow


def test_the_timer_of_a_device_starts_a_process_with_the_table_of_one_variant(monkeypatch) -> None:
    seen = {}

    def run(command, env, **_):
        seen.update(command=command, table=tuning.read(tuning.Path(env["FLASH_ATTENTION_TUNING"])))
        return device.subprocess.CompletedProcess(command, 0, "a warning\n0.25\n", "")

    monkeypatch.setattr(device.subprocess, "run", run)
    assert device.DeviceTimer()(CASES[0], Variant("single64")) == 0.25
    assert seen["command"][-4:] == ["forward", "256", "64", "full"]
    assert seen["table"] == (CASES[0].entry(Variant("single64")),)


def test_the_timer_of_a_device_says_why_it_failed(monkeypatch) -> None:
    failed = device.subprocess.CompletedProcess([], 1, "", "Traceback\nRuntimeError: no device\n")
    monkeypatch.setattr(device.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(RuntimeError, match="forward S=256 D=64 full with single64 failed with status 1: .*no device"):
        device.DeviceTimer()(CASES[0], Variant("single64"))


def test_seconds_are_the_median_of_rounds_without_the_first_call(monkeypatch) -> None:
    clock, costs = [0.0], iter([1000.0] + [1.0] * device.CALLS + [50.0] * device.CALLS + [2.0] * device.CALLS * 3)

    def call() -> None:
        clock[0] += next(costs)

    monkeypatch.setattr(device.time, "perf_counter", lambda: clock[0])
    assert device.seconds_of(call) == 2.0


@pytest.mark.parametrize("option", ["--head-dim", "--seq"])
def test_sizes_are_checked(option, capsys) -> None:
    assert cli.main(["tune", option, "64", "0"]) == 2
    assert f"{option}: got [64, 0], allowed is 1 or more" in capsys.readouterr().err
