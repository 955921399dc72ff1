#!/usr/bin/env python
"""Grouped-query attention beside multi-head attention: size of the cache, speed of decoding, loss of a small GPT.

    python examples/grouped_query.py
    python examples/grouped_query.py --kv-heads 8 2 --heads 8 --context 16384

Query heads share the heads of key and value. The cache and the time of a token, which is the time to read the cache,
shrink with these; the loss after the same steps on the same text stays close.
"""

from __future__ import annotations

import argparse
import time
from functools import partial

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention, KVCache
from mindspore import Tensor
from small_gpt import GPT, batches, held_out_loss, pieces, standard_library, train

REPEATS = 9


def trained_loss(kv_heads: int, arguments: argparse.Namespace) -> float:
    """Held-out loss of a GPT with so many heads of key and value."""
    ms.set_seed(arguments.seed)
    text, held_out = standard_library()
    head_dim = arguments.head_dim
    attention = partial(FlashAttention, head_dim, alibi=True, causal=True, backend="cpu", input_layout="BSH")
    model = GPT(arguments.layers, arguments.heads, head_dim, attention, kv_heads)
    source = batches(text, arguments.batch, arguments.seq, arguments.seed)
    train(model, source, arguments.steps, label=f"{kv_heads} heads of key and value")
    return held_out_loss(model, pieces(held_out, arguments.seq, arguments.held_out))


def decoding(kv_heads: int, arguments: argparse.Namespace) -> tuple[float, float]:
    """Megabytes of a layer's cache, and milliseconds of a token against it when it is full."""
    random = np.random.default_rng(arguments.seed)

    def draw(tokens: int, heads: int) -> Tensor:
        return Tensor(
            random.standard_normal((arguments.sequences, tokens, heads, arguments.head_dim)).astype(np.float32)
        )

    cache = KVCache(arguments.sequences, arguments.context, kv_heads, arguments.head_dim, dtype=ms.float32)
    cache.update(draw(arguments.context, kv_heads), draw(arguments.context, kv_heads))
    query = draw(1, arguments.heads)
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        cache.attend(query).asnumpy()
        seconds.append(time.perf_counter() - start)
    size = sum(entry.nbytes for entry in cache.get_parameters() if entry.dtype == ms.float32)
    return size / 1e6, 1e3 * float(np.median(seconds))


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--heads", type=int, default=4, help="of the query")
    parser.add_argument("--kv-heads", type=int, nargs="+", default=[4, 2, 1], help="of key and value")
    parser.add_argument("--head-dim", type=int, default=32)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=256)
    parser.add_argument("--held-out", type=int, default=64, help="pieces of --seq bytes for the loss")
    parser.add_argument("--context", type=int, default=8192, help="tokens in the cache of a sequence")
    parser.add_argument("--sequences", type=int, default=8, help="that are decoded together")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    arguments = parse_arguments()
    ms.set_context(mode=ms.PYNATIVE_MODE)
    speeds = [decoding(kv_heads, arguments) for kv_heads in arguments.kv_heads]
    ms.set_context(mode=ms.GRAPH_MODE)
    losses = [trained_loss(kv_heads, arguments) for kv_heads in arguments.kv_heads]
    print(f"{arguments.heads} query heads; {arguments.sequences} sequences of {arguments.context} tokens in the cache")
    print(f"{'heads of key and value':>24}{'cache of a layer':>20}{'a token':>14}{'held-out loss':>16}")
    for kv_heads, (megabytes, milliseconds), loss in zip(arguments.kv_heads, speeds, losses):
        print(f"{kv_heads:>24}{megabytes:>17.1f} MB{milliseconds:>11.2f} ms{loss:>16.3f}")


if __name__ == "__main__":
    main()
