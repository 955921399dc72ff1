"""Causal attention over lengths: times and memory beside torch and attention composed of MindSpore operators."""

from __future__ import annotations

import argparse
import csv
import importlib.util
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from flash_attention import plotting
from flash_attention.files import require_writable
from flash_attention.measuring.case import Case
from flash_attention.measuring.implementations import IMPLEMENTATIONS, Flash
from flash_attention.measuring.timing import Timing, Worker, time_in_turns, working
from flash_attention.text_table import about, table

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
QUICK_LENGTHS = (256,)
KINDS = ("forward", "backward")
DTYPES = ("float32", "float16", "bfloat16")  # memory is measured in the first
#: Rough figures of two cores with AVX-512, for the estimate of the time: 1e9 operations a second, and seconds. The
#: seconds are the time of a process for its imports, or for the graphs of a case.
GFLOPS = {"flash": 150.0, "torch": 80.0, "composed": 15.0}
START_SECONDS = 1.5
#: How the picture calls and draws the implementations.
_STYLES = {
    "flash": ("FlashAttention (this package)", "#c44e52", "o"),
    "torch": ("torch", "#4c72b0", "s"),
    "composed": ("composed MindSpore operators", "#8c8c8c", "^"),
}
_RESULTS = {"forward": 1, "both": 3}  # the output, or the gradients of query, key and value: they are no extra memory


#: By implementation and tokens: seconds of forward and backward, and bytes beyond inputs and gradients.
Points = Mapping[str, Mapping[int, tuple[float, int]]]


def run(options: argparse.Namespace) -> None:
    """Measure, print, and write times.csv and, if matplotlib is installed, the picture."""
    from flash_attention.commands.info import installed_version, processor, require_mindspore

    require_mindspore()
    require_writable("--out", options.out)
    if options.quick:
        options.rounds = min(options.rounds, 3)
    lengths = options.seq or (QUICK_LENGTHS if options.quick else LENGTHS)
    dtypes = options.dtype or [dtype for dtype in DTYPES if Flash().lacks(dtype) is None]
    cases = [Case(seq, dtype) for dtype in dtypes for seq in lengths]
    title = f"{processor()}, {options.threads} threads, MindSpore {installed_version('mindspore')}"
    title += f", torch {installed_version('torch') or 'not installed'}"
    print(f"{title}\nB=1 H=8 D=128 causal; medians of rounds in turns")
    print(
        f"{len(cases)} cases, {about(estimate(cases, IMPLEMENTATIONS, options.rounds, options.budget))}\n", flush=True
    )
    timings, reasons = measure(options, IMPLEMENTATIONS, cases)
    print(times_table(timings) + "\n", flush=True)
    tell(reasons, cases)
    drawn = [timing for timing in timings if timing.case.dtype == dtypes[0]]
    found = points(drawn, options.threads)
    print(memory_table(found, dtypes[0]))
    written = [write_csv(options.out / "times.csv", timings)]
    if importlib.util.find_spec("matplotlib") is not None:
        written.append(draw(found, f"{title}, {dtypes[0]}, causal, 8 heads of 128", options.out / "overview.png"))
    print("\nwritten: " + ", ".join(map(str, written)))
    if len(written) == 1:
        print("no picture: matplotlib is not installed (pip install matplotlib)")


#: Why an implementation does not run, by its name and the case.
Reasons = dict[tuple[str, Case], str]


def estimate(cases: Sequence[Case], names: Iterable[str], rounds: int, budget: float) -> float:
    """Estimate the seconds the cases take. Each implementation has a process, and each memory one more."""
    here = {name: IMPLEMENTATIONS[name]() for name in names if IMPLEMENTATIONS[name]().unavailable() is None}
    total = START_SECONDS * len(here)
    for case in cases:
        running = [name for name, implementation in here.items() if implementation.refuse(case) is None]
        if not running:
            continue
        one = sum((case.flops("forward") + case.flops("both")) / GFLOPS[name] / 1e9 for name in running)
        total += START_SECONDS * len(running) + one * (1 + min(rounds, max(3, budget / one)))
        total += START_SECONDS * len(running) * (case.dtype == cases[0].dtype)
    return total


def measure(options: argparse.Namespace, names: Iterable[str], cases: Sequence[Case]) -> tuple[list[Timing], Reasons]:
    """Return the timings of the named implementations on the cases, and reasons for missing timings."""
    from tqdm import tqdm

    timings: list[Timing] = []
    reasons: Reasons = {}
    with working(names, options.threads) as workers:
        for case in (bar := tqdm(cases, unit="case", leave=False)):
            bar.set_description(str(case))
            more, why = time_in_turns(workers, case, options.rounds, options.budget)
            timings += more
            reasons.update({(name, case): reason for name, reason in why.items()})
    return timings, reasons


def tell(reasons: Reasons, cases: Sequence[Case]) -> None:
    """Print a line for each reason, with its cases unless these are all."""
    for name, why in dict.fromkeys((name, why) for (name, _), why in reasons.items()):
        left_out = [str(case) for case in cases if reasons.get((name, case)) == why]
        which = f"{name}: {', '.join(left_out)}" if len(left_out) < len(cases) else name
        print(f"not run, {which}: {why}\n", flush=True)


def times_table(timings: Sequence[Timing]) -> str:
    """Return a table of cases and passes by implementation, with our speedup over each."""
    names = list(dict.fromkeys(timing.implementation for timing in timings))
    others = [name for name in names if name != "flash"]
    rows = []
    for key in dict.fromkeys((timing.case, timing.kind) for timing in timings if timing.kind != "both"):
        own = {timing.implementation: timing for timing in timings if (timing.case, timing.kind) == key}
        cells = [f"{own[name].median * 1e3:.2f}" if name in own else "-" for name in names]
        times = [f"{own[name].median / own['flash'].median:.1f} x" if name in own else "-" for name in others]
        rows.append([str(key[0]), key[1], *cells, f"{own['flash'].gflops:.0f}", *times])
    header = ["attention", "pass", *(f"{name} ms" for name in names), "flash GFLOP/s"]
    return table([*header, *(f"faster than {name}" for name in others)], rows)


def points(timings: Iterable[Timing], threads: int) -> Points:
    """Return a point for each timing of "both". The memory is measured here, each time in a process of its own."""
    found: dict[str, dict[int, tuple[float, int]]] = {}
    for timing in sorted(timings, key=lambda timing: timing.case.seq):
        if timing.kind == "both":
            extra = extra_bytes(timing.implementation, timing.case, threads)
            found.setdefault(timing.implementation, {})[timing.case.seq] = timing.median, extra
    return found


def extra_bytes(name: str, case: Case, threads: int, kind: str = "both") -> int:
    """Return a fresh process's growth through its first call of `case`, beyond the results. The call is forward, or
    forward and backward.
    """
    with Worker(name, threads) as worker:
        # A small call first, so that what a library loads and allocates once does not count.
        for size in (replace(case, seq=64), case):
            worker.require(size)
            grown = worker.extra_bytes(kind)
    return max(0, grown - _RESULTS[kind] * case.tensor_bytes)


def memory_table(found: Points, dtype: str) -> str:
    """Return a row per length: forward and backward together, and memory beyond inputs and gradients."""
    rows = []
    for seq in sorted({seq for own in found.values() for seq in own}):
        ms = [f"{own[seq][0] * 1e3:.1f}" if seq in own else "-" for own in found.values()]
        megabytes = [f"{own[seq][1] / 2**20:.0f}" if seq in own else "-" for own in found.values()]
        rows.append([seq, *ms, *megabytes])
    header = [f"{name} {unit}" for unit in ("ms", "MB") for name in found]
    return f"forward and backward, {dtype}; memory beyond inputs and gradients\n\n" + table(["length", *header], rows)


def write_csv(path: Path, timings: Iterable[Timing]) -> Path:
    """Return a row per implementation, case and pass, with all rounds; returns the path."""
    fields = ["batch", "heads", "seq", "head_dim", "dtype", "causal", "extra", "layout", "window_blocks", "tile"]
    with open(path, "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["implementation", "pass", *fields, "median_seconds", "gflops", "rounds", "all_seconds"])
        for timing in timings:
            values = [getattr(timing.case, name) for name in fields]
            seconds = " ".join(f"{value:.6f}" for value in timing.seconds)
            row = [timing.implementation, timing.kind, *values, f"{timing.median:.6f}", f"{timing.gflops:.1f}"]
            writer.writerow([*row, len(timing.seconds), seconds])
    return path


def draw(found: Points, title: str, path: Path) -> Path:
    """Draw two panels, time and memory over the length, both axes logarithmic. Returns the path."""
    figure, axes = plotting.subplots(1, 2, (10, 3.8))
    panels = (("time of forward and backward (ms)", 1e3), ("memory beyond inputs and gradients (MB)", 2**-20))
    for index, (label, factor) in enumerate(panels):
        axis = axes[0, index]
        for name, own in found.items():
            legend, colour, marker = _STYLES[name]
            values = [point[index] * factor for point in own.values()]
            axis.plot(list(own), values, marker=marker, color=colour, label=legend)
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("sequence length")
        axis.set_title(label, fontsize=10)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    figure.suptitle(title, fontsize=9)
    return plotting.save(figure, path)
