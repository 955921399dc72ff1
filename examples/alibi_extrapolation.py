#!/usr/bin/env python
"""Trains a small GPT on short text and runs it on longer text: ALiBi beside learned positions.

    python examples/alibi_extrapolation.py
    python examples/alibi_extrapolation.py --seq 256 --steps 1000

Both models see crops of --seq bytes only. The losses are over the same held-out bytes, cut into pieces of one, two and
four times that length. Learned vectors of positions that no training has reached are noise; ALiBi knows distances.
"""

from __future__ import annotations

import argparse
from functools import partial

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention
from small_gpt import GPT, batches, held_out_loss, pieces, standard_library, train

FACTORS = (1, 2, 4)


def losses_by_length(model: GPT, text: np.ndarray, seq: int, count: int) -> list[float]:
    """Held-out losses in pieces of each of the FACTORS times `seq`, over the same bytes."""
    whole = pieces(text, FACTORS[-1] * seq, count)
    losses = []
    for factor in FACTORS:
        length = factor * seq
        starts = range(0, whole.shape[1] - 1, length)
        losses.append(held_out_loss(model, np.concatenate([whole[:, start : start + length + 1] for start in starts])))
    return losses


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--seq", type=int, default=128, help="bytes of a crop in training")
    parser.add_argument("--steps", type=int, default=250)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--held-out", type=int, default=32, help="pieces of the longest length")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    ms.set_context(mode=ms.GRAPH_MODE)
    text, held_out = standard_library()
    sizes = arguments.layers, arguments.heads, arguments.head_dim
    rows = {}
    for name, alibi in (("ALiBi", True), ("learned positions", False)):
        ms.set_seed(arguments.seed)
        attention = partial(
            FlashAttention, arguments.head_dim, alibi=alibi, causal=True, backend="cpu", input_layout="BSH"
        )
        model = GPT(*sizes, attention, positions=0 if alibi else FACTORS[-1] * arguments.seq)
        source = batches(text, arguments.batch, arguments.seq, arguments.seed)
        train(model, source, arguments.steps, label=name)
        rows[name] = losses_by_length(model, held_out, arguments.seq, arguments.held_out)

    print(f"loss on held-out text, nats per byte, trained on {arguments.seq} bytes")
    print(f"{'bytes':20}" + "".join(f"{factor * arguments.seq:>10}" for factor in FACTORS))
    for name, losses in rows.items():
        print(f"{name:20}" + "".join(f"{loss:>10.3f}" for loss in losses))
    alibi, learned = (rows[name][-1] - rows[name][0] for name in rows)
    print(f"from {arguments.seq} to {FACTORS[-1] * arguments.seq} bytes: ALiBi {alibi:+.3f}, learned {learned:+.3f}")


if __name__ == "__main__":
    main()
