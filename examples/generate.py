#!/usr/bin/env python
"""Trains the small GPT of train_gpt.py for about a minute, then generates text with and without a cache.

    python examples/generate.py
    python examples/generate.py --paged

Prints the text, the tokens per second of both ways, and whether both gave the same text.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

import mindspore as ms
import numpy as np
from flash_attention import KVCache
from mindspore import Tensor, nn, ops
from tqdm import tqdm
from train_gpt import GPT, VOCABULARY, Loss, TrainStep, batches, learning_rates, standard_library


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
    """The model with caches: it takes the tokens that it has not seen, and gives the logits of the next one."""

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


def train(model: GPT, arguments: argparse.Namespace) -> float:
    """The last loss, in nats per byte."""
    rates = learning_rates(2e-3, arguments.steps)
    optimizer = nn.AdamWeightDecay(model.trainable_params(), rates, beta2=0.95, weight_decay=0.01)
    step = TrainStep(Loss(model), optimizer)
    step.set_train()
    source = batches(standard_library(), arguments.batch, arguments.seq, arguments.seed)
    end = time.monotonic() + arguments.seconds
    for _ in (bar := tqdm(range(arguments.steps), desc="train", unit="step")):
        crop = next(source)
        loss = float(step(Tensor(crop[:, :-1]), Tensor(crop[:, 1:])).asnumpy())
        bar.set_postfix(loss=f"{loss:.3f}")
        if time.monotonic() > end:
            break
    bar.close()
    model.set_train(False)
    return loss


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
        tokens, seen = text[seen:], len(text)
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
    model = GPT(arguments.layers, arguments.heads, arguments.head_dim, arguments.seq, 0.0, "cpu", "float32")
    print(f"trained to a loss of {train(model, arguments):.3f} nats per byte", flush=True)

    total = len(arguments.prompt.encode()) + arguments.length
    cached = CachedGPT(model, arguments.heads, arguments.head_dim, total, arguments.paged)
    cached.set_train(False)
    # Both graphs, and the one of the prompt, compile before the clock starts.
    without_cache(model, total)([0])
    for tokens in (arguments.prompt.encode(), b" "):
        cached(Tensor(np.frombuffer(tokens, np.uint8).astype(np.int32)[None]))
    cached.reset()

    text, fast = generate(with_cache(cached), arguments)
    other, slow = generate(without_cache(model, total), arguments)
    print(f"\n{text.decode(errors='replace')}\n")
    print(f"with the cache {fast:.0f} tokens/s, without {slow:.0f} tokens/s: {fast / slow:.1f} times as fast")
    print(f"the same text: {'yes' if text == other else 'NO'}")
    return int(text != other)


if __name__ == "__main__":
    raise SystemExit(main())
