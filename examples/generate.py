#!/usr/bin/env python
"""Trains a small GPT for about a minute, then generates text with and without a cache.

    python examples/generate.py
    python examples/generate.py --paged

Prints the text, the tokens per second of both ways, and whether both gave the same text.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import mindspore as ms
import numpy as np
from flash_attention import FlashAttention, KVCache
from mindspore import Tensor, nn, ops
from small_gpt import GPT, SEEN, VOCABULARY, batches, standard_library, train


class CachedBlock(nn.Cell):
    """A block of the model with a cache for its keys and values."""

    def __init__(self, block: nn.Cell, heads: int, head_dim: int, length: int, paged: bool):
        super().__init__()
        self.block = block
        self.heads, self.head_dim = heads, head_dim
        self.cache = KVCache(1, length, heads, head_dim, dtype=ms.float32, paged=paged)

    def construct(self, x):
        y = self.block.norm1(x)
        self.cache.update(self.split(self.block.key(y)), self.split(self.block.value(y)))
        attended = self.cache.attend(self.split(self.block.query(y)), alibi=True)
        x = x + self.block.out(ops.reshape(attended, x.shape))
        return x + self.block.down(ops.silu(self.block.up(self.block.norm2(x))))

    def split(self, x):
        return ops.reshape(x, (x.shape[0], x.shape[1], self.heads, self.head_dim))


class CachedGPT(nn.Cell):
    """The model with caches: it takes the tokens that it has not seen, after the SEEN - 1 before them, and gives the
    logits of the next one."""

    def __init__(self, model: GPT, heads: int, head_dim: int, length: int, paged: bool):
        super().__init__()
        self.model = model
        self.blocks = nn.CellList([CachedBlock(block, heads, head_dim, length, paged) for block in model.blocks])

    def construct(self, tokens):
        x = self.model.token(tokens)
        for block in self.blocks:
            x = block(x)
        return self.model.head(self.model.norm(x[:, -1]))

    def reset(self) -> None:
        for block in self.blocks:
            block.cache.reset()


def sample(logits: np.ndarray, generator: np.random.Generator, temperature: float) -> int:
    logits = logits.astype(np.float64) / temperature
    weights = np.exp(logits - logits.max())
    return int(generator.choice(VOCABULARY, p=weights / weights.sum()))


def generate(next_logits: Callable, arguments: argparse.Namespace) -> tuple[bytes, float]:
    """The prompt with `length` more bytes, and the bytes per second."""
    generator = np.random.default_rng(arguments.seed)
    text = list(arguments.prompt.encode())
    start = time.perf_counter()
    for _ in range(arguments.length):
        text.append(sample(next_logits(text), generator, arguments.temperature))
    return bytes(text), arguments.length / (time.perf_counter() - start)


def without_cache(model: GPT, total: int) -> Callable:
    """Logits from all tokens anew, padded to one shape, so that the graph compiles once."""

    def next_logits(text: list) -> np.ndarray:
        tokens = np.zeros((1, total), np.int32)
        tokens[0, : len(text)] = text
        return model(Tensor(tokens)).asnumpy()[0, len(text) - 1]

    return next_logits


def with_cache(model: CachedGPT) -> Callable:
    """Logits from the tokens that are new: the prompt, then one at a time."""
    seen = 0

    def next_logits(text: list) -> np.ndarray:
        nonlocal seen
        tokens, seen = ([0] * (SEEN - 1) + text)[seen:], len(text)
        return model(Tensor(np.array([tokens], np.int32))).asnumpy()[0]

    return next_logits


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=60.0, help="of training, at most")
    parser.add_argument("--steps", type=int, default=200, help="of training, at most")
    parser.add_argument("--batch", type=int, default=4)
    parser.add_argument("--seq", type=int, default=512)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=2)
    parser.add_argument("--head-dim", type=int, default=64)
    parser.add_argument("--paged", action="store_true", help="a cache of blocks instead of rows")
    parser.add_argument("--prompt", default="def ")
    parser.add_argument("--length", type=int, default=1000, help="bytes to generate")
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> int:
    arguments = parse_arguments()
    ms.set_context(mode=ms.GRAPH_MODE)
    ms.set_seed(arguments.seed)
    head_dim = arguments.head_dim
    attention = partial(FlashAttention, head_dim, alibi=True, causal=True, backend="cpu", input_layout="BSH")
    model = GPT(arguments.layers, arguments.heads, head_dim, attention)
    source = batches(standard_library()[0], arguments.batch, arguments.seq, arguments.seed)
    losses, _ = train(model, source, arguments.steps, stop_seconds=arguments.seconds)
    print(f"trained to a loss of {np.mean(losses[-20:]):.3f} nats per byte", flush=True)

    total = len(arguments.prompt.encode()) + arguments.length
    cached = CachedGPT(model, arguments.heads, head_dim, total, arguments.paged)
    cached.set_train(False)
    # Both graphs, and the one of the prompt, compile before the clock starts.
    without_cache(model, total)([0])
    for count in (len(arguments.prompt.encode()), 1):
        cached(Tensor(np.zeros((1, SEEN - 1 + count), np.int32)))
    cached.reset()

    text, fast = generate(with_cache(cached), arguments)
    other, slow = generate(without_cache(model, total), arguments)
    print(f"\n{text.decode(errors='replace')}\n")
    print(f"with the cache {fast:.0f} tokens/s, without {slow:.0f} tokens/s: {fast / slow:.1f} times as fast")
    print(f"the same text: {'yes' if text == other else 'NO'}")
    return int(text != other)


if __name__ == "__main__":
    raise SystemExit(main())
