"""Draws tik_lengths.png: modelled shares of the Cube's peak over lengths, forward and backward, per head_dim.

    PYTHONPATH=train:emulator python -m benchmarks.tik_lengths [--out docs/images]

Backward counts the passes around its main kernel. Estimates: nothing here runs on a device.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from flash_attention import plotting
from flash_attention.commands.bench import tik
from flash_attention.measuring import tik_kernels

LENGTHS = (256, 512, 1024, 2048, 4096)
HEAD_DIMS = (64, 128)
PANELS: tuple[tik.Shape, ...] = tuple(
    (operator, head_dim, causal)
    for head_dim in HEAD_DIMS
    for operator in ("forward", "backward")
    for causal in (False, True)
)

#: By panel and kind of synchronisation: (tokens, percent) of the points.
Curves = Mapping[tik.Shape, Mapping[str, list[tuple[int, float]]]]


def measure(lengths: Sequence[int]) -> Curves:
    """The shares of every panel."""
    from tqdm import tqdm

    curves: dict[tik.Shape, dict[str, list[tuple[int, float]]]] = {}
    for panel, seq in tqdm([(panel, seq) for panel in PANELS for seq in lengths], unit="kernel", leave=False):
        for sync in tik.SYNC:
            main, *around = tik.measure(panel, seq, sync)
            curves.setdefault(panel, {}).setdefault(sync, []).append((seq, 100 * tik.share(main, around)))
    return curves


def draw(curves: Curves, path: Path) -> Path:
    """A row of panels per head_dim; returns the path."""
    columns = len(PANELS) // len(HEAD_DIMS)
    figure, axes = plotting.subplots(len(HEAD_DIMS), columns, (3.4 * columns, 5.6), sharex=True, sharey=True)
    for panel, axis in zip(PANELS, axes.flat):
        for sync, points in curves.get(panel, {}).items():
            axis.plot(*zip(*points), marker="o", markersize=3, label=f"TIK operator, {sync} synchronisation")
        axis.axhline(100, color="black", linewidth=0.8, linestyle="--", label="peak")
        axis.set_title(tik.name_of(panel), fontsize=9)
        axis.set_xscale("log", base=2)
        axis.set_ylim(0, 108)
        axis.grid(alpha=0.3)
    for axis in axes[-1]:
        axis.set_xlabel("sequence length", fontsize=8)
    for row in axes:
        row[0].set_ylabel("% of the peak", fontsize=8)
    axes[0, 0].legend(fontsize=7)
    title = "share of the Cube's peak, one of 32 busy cores: tikemu's model of the Ascend 910A (no device)"
    figure.suptitle(title, fontsize=10)
    return plotting.save(figure, path)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seq", type=int, nargs="+", default=list(LENGTHS), help="tokens")
    parser.add_argument("--out", type=Path, default=Path("results/bench"), help="folder for the picture")
    options = parser.parse_args(arguments)
    plotting.require()
    tik_kernels.require_tikemu("benchmarks.tik_lengths")
    options.out.mkdir(parents=True, exist_ok=True)
    print(f"written: {draw(measure(options.seq), options.out / 'tik_lengths.png')}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
