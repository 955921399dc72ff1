#!/usr/bin/env python
"""Time and memory of attention over a long context: with a window, over everything before, and composed.

    python examples/long_context.py
    python examples/long_context.py --window 256 --lengths 8192 32768

Forward and backward of one causal layer on the CPU. Composed attention keeps its scores in memory, so its memory grows
with the square of the length; FlashAttention keeps none; and with a window the time grows with the length only.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention
from mindspore import Tensor, nn, ops
from small_gpt import peak_megabytes
from train_gpt import ComposedAttention

KINDS = ("composed", "full", "window")
WARM_UP = 128


def attention_of(kind: str, heads: int, head_dim: int, window: int, seq: int) -> nn.Cell:
    """A causal layer with ALiBi, in layout BSH."""
    if kind == "composed":
        return ComposedAttention(head_dim, heads, seq, 0.0)
    sight = (window - 1, 0) if kind == "window" else (-1, -1)
    return FlashAttention(head_dim, alibi=True, causal=True, window_size=sight, backend="cpu", input_layout="BSH")


def measure(kind: str, arguments: argparse.Namespace) -> None:
    """Prints a line of JSON for every length: seconds, and megabytes beyond those of a short sequence."""
    ms.set_context(mode=ms.GRAPH_MODE)
    random = np.random.default_rng(0)
    base = None
    for seq in (WARM_UP, *arguments.lengths):
        if kind == "composed" and base is not None and seq > arguments.composed_limit:
            break
        layer = attention_of(kind, arguments.heads, arguments.head_dim, arguments.window, seq)
        gradients = ops.GradOperation(get_all=True, sens_param=True)(layer)
        shape = (1, seq, arguments.heads * arguments.head_dim)
        tensors = [Tensor(random.standard_normal(shape).astype(np.float32)) for _ in range(4)]
        seconds = []
        for _ in range(2):  # the first run compiles
            start = time.perf_counter()
            for gradient in gradients(*tensors):
                gradient.asnumpy()
            seconds.append(time.perf_counter() - start)
        if base is None:
            base = peak_megabytes()
        else:
            print(json.dumps({"seq": seq, "seconds": seconds[-1], "megabytes": peak_megabytes() - base}), flush=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--lengths", type=int, nargs="+", default=[2048, 4096, 8192, 16384], help="in tokens")
    parser.add_argument("--window", type=int, default=512, help="tokens that a query sees, itself included")
    parser.add_argument("--composed-limit", type=int, default=4096, help="longest sequence of composed attention")
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--measure", choices=KINDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    arguments.lengths.sort()  # peak memory only grows
    return arguments


def main() -> None:
    arguments = parse_arguments()
    if arguments.measure:
        measure(arguments.measure, arguments)
        return
    found = {}
    for kind in KINDS:  # a process for each: the peak of one would hide that of the next
        command = [sys.executable, *sys.argv, "--measure", kind]
        lines = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.splitlines()
        found[kind] = {row["seq"]: row for row in map(json.loads, lines)}

    names = {"composed": "composed", "full": "FlashAttention", "window": f"window of {arguments.window}"}
    print(f"forward and backward, {arguments.heads} heads of {arguments.head_dim}, float32")
    print(f"{'tokens':>8}" + "".join(f"{names[kind]:>24}" for kind in KINDS))
    for seq in arguments.lengths:
        cells = [found[kind].get(seq) for kind in KINDS]
        texts = ["-" if row is None else f"{row['seconds']:.2f} s, {row['megabytes']:.0f} MB" for row in cells]
        print(f"{seq:>8}" + "".join(f"{text:>24}" for text in texts))
    longest = arguments.lengths[-1]
    full, window = (found[kind][longest]["seconds"] for kind in ("full", "window"))
    print(f"\nat {longest} tokens the window is {full / window:.1f} times as fast as full attention")
    if found["composed"]:
        seq, row = list(found["composed"].items())[-1]
        needs = row["megabytes"] * (longest / seq) ** 2 / 1024
        print(
            f"composed attention takes {row['megabytes'] / found['full'][seq]['megabytes']:.0f} times the memory at"
            f" {seq} tokens; at {longest}, growing with the square, it would take {needs:.0f} GB"
        )


if __name__ == "__main__":
    main()
