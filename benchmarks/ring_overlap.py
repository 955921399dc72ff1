"""Predicts how much of the ring's communication hides behind computing on clusters of first-generation Ascend 910.

    python benchmarks/ring_overlap.py

An estimate from published figures, assumptions and formulas; nothing here was measured on a device.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass

PEAK = 256e12  # float16, FLOP/s
HCCS = 15e9  # bytes/s each way, between the cards of a server
ROCE = 12.5e9  # bytes/s each way, between servers
SOURCES = """\
Published: 256 TFLOPS in float16 (Linley Newsletter, 8 October 2019); 3 HCCS ports of 240 Gbit/s and 2 RoCE ports of
100 Gbit/s a chip, 8 chips a server (notes on Huawei's talk at Hot Chips 31, 2019:
https://vengineer.hatenablog.com/entry/2019/09/06/070000).
Assumed: the ring uses one port each way; half of the 240 Gbit/s is for each direction; the step between the two
groups of 4 chips of a server, which goes over PCIe (Huawei Cloud, CCE, HCCS affinity scheduling), is not slower; no
protocol overhead, no congestion; the utilisation."""
CARDS_PER_SERVER = 8


@dataclass(frozen=True)
class Prediction:
    """One step of the ring on one card, seconds; the causal mask halves the computing."""

    compute_forward: float
    compute_backward: float
    pass_forward: float
    pass_backward: float

    @property
    def hidden_forward(self) -> float:
        """Share of the passing that computing hides, forward."""
        return min(1.0, self.compute_forward / self.pass_forward)

    @property
    def hidden_backward(self) -> float:
        """The same, backward."""
        return min(1.0, self.compute_backward / self.pass_backward)


def step(seq: int, cards: int, heads: int, kv_heads: int, head_dim: int, utilisation: float) -> Prediction:
    """One step: a card's queries on one other card's keys, float16, batch 1.

    Computing: 4 * heads * head_dim FLOP per visible pair of query and key forward (two products), 10 backward (five).
    Passing: key and value in float16; backward their gradients in float32 as well, in one direction.
    """
    local = seq // cards
    flops = heads * head_dim * local * local / 2 / (PEAK * utilisation)
    link = HCCS if cards <= CARDS_PER_SERVER else ROCE
    elements = 2 * kv_heads * head_dim * local
    return Prediction(4 * flops, 10 * flops, 2 * elements / link, (2 + 4) * elements / link)


def volume(seq: int, cards: int, kv_heads: int, head_dim: int) -> tuple[int, int]:
    """Bytes that a card sends for one layer, forward and backward; float16, batch 1, no window."""
    elements = 2 * kv_heads * head_dim * (seq // cards)
    return (cards - 1) * 2 * elements, (cards - 1) * 2 * elements + cards * 4 * elements


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--kv-heads", type=int, default=8)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--utilisation", type=float, default=0.4, help="share of the peak reached, assumed")
    options = parser.parse_args()
    sizes = options.heads, options.kv_heads, options.head_dim
    print(
        f"PREDICTION, not measured: causal, zigzag, float16, batch 1, {sizes[0]} heads, {sizes[1]} key/value heads, "
        f"head_dim {sizes[2]}, {options.utilisation:.0%} of {PEAK / 1e12:.0f} TFLOPS, links of {HCCS / 1e9:g} "
        f"(to {CARDS_PER_SERVER} cards) and {ROCE / 1e9:g} GB/s"
    )
    print(SOURCES)
    print()
    print("| tokens | cards | tokens per card | sent fwd, bwd (MB) | fwd step: compute, pass (ms) | hidden fwd | bwd |")
    print("|---|---|---|---|---|---|---|")
    for seq, cards in ((8, 8), (32, 8), (64, 8), (128, 8), (128, 16), (256, 32), (512, 64), (1024, 64)):
        tokens = seq * 1024
        one = step(tokens, cards, *sizes, options.utilisation)
        forward, backward = volume(tokens, cards, *sizes[1:])
        print(
            f"| {seq}K | {cards} | {tokens // cards} | {forward / 2**20:.0f}, {backward / 2**20:.0f} "
            f"| {one.compute_forward * 1e3:.2f}, {one.pass_forward * 1e3:.2f} "
            f"| {one.hidden_forward:.0%} | {one.hidden_backward:.0%} |"
        )


if __name__ == "__main__":
    main()
