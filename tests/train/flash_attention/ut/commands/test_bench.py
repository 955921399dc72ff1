"""The bench's own arithmetic and its processes; `flash-attention bench --quick` is a system test."""

import time
from pathlib import Path

import numpy as np
import pytest
from flash_attention.commands.bench import speed
from flash_attention.measuring import figures
from flash_attention.measuring.case import Case
from flash_attention.measuring.implementations import Composed
from flash_attention.measuring.timing import (
    Timing,
    Worker,
    extra_bytes,
    median_seconds,
    medians,
    rounds_in_turns,
    time_in_turns,
)
from flash_attention.text_table import about

pytestmark = pytest.mark.system

CASE = Case(256)


class Clock:
    """An implementation with calls that take the given seconds, over and over."""

    def __init__(self, name: str, reason: str = "", **seconds: list):
        self.name = name
        self.reason = reason
        self.left = {kind: list(values) for kind, values in seconds.items()}
        self.calls = []

    def prepare(self, case: Case):
        return self.reason or None

    def seconds(self, kind: str, least: float = 0.0) -> float:
        self.calls.append(kind)
        value = self.left[kind].pop(0)
        self.left[kind].append(value)
        return value


def test_backward_is_the_difference_in_each_round_after_a_warm_up() -> None:
    clock = Clock("flash", forward=[9, 1, 2, 3], both=[9, 4, 7, 5])
    timings, reasons = time_in_turns([clock], CASE, rounds=3, budget=0)
    assert {timing.kind: timing.seconds for timing in timings} == {
        "forward": (1, 2, 3),
        "both": (4, 7, 5),
        "backward": (3, 5, 2),
    }
    assert reasons == {}
    assert [timing.median for timing in timings if timing.kind == "backward"] == [3]


def test_implementations_take_turns_and_refusals_are_kept() -> None:
    order = []
    clocks = [Clock(name, forward=[1]) for name in ("flash", "torch")]
    for clock in clocks:
        clock.calls = order
        clock.seconds = lambda kind, least=0.0, name=clock.name: order.append(name) or 1.0
    _, reasons = time_in_turns([*clocks, Clock("composed", "too large")], CASE, 2, 60, kinds=("forward",))
    assert order[2:] == ["flash", "torch"] * 2
    assert reasons == {"composed": "too large"}


def test_rounds_end_with_the_budget_but_not_before_the_third() -> None:
    assert [len(results) for results in rounds_in_turns([lambda: 1, lambda: 2], 9, budget=0.0)] == [3, 3]
    assert len(rounds_in_turns([lambda: 1], 2, budget=0.0)[0]) == 2


def test_a_call_and_what_it_returns_have_medians_of_their_own() -> None:
    found = medians({"both": lambda: lambda: time.sleep(0.02), "one": lambda: None}, 3)
    assert len(found["one"]) == 1 and found["both"][0] < 0.02 <= found["both"][1]


def test_a_worker_times_calls_in_its_own_process() -> None:
    with Worker("gemm", threads=1) as worker:
        timings, _ = time_in_turns([worker], CASE, rounds=2, budget=5, kinds=("forward",))
    assert len(timings[0].seconds) == 2 and min(timings[0].seconds) > 1e-4


@pytest.mark.parametrize(
    "durations, least, seconds, calls",
    [
        ([7, 9], 5, 7, 1),  # long enough: one call
        ([7, 9], 0, 7, 1),
        ([9, 1, 3, 2, 99], 15, 2, 4),  # the first of several does not count
    ],
)
def test_short_calls_are_repeated_until_they_take_long_enough(monkeypatch, durations, least, seconds, calls) -> None:
    now, left = [0.0], list(durations)

    def call() -> None:
        now[0] += left.pop(0)

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    assert median_seconds(call, least) == seconds
    assert len(left) == len(durations) - calls


def test_a_dead_worker_is_reported() -> None:
    with Worker("nobody", threads=1) as worker, pytest.raises(RuntimeError, match="nobody died .* KeyError"):
        worker.prepare(CASE)


def test_extra_bytes_sees_what_a_call_allocates_and_frees() -> None:
    extra_bytes(lambda: np.ones(1 << 20))
    assert abs(extra_bytes(lambda: np.ones(64 << 20, np.uint8)) - (64 << 20)) < 8 << 20
    assert extra_bytes(lambda: None) < 8 << 20


def test_what_was_not_measured_for_one_reason_is_one_line() -> None:
    missing = figures.Figure("to torch", None, "x", "torch is not installed")
    text = figures.text([figures.Figure("first", 160, "ms"), *[missing] * 34])
    assert text.splitlines()[3:] == ["not measured, 34 figures: torch is not installed"]
    assert "160.00 ms" in text


def test_speed_compares_the_same_pass_and_case() -> None:
    other = Case(512)
    seconds = {("flash", CASE): 2.0, ("torch", CASE): 3.0, ("flash", other): 1.0, ("torch", other): 9.0}
    timings = [Timing(n, c, kind, (s,)) for (n, c), s in seconds.items() for kind in ("forward", "backward")]
    assert [row.split()[-2:] for row in speed.times_table(timings).splitlines()[2:]] == [["1.5", "x"]] * 2 + [
        ["9.0", "x"]
    ] * 2


def test_the_bench_knows_about_how_long_it_takes() -> None:
    def seconds(lengths, names=("flash", "composed"), rounds=3):
        return speed.estimate([Case(seq, dtype) for dtype in speed.DTYPES for seq in lengths], names, rounds, 20.0)

    quick, whole = seconds(speed.QUICK_LENGTHS), seconds(speed.LENGTHS, rounds=9)
    assert 5 < quick <= 60 and whole > 5 * quick
    assert seconds((256, 512), ("flash",)) < seconds((256, 512))
    assert [about(number) for number in (1, 42, 94, 95, 1000)] == [
        "about 5 s",
        "about 40 s",
        "about 95 s",
        "about 2 min",
        "about 17 min",
    ]


def test_reasons_are_told_once(capsys) -> None:
    cases = [Case(256), Case(256, "bfloat16")]
    missing = {("torch", case): "not installed" for case in cases}
    speed.tell({**missing, ("composed", cases[1]): "no bfloat16"}, cases)
    told = ["not run, torch: not installed", "not run, composed: S=256 bfloat16: no bfloat16"]
    assert capsys.readouterr().out.split("\n\n") == [*told, ""]


def test_a_worker_ends_at_once_and_says_why_it_died() -> None:
    """The worker has imported MindSpore, whose normal end would take half a second."""
    worker = Worker("flash", threads=1)
    assert worker.prepare(Case(40, heads=1, head_dim=16)) is None
    assert "mindspore" in Path(f"/proc/{worker.process.pid}/maps").read_text(encoding="utf-8")
    worker.requests.close()
    assert worker.process.wait(timeout=60) == 0 and worker.answers.read() == ""
    worker.__exit__(None, None, None)


def test_cases_of_all_kinds_run_on_our_kernel() -> None:
    with Worker("flash", threads=1) as worker:
        for extra, layout in zip(("", "mask", "bias", "dropout"), ("BSH", "SBH", "BSND", "BNSD")):
            assert worker.prepare(Case(40, heads=2, head_dim=16, extra=extra, layout=layout)) is None
            assert worker.seconds("forward") > 0


def test_flops_count_visible_pairs() -> None:
    case = Case(256, heads=1, head_dim=64)
    assert case.visible == 256 * 257 // 2
    assert case.flops("forward") == 2 * 2 * 64 * case.visible
    assert Case(1024, window_blocks=2).visible < Case(1024).visible


def test_composed_attention_refuses_what_does_not_fit() -> None:
    assert Composed().refuse(Case(256)) is None
    assert "GB" in Composed().refuse(Case(1 << 20))


def test_csv(tmp_path) -> None:
    timings = [Timing(name, CASE, "forward", (0.5, 0.25, 0.75)) for name in ("flash", "torch")]
    times = speed.write_csv(tmp_path / "times.csv", timings).read_text().splitlines()
    assert len(times) == 3 and times[1].startswith("flash,forward,1,8,256,128,float32,True,,BNSD,0,128,0.500000,")


@pytest.mark.slow
def test_extra_memory_of_composed_attention_grows_with_the_square() -> None:
    """Four times as many scores take at least twice the memory: a library's own share is in both figures."""
    short, long = (speed.extra_bytes("composed", Case(seq, heads=4), threads=1) for seq in (512, 1024))
    assert long > max(2 * short, 4 * 1024**2 * 4)
