"""Speed over lengths as curves: forward and backward, causal and full, per head_dim, below what the chip could do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from flash_attention import plotting

LENGTHS = (256, 512, 1024, 2048, 4096)
HEAD_DIMS = (64, 128)
KINDS = ("forward", "backward")


@dataclass(frozen=True)
class Panel:
    """One plot: a pass, a head_dim, causal or full."""

    kind: str
    head_dim: int
    causal: bool

    def __str__(self) -> str:
        return f"{self.kind} D={self.head_dim} {'causal' if self.causal else 'full'}"


PANELS = tuple(Panel(kind, d, causal) for d in HEAD_DIMS for kind in KINDS for causal in (False, True))

#: By panel and name of a curve: (tokens, speed) of its points.
Curves = Mapping[Panel, Mapping[str, list[tuple[int, float]]]]


def draw(curves: Curves, peak: float, unit: str, title: str, path: Path) -> Path:
    """A row of panels per head_dim, with a line at `peak`; returns the path.

    Raises:
        RuntimeError: matplotlib is not installed.
    """
    columns = len(PANELS) // len(HEAD_DIMS)
    figure, axes = plotting.subplots(len(HEAD_DIMS), columns, (3.4 * columns, 5.6), sharex=True, sharey=True)
    for panel, axis in zip(PANELS, axes.flat):
        for name, points in curves.get(panel, {}).items():
            axis.plot(*zip(*points), marker="o", markersize=3, label=name)
        axis.axhline(peak, color="black", linewidth=0.8, linestyle="--", label="peak")
        axis.set_title(str(panel), fontsize=9)
        axis.set_xscale("log", base=2)
        axis.set_ylim(0, peak * 1.08)
        axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("sequence length", fontsize=8)
    for row in axes:
        row[0].set_ylabel(unit, fontsize=8)
    axes[0, 0].legend(fontsize=7)
    figure.suptitle(title, fontsize=10)
    return plotting.save(figure, path)


def of_timings(timings: Iterable) -> Curves:
    """Curves of GFLOP/s per implementation, of `turns.Timing`."""
    curves: dict[Panel, dict[str, list[tuple[int, float]]]] = {}
    for timing in sorted(timings, key=lambda timing: timing.case.seq):
        if timing.kind in KINDS:
            panel = Panel(timing.kind, timing.case.head_dim, timing.case.causal)
            curves.setdefault(panel, {}).setdefault(timing.implementation, []).append((timing.case.seq, timing.gflops))
    return curves
