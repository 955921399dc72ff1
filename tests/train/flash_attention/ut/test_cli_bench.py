"""The bench's own arithmetic and its processes; `flash-attention bench --quick` as a whole is a system test."""

import argparse
import time
from pathlib import Path

import numpy as np
import pytest
from flash_attention.commands.bench import PARTS, figures, overview, report, work
from flash_attention.commands.bench.case import EXTRAS, Case
from flash_attention.commands.bench.implementations import Composed
from flash_attention.commands.bench.turns import Timing, Worker, time_in_turns
from flash_attention.commands.bench.worker import extra_bytes, seconds_of
from flash_attention.text_table import about

CASE = Case(256)


class Clock:
    """An implementation whose calls take the given seconds, over and over."""

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
    assert seconds_of(call, least) == seconds
    assert len(left) == len(durations) - calls


def test_a_dead_worker_is_reported() -> None:
    with Worker("nobody", threads=1) as worker, pytest.raises(RuntimeError, match="nobody died .* KeyError"):
        worker.prepare(CASE)


def test_extra_bytes_sees_what_a_call_allocates_and_frees() -> None:
    extra_bytes(lambda: np.ones(1 << 20))
    assert abs(extra_bytes(lambda: np.ones(64 << 20, np.uint8)) - (64 << 20)) < 8 << 20
    assert extra_bytes(lambda: None) < 8 << 20


@pytest.mark.parametrize("unit, reached, ok", [("x", 1.3, 1), ("x", 1.2, 0), ("MB", 64, 1), ("MB", 65, 0)])
def test_figures_know_which_way_is_better(unit: str, reached: float, ok: int) -> None:
    required = 1.3 if unit == "x" else 64
    assert figures.Figure("f", required, reached, unit).ok is bool(ok)
    assert figures.Figure("f", required, None, unit, "torch is not installed").ok is None


def test_speed_compares_the_same_pass_and_case() -> None:
    other = Case(512)
    seconds = {("flash", CASE): 2.0, ("torch", CASE): 3.0, ("flash", other): 1.0, ("torch", other): 9.0}
    timings = [Timing(n, c, kind, (s,)) for (n, c), s in seconds.items() for kind in ("forward", "backward")]
    assert [figure.reached for figure in figures.speed(timings, CASE, "", figures.AS_FAST_AS_TORCH)] == [1.5, 1.5]
    missing = [timing for timing in timings if timing.implementation == "flash"]
    (forward, _) = figures.speed(missing, CASE, "torch is not installed", figures.AS_FAST_AS_TORCH)
    assert forward.ok is None and forward.row()[3:] == ["not measured", "torch is not installed"]


def test_speed_says_what_share_of_the_peak_it_asks_for() -> None:
    timings = [Timing(n, CASE, k, (s,)) for n, s in (("flash", 2.0), ("torch", 3.0)) for k in ("forward", "backward")]
    peak = CASE.flops("forward") / 1e9  # of one second
    (forward, _) = figures.speed(timings, CASE, "", figures.FASTER_THAN_TORCH, peak)
    asked = 100 * figures.FASTER_THAN_TORCH["forward", CASE.dtype] / 3
    assert forward.note.startswith(f"asks for {asked:.0f} % of the processor's ")
    assert forward.note.endswith("reached 50 %")


@pytest.mark.parametrize("tile, required", [(64, 10), (128, 8.35)])
def test_a_window_gains_ten_times_or_nearly_all_of_the_pairs(tile: int, required: float) -> None:
    full, windowed = Case(16384), Case(16384, window_blocks=8, tile=tile)
    timings = [
        [Timing("flash", case, kind, (s,)) for kind in ("forward", "backward")]
        for case, s in ((full, 18.0), (windowed, 2.0))
    ]
    forward, _ = figures.window(*timings)
    assert forward.required == pytest.approx(required, rel=1e-3)
    assert forward.reached == 9.0 and forward.ok is (tile == 128)


def test_flatness_and_memory() -> None:
    cases = Case(1024, window_blocks=8), Case(2048, window_blocks=8)
    timings = [Timing("flash", case, "forward", (us * case.seq,)) for case, us in zip(cases, (2, 3))]
    assert figures.flatness(timings).reached == pytest.approx(1.5)
    case = Case(65536, heads=1)
    assert figures.memory(case, "forward", case.tensor_bytes + (10 << 20)).reached == 10
    assert figures.memory(case, "both", 3 * case.tensor_bytes + (70 << 20)).ok is False


def test_reached_figures_stand_alone_unless_they_are_required() -> None:
    """What was not measured for one reason is one line."""
    of_torch = figures.speed([], CASE, "torch is not installed", figures.FASTER_THAN_TORCH)
    results = [figures.first_call(CASE, "both", 0.16), *of_torch * 17]
    required, alone = report.figures_table(results), report.figures_table(results, required=False)
    assert "MISSED" in required and "<= 150 ms" in required
    assert "MISSED" not in alone and "150" not in alone and "160.00 ms" in alone
    for text in (required, alone):
        assert text.splitlines()[3:] == ["not measured, 34 figures: torch is not installed"]


def test_the_bench_knows_how_much_it_does() -> None:
    def total(plan, parts=PARTS, dtype=None, rounds=3):
        return work.total(parts, argparse.Namespace(dtype=dtype, rounds=rounds, budget=20.0), plan)

    quick, whole = total(figures.QUICK), total(figures.Plan(), rounds=9)
    assert quick[0] < whole[0] / 2 and 10 < quick[1] <= 60 and whole[1] > 5 * quick[1]
    assert total(figures.QUICK, ("speed",), ["float32"])[0] == 2
    assert sum(total(figures.QUICK, (part,))[0] for part in PARTS) == quick[0]
    assert [about(seconds) for seconds in (1, 42, 94, 95, 1000)] == [
        "about 5 s",
        "about 40 s",
        "about 95 s",
        "about 2 min",
        "about 17 min",
    ]


def test_a_worker_ends_at_once_and_says_why_it_died() -> None:
    """MindSpore has been imported, and its end would take half a second."""
    worker = Worker("flash", threads=1)
    assert worker.prepare(Case(40, heads=1, head_dim=16)) is None
    assert "mindspore" in Path(f"/proc/{worker.process.pid}/maps").read_text(encoding="utf-8")
    worker.requests.close()
    assert worker.process.wait(timeout=60) == 0 and worker.answers.read() == ""
    worker.answers.close()
    worker.errors.close()


def test_rates_beside_the_product_and_beside_float32() -> None:
    cases = [Case(512, dtype, causal=False) for dtype in ("float32", "float16", "bfloat16")]
    rounds = zip(cases, (4.0, 5.0, 2.0))
    timings = [Timing("flash", case, kind, (s,)) for case, s in rounds for kind in ("forward", "backward")]
    product = 2 * cases[0].flops("forward") / 4.0 / 1e9
    half, slower, twice, *backward = figures.rate(timings, cases, product, has_bfloat16=True)
    assert (half.required, half.reached, half.ok) == (85, pytest.approx(50), False)
    assert (slower.required, slower.reached, slower.ok) == (1, pytest.approx(0.8), False)
    assert (twice.required, twice.reached, twice.ok) == (1.7, 2, True)
    assert len(backward) == 3 and len(figures.rate(timings, cases, product, has_bfloat16=False)) == 4


def test_layouts_beside_bnsd_and_the_first_call() -> None:
    cases = [Case(512), Case(512, layout="BSH")]
    timings = [
        Timing("flash", case, kind, (s,)) for case, s in zip(cases, (1.9, 2.0)) for kind in ("forward", "backward")
    ]
    forward, backward = figures.layouts(timings, cases)
    assert forward.reached == pytest.approx(95) and forward.ok is False and "BSH" in forward.name
    assert figures.first_call(CASE, "both", 0.14).ok and not figures.first_call(CASE, "both", 0.16).ok


def test_cases_of_all_kinds_run_on_our_kernel() -> None:
    with Worker("flash", threads=1) as worker:
        for extra, layout in zip(EXTRAS, ("BSH", "SBH", "BSND", "BNSD")):
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
    both = timings * 2 + [Timing("flash", CASE, "backward", (1.0,))]
    results = figures.speed(both, CASE, "", figures.FASTER_THAN_TORCH)
    paths = report.write_csv(tmp_path, timings, results)
    times = paths[0].read_text().splitlines()
    assert len(times) == 3 and times[1].startswith("flash,forward,1,8,256,128,float32,True,,BNSD,0,128,0.500000,")
    assert paths[1].read_text().splitlines()[1].split(",")[-3:-1] == ["1.0000", "False"]


def test_plot(tmp_path) -> None:
    pytest.importorskip("matplotlib")
    timings = [Timing(name, CASE, "forward", (0.5, 0.25, 0.75)) for name in ("flash", "torch")]
    assert report.write_plot(tmp_path, timings, timings[:1], "title").stat().st_size > 1000


def test_overview_has_a_point_for_each_forward_with_backward(tmp_path, monkeypatch) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(overview, "extra_bytes", lambda name, case, threads: case.seq << 20)
    timings = [
        Timing(name, Case(seq), kind, (seq * 1e-5,))
        for seq in (512, 256)
        for name in ("flash", "composed")
        for kind in ("forward", "both", "backward")
    ]
    points = overview.points(timings, threads=1)
    assert (
        points["flash"]
        == points["composed"]
        == [
            overview.Point(256, 256e-5, 256 << 20),
            overview.Point(512, 512e-5, 512 << 20),
        ]
    )
    assert overview.text(points).splitlines()[2].split() == ["256", "composed", "2.6", "256"]
    assert overview.draw(points, "title", tmp_path / "overview.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.slow
def test_extra_memory_of_composed_attention_grows_with_the_square() -> None:
    """Four times as many scores: at least twice the memory, since a library's own share is in both."""
    short, long = (overview.extra_bytes("composed", Case(seq, heads=4), threads=1) for seq in (512, 1024))
    assert long > max(2 * short, 4 * 1024**2 * 4)
