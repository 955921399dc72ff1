"""What a bench leaves behind: tables on the screen, CSV files, a plot."""

from __future__ import annotations

import csv
import importlib.util
from collections import Counter
from pathlib import Path

from flash_attention import plotting
from flash_attention.commands.bench.case import Case
from flash_attention.commands.bench.figures import FASTER_THAN_TORCH, Figure
from flash_attention.commands.bench.turns import Timing
from flash_attention.text_table import table


def times_table(timings: list[Timing]) -> str:
    """Medians of one or several cases: a row per case and pass, a column per implementation."""
    names = list(dict.fromkeys(timing.implementation for timing in timings))
    rows = []
    for key in dict.fromkeys((timing.case, timing.kind) for timing in timings):
        own = {timing.implementation: timing for timing in timings if (timing.case, timing.kind) == key}
        cells = [f"{own[name].median * 1e3:.2f}" if name in own else "-" for name in names]
        rate = f"{own['flash'].gflops:.0f}" if "flash" in own else "-"
        rows.append([str(key[0]), key[1], *cells, rate])
    return table(["attention", "pass", *(f"{name} ms" for name in names), "flash GFLOP/s"], rows)


def figures_table(figures: list[Figure], required: bool = True) -> str:
    """Required beside reached, or reached alone; what was not measured is a line for each reason."""
    rows = [figure.row() for figure in figures if figure.ok is not None]
    if not required:
        rows = [[name, reached, note] for name, _, reached, _, note in rows]
    text = table(["figure", "required", "reached", "", ""] if required else ["figure", "reached", ""], rows)
    reasons = Counter(figure.note for figure in figures if figure.ok is None)
    return "\n".join([text, *(f"not measured, {count} figures: {reason}" for reason, count in reasons.items())])


def write_csv(folder: Path, timings: list[Timing], figures: list[Figure]) -> list[Path]:
    """times.csv, one row per implementation, case and pass, and figures.csv."""
    paths = [folder / "times.csv", folder / "figures.csv"]
    with open(paths[0], "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        fields = ["batch", "heads", "seq", "head_dim", "dtype", "causal", "extra", "layout", "window_blocks", "tile"]
        writer.writerow(["implementation", "pass", *fields, "median_seconds", "gflops", "rounds", "all_seconds"])
        for timing in timings:
            values = [timing.case.as_dict()[name] for name in fields]
            seconds = " ".join(f"{value:.6f}" for value in timing.seconds)
            row = [timing.implementation, timing.kind, *values, f"{timing.median:.6f}", f"{timing.gflops:.1f}"]
            writer.writerow([*row, len(timing.seconds), seconds])
    with open(paths[1], "w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["figure", "unit", "required", "reached", "ok", "note"])
        for figure in figures:
            reached = "" if figure.reached is None else f"{figure.reached:.4f}"
            writer.writerow([figure.name, figure.unit, figure.required, reached, figure.ok, figure.note])
    return paths


def write_plot(folder: Path, timings: list[Timing], flat: list[Timing], title: str) -> Path | None:
    """bench.png: speed-up over torch by case, and time per token of the windowed run. None without matplotlib."""
    if importlib.util.find_spec("matplotlib") is None:
        return None
    figure, axes = plotting.subplots(1, 2, (13, 4.5))
    left, right = axes[0]
    labels, values, wanted = _speedups(timings)
    left.bar(range(len(values)), values, color="#4c72b0", label="reached")
    for position, value in enumerate(wanted):
        label = "required" if position == 0 else None
        left.plot([position - 0.4, position + 0.4], [value, value], color="#c44e52", label=label)
    left.set_xticks(range(len(labels)), labels, rotation=60, ha="right", fontsize=8)
    left.set(ylabel="times faster than torch", yscale="log")
    left.axhline(1, color="gray", linewidth=0.8)
    for kind in dict.fromkeys(timing.kind for timing in flat):
        own = [timing for timing in flat if timing.kind == kind]
        right.plot([t.case.seq for t in own], [t.median / t.case.seq * 1e6 for t in own], marker="o", label=kind)
    right.set_xscale("log", base=2)
    right.set(xlabel="sequence length", ylabel="us per token, windowed", ylim=(0, None))
    for axes in (left, right):
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:
            axes.legend()
    figure.suptitle(title)
    return plotting.save(figure, folder / "bench.png")


def _speedups(timings: list[Timing]) -> tuple[list, list, list]:
    """Labels, torch's time over ours, and the required ratio, for the causal cases of 8 heads of 128 that both ran."""
    median = {(timing.implementation, timing.case, timing.kind): timing.median for timing in timings}
    labels, values, wanted = [], [], []
    for implementation, case, kind in median:
        usual = case == Case(case.seq, case.dtype)
        if usual and implementation == "torch" and kind != "both" and ("flash", case, kind) in median:
            labels.append(f"{kind} {case.seq} {case.dtype}")
            values.append(median["torch", case, kind] / median["flash", case, kind])
            wanted.append(FASTER_THAN_TORCH[kind, case.dtype])
    return labels, values, wanted
