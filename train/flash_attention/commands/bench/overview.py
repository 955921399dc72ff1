"""Time and memory of forward and backward over lengths, as one picture."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from flash_attention import plotting
from flash_attention.commands.bench.case import Case
from flash_attention.commands.bench.turns import Timing, Worker
from flash_attention.text_table import table

LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
#: How the picture calls the implementations.
TITLES = {"flash": "FlashAttention (this package)", "torch": "torch", "composed": "composed MindSpore operators"}
_STYLES = {"flash": ("#c44e52", "o"), "torch": ("#4c72b0", "s"), "composed": ("#8c8c8c", "^")}
_RESULTS = 3  # gradients of query, key and value: they are no extra memory


@dataclass(frozen=True)
class Point:
    """One implementation at one length: seconds of forward and backward, and bytes beyond inputs and gradients."""

    seq: int
    seconds: float
    extra_bytes: int


#: Points by name of the implementation, in the order of their lengths.
Points = Mapping[str, list[Point]]


def points(timings: list[Timing], threads: int) -> Points:
    """A point for each timing of "both"; the memory is measured here, each time in a process of its own."""
    found: dict[str, list[Point]] = {}
    for timing in sorted(timings, key=lambda timing: timing.case.seq):
        if timing.kind == "both":
            extra = extra_bytes(timing.implementation, timing.case, threads)
            found.setdefault(timing.implementation, []).append(Point(timing.case.seq, timing.median, extra))
    return found


def extra_bytes(name: str, case: Case, threads: int) -> int:
    """Growth of a fresh process through its first forward and backward of `case`, beyond the gradients."""
    with Worker(name, threads) as worker:
        # A small call first: what a library loads and allocates once is not this call's.
        for size in (replace(case, seq=64), case):
            reason = worker.prepare(size)
            if reason is not None:
                raise RuntimeError(f"{name} cannot run {size}: {reason}")
            grown = worker.extra_bytes("both")
    return max(0, grown - _RESULTS * case.tensor_bytes)


def text(found: Points) -> str:
    """The points as a table."""
    rows = [
        [point.seq, name, f"{point.seconds * 1e3:.1f}", f"{point.extra_bytes / 2**20:.0f}"]
        for name, own in found.items()
        for point in own
    ]
    return table(["length", "implementation", "ms", "MB beyond inputs and gradients"], sorted(rows))


def draw(found: Points, title: str, path: Path) -> Path:
    """Two panels, time and memory over the length, both axes logarithmic; returns the path.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    figure, axes = plotting.subplots(1, 2, (10, 3.8))
    for axis, label, value in (
        (axes[0, 0], "time of forward and backward (ms)", lambda point: point.seconds * 1e3),
        (axes[0, 1], "memory beyond inputs and gradients (MB)", lambda point: point.extra_bytes / 2**20),
    ):
        for name, own in found.items():
            colour, marker = _STYLES[name]
            values = [value(point) for point in own]
            axis.plot([point.seq for point in own], values, marker=marker, color=colour, label=TITLES[name])
        axis.set_xscale("log", base=2)
        axis.set_yscale("log")
        axis.set_xlabel("sequence length")
        axis.set_title(label, fontsize=10)
        axis.grid(alpha=0.3)
    axes[0, 0].legend(fontsize=8)
    figure.suptitle(title, fontsize=9)
    return plotting.save(figure, path)
