#!/usr/bin/env python
"""Train the same GPT with FlashAttention and composed attention; print loss, speed and memory.

Each training has a process of its own, so that its peak memory is its own. The composed run makes only the first
--compare-steps steps of the same schedule, and the comparison is over these steps. Further options go to train_gpt.py.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
from flash_attention.text_table import table
from train_gpt import plot

# Largest relative difference of the first losses, because float32 sums differ in order. Later steps amplify it.
FIRST_LOSS_TOLERANCE = 1e-5


def train(attention: str, out: Path, *options: str) -> tuple[dict, list[list[float]]]:
    """Run train_gpt.py; return its summary and the columns loss and seconds."""
    script = Path(__file__).resolve().parent / "train_gpt.py"
    command = [sys.executable, str(script), "--attention", attention, "--out", str(out), *options]
    print("$ " + " ".join(["python", "examples/train_gpt.py", *command[2:]]), flush=True)
    subprocess.run(command, check=True)
    print(flush=True)
    with open(out / "loss.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    columns = [[float(row[name]) for row in rows] for name in ("loss", "seconds")]
    return json.loads((out / "summary.json").read_text(encoding="utf-8")), columns


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--steps", type=int, default=1000, help="of the FlashAttention run (default: 1000)")
    parser.add_argument("--compare-steps", type=int, default=60, help="of the composed run (default: 60)")
    parser.add_argument("--attention", default="cpu", help="backend to compare with composed attention (default: cpu)")
    parser.add_argument("--out", type=Path, default=Path("results/quickstart"))
    options, rest = parser.parse_known_args()
    steps = min(options.steps, options.compare_steps)

    schedule = ["--steps", str(options.steps), *rest]
    flash, (flash_losses, flash_seconds) = train(options.attention, options.out / "flash", *schedule)
    short = ["--stop-after", str(steps), "--sample", "0", "--held-out", "0"]
    composed, (losses, seconds) = train("composed", options.out / "composed", *schedule, *short)
    difference = np.abs(np.array(flash_losses[:steps]) - losses)
    # Same tokens a step, so that the ratio of step times is the ratio of speeds.
    speed = np.median(seconds[1:]) / np.median(flash_seconds[1:])

    rows = [
        ("loss, step 1", f"{flash_losses[0]:.6f}", f"{losses[0]:.6f}"),
        (f"loss, step {steps}", f"{flash_losses[steps - 1]:.6f}", f"{losses[-1]:.6f}"),
        ("largest difference of a step's loss", f"{difference.max():.1e}", ""),
        ("tokens/s", f"{flash['tokens_per_second']:.0f}", f"{composed['tokens_per_second']:.0f}"),
        ("speed", f"{speed:.2f}x", "1x"),
        ("peak memory of the process, MB", f"{flash['peak_megabytes']:.0f}", f"{composed['peak_megabytes']:.0f}"),
        ("of which by training, MB", f"{flash['training_megabytes']:.0f}", f"{composed['training_megabytes']:.0f}"),
    ]
    ours = f"FlashAttention ({options.attention})"
    print(table([f"first {steps} steps", ours, "composed"], rows))
    curves = {ours: flash_losses, "composed": losses}
    plot(options.out / "loss.png", curves, "byte-level GPT on the Python standard library")
    if "held_out_bits_per_byte" in flash:
        print(f"\nbits per byte of held-out modules: {flash['held_out_bits_per_byte']:.2f}")
    print(f"\nloss curves: {options.out}/loss.png, sample: {options.out}/flash/sample.txt")

    same = difference[0] <= FIRST_LOSS_TOLERANCE * losses[0]
    print(f"first loss equal within float32 rounding: {'yes' if same else 'NO'}")
    return int(not same)


if __name__ == "__main__":
    sys.exit(main())
