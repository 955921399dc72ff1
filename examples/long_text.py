#!/usr/bin/env python
"""Train a GPT on long pieces of text with block-sparse attention and with other attention.

    python examples/long_text.py
    python examples/long_text.py --seq 2048 --attention block-sparse dense composed

The pattern of block-sparse is Longformer's: every tile of queries sees the tiles next to it and the first tiles, here
up to its own position. "window" leaves out the first tiles, "dense" sees all that lies before, and "composed" is dense
attention written in MindSpore operators. All train on the same pieces from the same Parameters.
"""

from __future__ import annotations

import argparse
import functools
from pathlib import Path

import mindspore as ms
import numpy as np
import small_gpt
import train_gpt
from flash_attention import BlockMask, FlashAttention
from flash_attention.text_table import table
from mindspore import nn

KINDS = "block-sparse", "window", "dense", "composed"


def attention_of(kind: str, arguments: argparse.Namespace) -> nn.Cell:
    """Return causal attention with ALiBi."""
    if kind == "composed":
        return train_gpt.ComposedAttention(arguments.head_dim, arguments.heads, arguments.seq, 0.0)
    rules: dict = {"alibi": True, "causal": True, "input_layout": "BSH", "backend": arguments.backend}
    if kind == "block-sparse":
        sizes = {"window": arguments.window, "global_tiles": arguments.global_tiles}
        rules["block_mask"] = BlockMask.local_global(arguments.seq, **sizes)
    if kind == "window":
        rules["prev_block_num"] = arguments.window
    return FlashAttention(arguments.head_dim, **rules)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--attention", choices=KINDS, nargs="+", default=KINDS[:3], help="trained one after the other")
    parser.add_argument("--backend", default=None, help="of FlashAttention")
    parser.add_argument("--seq", type=int, default=8192, help="bytes of a piece of text")
    parser.add_argument("--window", type=int, default=2, help="tiles of 128 bytes that a tile sees before its own")
    parser.add_argument("--global-tiles", type=int, default=1, help="first tiles that all see, with block-sparse")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("results/long_text"), help="folder for loss.png")
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    ms.set_context(mode=ms.GRAPH_MODE)
    text, _ = small_gpt.standard_library()
    curves, rows = {}, []
    for kind in arguments.attention:
        ms.set_seed(arguments.seed)
        np.random.seed(arguments.seed)
        make = functools.partial(attention_of, kind, arguments)
        model = small_gpt.GPT(arguments.layers, arguments.heads, arguments.head_dim, make)
        source = small_gpt.batches(text, 1, arguments.seq, arguments.seed)
        losses, seconds = small_gpt.train(model, source, arguments.steps, label=kind)
        curves[kind] = losses
        last = f"{np.mean(losses[-10:]):.4f}"
        rows.append([kind, f"{losses[0]:.4f}", last, f"{1e3 * np.median(seconds[1:] or seconds):.0f} ms"])
    print(table(["attention", "first loss", "last losses, mean", "a step"], rows))
    arguments.out.mkdir(parents=True, exist_ok=True)
    train_gpt.plot(arguments.out / "loss.png", curves, f"byte-level GPT on pieces of {arguments.seq} bytes")


if __name__ == "__main__":
    main()
