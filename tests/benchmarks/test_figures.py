"""Test the development's figures of the native kernel, and the file of required figures."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest
from flash_attention.backends.cpu import library
from flash_attention.call import DTYPES
from flash_attention.commands.bench import speed, tik
from flash_attention.measuring.case import Case
from flash_attention.measuring.figures import Figure
from flash_attention.measuring.implementations import Gemm
from flash_attention.measuring.timing import Timing

from benchmarks import block_sparse, figures, masked_decode, tik_decode
from benchmarks.figures import BOUNDS, bound_of, is_met


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch):
    """Return a function that sets the seconds of an implementation and a case."""

    def give(seconds: Callable[[str, Case], float], torch: bool = True) -> None:
        def timed(works):
            return [Timing(n, case, kind, (seconds(n, case),)) for n, case in works for kind in speed.KINDS]

        def measure(_, names, cases):
            names = [name for name in names if torch or name != "torch"]
            absent = {} if torch else {("torch", case): "torch is not installed" for case in cases}
            return timed([(name, case) for name in names for case in cases]), absent

        monkeypatch.setattr(speed, "measure", measure)
        monkeypatch.setattr(figures, "side_by_side", lambda _, works: figures.medians(timed(works)))

    return give


OPTIONS = argparse.Namespace(threads=1, rounds=1, budget=1.0)


@pytest.mark.parametrize("tile, required", [(64, 10), (128, 8.35)])
def test_a_window_gains_ten_times_or_nearly_all_of_the_pairs(clock, tile: int, required: float) -> None:
    for gain, ok in ((required + 0.1, True), (required - 0.1, False)):
        clock(lambda _, case, gain=gain: 1 / gain if case.window_blocks and case.tile == tile else 1.0)
        found = figures.measure_window(OPTIONS, figures.Sizes())
        forward = found[2 * figures.WINDOW_TILES.index(tile)]
        assert is_met(forward, bound_of(forward.name)) is ok, forward


def test_flatness(clock) -> None:
    clock(lambda _, case: {1024: 2, 2048: 3}[case.seq] * case.seq)
    forward, _ = figures.measure_flat(OPTIONS, figures.Sizes(flat_lengths=(1024, 2048)))
    assert forward.reached == pytest.approx(1.5)


@pytest.mark.parametrize("isa, more", [(library.DOT_PRODUCT_ISA, [2]), ("avx2", [])])
def test_rates_beside_the_product_and_beside_float32(clock, monkeypatch, isa: str, more: list) -> None:
    monkeypatch.setattr(library, "instruction_sets", lambda: (isa,))
    product = 2 * Case(512, causal=False).flops("forward") / 4.0  # operations a second
    times = {"float32": 4.0, "float16": 5.0, "bfloat16": 2.0}
    clock(lambda name, case: Gemm.OPERATIONS / product if name == "gemm" else times[case.dtype])
    found = figures.measure_rate(OPTIONS, figures.Sizes(rates=((512, 1),), rate_head_dims=(128,)))
    forward = found[: len(found) // 2]
    assert [figure.reached for figure in forward] == pytest.approx([50, 0.8, *more])
    assert [bound_of(figure.name) for figure in forward] == [85, 1, 1.7][: len(forward)]


def test_layouts_beside_bnsd(clock) -> None:
    clock(lambda _, case: 2.0 if case.layout == "BSH" else 1.9)
    found = figures.measure_layouts(OPTIONS, figures.QUICK)
    reached = {figure.name.partition(":")[0].split()[-1]: figure.reached for figure in found}
    assert reached == {"BSND": 100, "BSH": pytest.approx(95), "SBH": 100}


class Still:
    """A worker that does nothing, in no time."""

    def __init__(self, *_) -> None:
        pass

    def __enter__(self):
        return self

    def __exit__(self, *_) -> None:
        pass

    def require(self, case: Case) -> None:
        """Take any case."""

    def seconds(self, kind: str) -> float:
        return 1.0

    def extra_bytes(self, kind: str) -> int:
        return 0


def test_memory_is_beyond_the_results(monkeypatch: pytest.MonkeyPatch) -> None:
    grown = {"forward": Case(65536, heads=1).tensor_bytes + (10 << 20)}
    grown["both"] = 3 * Case(65536, heads=1).tensor_bytes + (70 << 20)
    monkeypatch.setattr(Still, "extra_bytes", lambda _, kind: grown[kind])
    monkeypatch.setattr(speed, "Worker", Still)
    found = figures.measure_memory(argparse.Namespace(threads=1), figures.Sizes(memory_length=65536))
    assert [figure.reached for figure in found] == [10, 70]


#: Parts that are not measured by workers.
OTHERS = ("packed", "decode", "masked_decode", "block_sparse", "block_sparse_tik", "tik", "tik_decode")


@pytest.fixture
def names(clock, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the names of all figures, measured in no time."""
    monkeypatch.setattr(figures, "Worker", Still)
    monkeypatch.setattr(speed, "Worker", Still)
    monkeypatch.setattr(library, "instruction_sets", lambda: (library.DOT_PRODUCT_ISA,))  # it has figures of its own
    clock(lambda *_: 1.0)
    parts = [part for name, part in figures.PARTS.items() if name not in OTHERS]
    found = [figure for part in parts for figure in part(OPTIONS, figures.Sizes())]
    decode = [f"decode {dtype}: {what}" for dtype in DTYPES for what in ("of the copy rate", "against torch")]
    packed = [
        f"packed {kind}: {what}" for kind in speed.KINDS for what in ("of the ideal share", "against torch looped")
    ]
    operators = [tik.figure_name(shape, sync) for shape in tik.SHAPES for sync in tik.SYNC]
    operators += [f"{tik_decode.name_of(case)}: of the memory's rate" for case in tik_decode.CASES]
    return [
        *(figure.name for figure in found),
        *decode,
        *packed,
        *masked_decode.names(),
        *block_sparse.names(),
        *block_sparse.tik_names(),
        *operators,
    ]


def test_every_bound_is_that_of_a_figure(names: list[str]) -> None:
    """Every pattern is the first match of some figure, and every figure has a bound; else a gate would stand open."""
    met = {pattern: [name for name in names if bound_of(name, {pattern: 1.0})] for pattern in BOUNDS}
    first: dict[str, str] = {}
    for pattern, fitting in met.items():
        for name in fitting:
            first.setdefault(name, pattern)
    by_tests = {pattern for pattern in BOUNDS if "main kernel" in pattern}
    assert set(BOUNDS) - set(first.values()) == by_tests
    without = {name for name in names if name not in first}
    assert without == {
        *(tik.figure_name(shape, "conservative") for shape in tik.SHAPES if shape[0] == "forward"),
        *(name for name in names if "bfloat16" in name and "S=128 " in name and name.endswith("than float32")),
    }


def test_parts_that_do_not_exist_are_named(capsys) -> None:
    with pytest.raises(SystemExit):
        figures.main(["speed", "none"])
    assert "PART: got none, allowed are bench, speed, rate, " in capsys.readouterr().err


@pytest.mark.slow
def test_all_parts(capsys) -> None:
    pytest.importorskip("tikemu")
    assert figures.main(["--quick", "--rounds", "1", "--threads", "1"]) == 0
    printed = capsys.readouterr().out
    for figure in (
        *("of the speed of BNSD", "of the gain in pairs", "spread of time per token", "extra memory"),
        *("of the copy rate", "packed backward: of", "of the Cube's peak"),
    ):
        assert figure in printed
    assert "required" not in printed


@pytest.mark.parametrize("torch, reached, note", [(True, 1.5, ""), (False, None, "torch is not installed")])
def test_beside_torch_compares_the_same_pass_and_case(clock, torch: bool, reached: float, note: str) -> None:
    seconds = {("flash", 256): 2.0, ("torch", 256): 3.0, ("flash", 512): 1.0, ("torch", 512): 9.0}
    clock(lambda name, case: seconds[name, case.seq], torch)
    found = figures.beside_torch(OPTIONS, [Case(256), Case(512)])
    assert [(figure.reached, figure.note) for figure in found[:2]] == [(reached, note)] * 2


@pytest.mark.parametrize("unit, reached, met", [("x", 1.3, 1), ("x", 1.2, 0), ("MB", 64, 1), ("MB", 65, 0)])
def test_figures_have_a_better_side(unit: str, reached: float, met: int) -> None:
    bound = 1.3 if unit == "x" else 64
    assert is_met(Figure("f", reached, unit), bound) is bool(met)
    assert not is_met(Figure("f", None, unit, "torch is not installed"), bound)


def test_the_first_pattern_counts() -> None:
    bounds = {"forward, * window*": 10, "forward, *": 2, "memory": 64}
    names = ("forward, S=2 window 8", "forward, S=2", "memory", "memory of all")
    assert [bound_of(name, bounds) for name in names] == [10, 2, 64, None]


@pytest.mark.parametrize("bounds, status", [({}, 0), ({"first": 150}, 1), ({"first": 170}, 0), ({"*torch": 1}, 1)])
def test_the_status_is_that_of_the_required_figures(capsys, bounds, status: int) -> None:
    """A required figure without a measurement fails. Figures that lack it for the same reason share one line."""
    missing = Figure("to torch", None, "x", "torch is not installed")
    assert figures.report([Figure("first", 160, "ms"), *[missing] * 34], bounds) == status
    printed = capsys.readouterr().out
    assert printed.splitlines()[3:] == ["not measured, 34 figures: torch is not installed"]
    assert "160.00 ms" in printed and ("MISSED" in printed) == (bounds == {"first": 150})


def test_a_missed_figure_is_an_error_if_it_is_required(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    missed = Figure("forward D=128 full: of the Cube's peak", 1.0, "%")
    monkeypatch.setattr(figures, "PARTS", {"tik": lambda options, plan: [missed]})
    assert figures.main([]) == 0 and "MISSED" not in capsys.readouterr().out
    assert figures.main(["--required"]) == 1 and "MISSED" in capsys.readouterr().out


def test_decoding_prints_the_share_of_the_memory(capsys, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tikemu")
    monkeypatch.setattr(tik_decode, "CASES", ((2, 4, 1, 2048, 64, 2, 16),))
    assert figures.main(["tik_decode", "--quick"]) == 0
    printed = capsys.readouterr().out
    assert "B=2 H=4 Hkv=2 Sq=1 Sk=128 D=64 blocks of 16: of the memory's rate" in printed
    assert "within the core" in printed and "required" not in printed
