#!/usr/bin/env python
"""A GPT on a context that composed attention cannot hold: memory and time of a training step over the length, drawn.

    python examples/beyond_composed.py

Each length and attention has a process of its own, which makes two steps of the same training. The time of the second
step counts, and the peak of the memory. Attention written in MindSpore's operators stores all scores, so its memory
grows with the square of the length. If a length would take more memory than this machine has free, its step is not
tried, and the plot shows an estimate. FlashAttention goes on. Figures go to --out: steps.json and steps.png
(matplotlib).
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention
from mindspore import nn
from small_gpt import GPT, batches, peak_megabytes, standard_library, train
from train_gpt import ComposedAttention

KINDS = {"flash": "FlashAttention", "composed": "composed operators"}
HEADS, HEAD_DIM, LAYERS = 8, 32, 1
#: A step that would take more of the free memory is not tried.
SHARE = 0.9


def attention_of(kind: str, seq: int) -> nn.Cell:
    """Return a cell of causal attention with ALiBi in layout BSH."""
    if kind == "composed":
        return ComposedAttention(HEAD_DIM, HEADS, seq, 0.0)
    return FlashAttention(HEAD_DIM, alibi=True, causal=True, backend="cpu", input_layout="BSH")


def measure(kind: str, seq: int) -> None:
    """Print seconds of a step, megabytes that training added, and losses, as JSON."""
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(0)
    np.random.seed(0)
    text, _ = standard_library(4 << 20)
    before = peak_megabytes()
    model = GPT(LAYERS, HEADS, HEAD_DIM, lambda: attention_of(kind, seq))
    losses, seconds = train(model, batches(text, 1, seq, 0), 2, label=f"{kind} {seq}")
    print(json.dumps({"seq": seq, "seconds": seconds[-1], "megabytes": peak_megabytes() - before, "losses": losses}))


def free_megabytes() -> float:
    """Return the memory that a process can have without swapping, as Linux estimates it."""
    lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
    (available,) = (line.split()[1] for line in lines if line.startswith("MemAvailable"))
    return int(available) / 1024


def measured(kind: str, lengths: list[int]) -> tuple[list[dict], dict[int, float]]:
    """Return a row for each length. A length that does not fit has the megabytes it would take."""
    rows: list[dict] = []
    beyond: dict[int, float] = {}
    for seq in lengths:
        if kind == "composed" and rows:
            needs = rows[-1]["megabytes"] * (seq / rows[-1]["seq"]) ** 2
            if beyond or needs > SHARE * free_megabytes():
                beyond[seq] = needs
                continue
        command = [sys.executable, __file__, "--measure", kind, "--lengths", str(seq)]
        printed = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        rows.append(json.loads(printed.splitlines()[-1]))
    return rows, beyond


def draw(path: Path, found: dict[str, list[dict]], beyond: dict[int, float], free: float) -> None:
    """Draw memory and seconds of a step over the length, if matplotlib is installed."""
    try:
        import matplotlib
    except ImportError:
        print(f"no {path}: it needs matplotlib, which is not installed")
        return
    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4))
    for part, key in zip(axes, ("megabytes", "seconds")):
        for kind, rows in found.items():
            part.plot([row["seq"] for row in rows], [row[key] for row in rows], "o-", label=KINDS[kind])
        part.set(xscale="log", yscale="log", xlabel="tokens", ylabel=f"{key} of a training step")
        part.set_xticks([row["seq"] for row in found["flash"]], [str(row["seq"]) for row in found["flash"]])
        part.minorticks_off()
        part.grid(alpha=0.3)
    last = found["composed"][-1]
    lengths, needs = [last["seq"], *beyond], [last["megabytes"], *beyond.values()]
    axes[0].plot(lengths, needs, "x:", color="C1", label="would take")
    axes[0].axhline(free, color="grey", linestyle="--", label="free memory of this machine")
    axes[0].set_ylim(top=30 * max(*needs, free))  # room for the legend
    axes[0].legend(loc="upper left")
    figure.savefig(path, dpi=110, bbox_inches="tight")
    pyplot.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384], help="in tokens")
    parser.add_argument("--out", type=Path, default=Path("results/beyond"))
    parser.add_argument("--measure", choices=tuple(KINDS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        measure(options.measure, options.lengths[0])
        return
    options.out.mkdir(parents=True, exist_ok=True)
    start, free = time.perf_counter(), free_megabytes()
    found, beyond = {}, {}
    for kind in KINDS:
        found[kind], beyond[kind] = measured(kind, sorted(options.lengths))
    (options.out / "steps.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    draw(options.out / "steps.png", found, beyond["composed"], free)

    print(f"a training step of a GPT, {LAYERS} layer, {HEADS} heads of {HEAD_DIM}, float32; {free / 1024:.1f} GB free")
    print(f"{'tokens':>8}{'FlashAttention':>24}{'composed operators':>32}")
    for row in found["flash"]:
        seq = row["seq"]
        other = [one for one in found["composed"] if one["seq"] == seq]
        if other:
            text = f"{other[0]['seconds']:.1f} s, {other[0]['megabytes']:.0f} MB"
        else:
            text = f"would take {beyond['composed'][seq] / 1024:.0f} GB"
        print(f"{seq:>8}{row['seconds']:>15.1f} s, {row['megabytes']:.0f} MB{text:>32}")
    pairs = zip(found["flash"], found["composed"])
    largest = max(abs(a - b) for ours, theirs in pairs for a, b in zip(ours["losses"], theirs["losses"]))
    print(f"if both fit, losses differ by at most {largest:.0e}")
    print(f"{time.perf_counter() - start:.0f} s in all; see {options.out}/")


if __name__ == "__main__":
    main()
