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
from functools import partial
from pathlib import Path

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention
from flash_attention.measuring.implementations import available_bytes
from flash_attention.text_table import table
from mindspore import nn
from small_gpt import GPT, batches, draw, peak_megabytes, standard_library, train
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
    return available_bytes() / 2**20


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


def paint(*axes, found: dict[str, list[dict]], beyond: dict[int, float], free: float) -> None:
    """Draw memory and seconds of a step over the length."""
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
    painted = partial(paint, found=found, beyond=beyond["composed"], free=free)
    draw(options.out / "steps.png", painted, columns=2)

    print(f"a training step of a GPT, {LAYERS} layer, {HEADS} heads of {HEAD_DIM}, float32; {free / 1024:.1f} GB free")
    cells = {seq: f"would take {needs / 1024:.0f} GB" for seq, needs in beyond["composed"].items()}
    ours, theirs = (
        {row["seq"]: f"{row['seconds']:.1f} s, {row['megabytes']:.0f} MB" for row in found[kind]} for kind in KINDS
    )
    print(table(["tokens", *KINDS.values()], [[seq, cell, {**cells, **theirs}[seq]] for seq, cell in ours.items()]))
    pairs = zip(found["flash"], found["composed"])
    largest = max(abs(a - b) for ours, theirs in pairs for a, b in zip(ours["losses"], theirs["losses"]))
    print(f"if both fit, losses differ by at most {largest:.0e}")
    print(f"{time.perf_counter() - start:.0f} s in all; see {options.out}/")


if __name__ == "__main__":
    main()
