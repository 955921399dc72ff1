#!/usr/bin/env python
"""Train a small GPT for a minute, then continue prompts with and without a cache.

    python examples/generate.py
    python examples/generate.py --paged
    python examples/generate.py --beams 4 --prompts ragged

Prints the text, the tokens per second of both ways, and whether both gave the same text. With beams, several prompts
share a cache, and each keeps its most likely continuations.
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
from small_gpt import GPT, SEEN, VOCABULARY, batches, sample_byte, standard_library, train

PROMPTS = {"one": ("def ",), "equal": ("def ", "for ", "the "), "ragged": ("def ", "import numpy", "if not ", "x")}


class CachedBlock(nn.Cell):
    """A block of the model with a cache for its keys and values."""

    def __init__(self, block: nn.Cell, heads: int, head_dim: int, batch: int, length: int, paged: bool):
        super().__init__()
        self.block = block
        self.heads, self.head_dim = heads, head_dim
        self.cache = KVCache(batch, length, heads, head_dim, dtype=ms.float32, paged=paged, padding_side="left")

    def construct(self, x, counts, order):
        y = self.block.norm1(x)
        self.cache.reorder(order)
        self.cache.update(self.split(self.block.key(y)), self.split(self.block.value(y)), counts)
        attended = self.cache.attend(self.split(self.block.query(y)), counts, alibi=True)
        x = x + self.block.out(ops.reshape(attended, x.shape))
        return x + self.block.down(ops.silu(self.block.up(self.block.norm2(x))))

    def split(self, x):
        return ops.reshape(x, (x.shape[0], x.shape[1], self.heads, self.head_dim))


class CachedGPT(nn.Cell):
    """The model with caches. It takes new tokens, behind the SEEN - 1 tokens before them, and gives the logits of the
    next token. Of row b, the last counts[b] tokens count, and it goes on from row order[b]."""

    def __init__(self, model: GPT, heads: int, head_dim: int, batch: int, length: int, paged: bool):
        super().__init__()
        self.model = model
        blocks = [CachedBlock(block, heads, head_dim, batch, length, paged) for block in model.blocks]
        self.blocks = nn.CellList(blocks)

    def construct(self, tokens, counts, order):
        x = self.model.token(tokens)
        for block in self.blocks:
            x = block(x, counts, order)
        return self.model.head(self.model.norm(x[:, -1]))

    def reset(self) -> None:
        for block in self.blocks:
            block.cache.reset()


class Sample:
    """Choose a next byte for every text, as likely as the model says."""

    def __init__(self, prompts: list[bytes], arguments: argparse.Namespace):
        self.generator, self.temperature = np.random.default_rng(arguments.seed), arguments.temperature
        self.texts = [list(prompt) for prompt in prompts]

    def step(self, logits: np.ndarray) -> np.ndarray:
        """Add a byte to every text; return the row that each goes on from."""
        for text, row in zip(self.texts, logits):
            text.append(sample_byte(self.generator, row, self.temperature))
        return np.arange(len(self.texts))


class BeamSearch:
    """Keep for every prompt the texts that are most likely as a whole."""

    def __init__(self, prompts: list[bytes], arguments: argparse.Namespace):
        self.beams = arguments.beams
        self.texts = [list(prompt) for prompt in prompts for _ in range(self.beams)]
        # All beams of a prompt are alike at first, so the bytes of the first beam become the beams.
        self.scores = np.where(np.arange(len(self.texts)) % self.beams == 0, 0.0, -np.inf)

    def step(self, logits: np.ndarray) -> np.ndarray:
        """Add a byte to the best texts; return the row that each goes on from."""
        logits = logits.astype(np.float64)
        logits -= logits.max(-1, keepdims=True)
        scores = self.scores[:, None] + logits - np.log(np.exp(logits).sum(-1, keepdims=True))
        scores = scores.reshape(-1, self.beams * VOCABULARY)
        best = np.argsort(-scores, axis=1, kind="stable")[:, : self.beams]
        self.scores = np.take_along_axis(scores, best, 1).ravel()
        order = (best // VOCABULARY + np.arange(len(scores))[:, None] * self.beams).ravel()
        self.texts = [[*self.texts[row], byte] for row, byte in zip(order, best.ravel() % VOCABULARY)]
        return order


def generate(next_logits: Callable, choice: Sample | BeamSearch, length: int) -> tuple[list[bytes], float]:
    """Return the texts with `length` more bytes, and the bytes per second of each."""
    start = time.perf_counter()
    order = np.arange(len(choice.texts))
    for _ in range(length):
        order = choice.step(next_logits(choice.texts, order))
    return [bytes(text) for text in choice.texts], length / (time.perf_counter() - start)


def without_cache(model: GPT, total: int) -> Callable:
    """Return a function that computes logits from all tokens anew. They are padded to one shape, so that the graph
    compiles once.
    """

    def next_logits(texts: list, order: np.ndarray) -> np.ndarray:
        tokens = np.zeros((len(texts), total), np.int32)
        for row, text in zip(tokens, texts):
            row[: len(text)] = text
        return model(Tensor(tokens)).asnumpy()[np.arange(len(texts)), [len(text) - 1 for text in texts]]

    return next_logits


def with_cache(model: CachedGPT) -> Callable:
    """Return a function that computes logits from new tokens: the prompts, padded on the left, then one at a time."""
    seen = 0

    def next_logits(texts: list, order: np.ndarray) -> np.ndarray:
        nonlocal seen
        longest = max(map(len, texts))
        counts = np.array([len(text) if seen == 0 else 1 for text in texts], np.int32)
        tokens, seen = [([0] * (SEEN - 1 + longest - len(text)) + text)[seen:] for text in texts], longest
        given = np.array(tokens, np.int32), counts, order.astype(np.int32)
        return model(*map(Tensor, given)).asnumpy()

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
    parser.add_argument("--prompts", choices=PROMPTS, default="one", help="one, several of a length, or of any lengths")
    parser.add_argument("--beams", type=int, default=0, help="keep so many likely texts of a prompt; 0: sample one")
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

    prompts = [prompt.encode() for prompt in PROMPTS[arguments.prompts]]
    choice = BeamSearch if arguments.beams else Sample
    longest, rows = max(map(len, prompts)), len(prompts) * max(1, arguments.beams)
    total = longest + arguments.length
    cached = CachedGPT(model, arguments.heads, head_dim, rows, total, arguments.paged)
    cached.set_train(False)
    # Both graphs, and the graph of the prompts, compile before the clock starts.
    model(Tensor(np.zeros((rows, total), np.int32)))
    for count in (longest, 1):
        alike = (Tensor(np.array(numbers, np.int32)) for numbers in ([count] * rows, range(rows)))
        cached(Tensor(np.zeros((rows, SEEN - 1 + count), np.int32)), *alike)
    cached.reset()

    texts, fast = generate(with_cache(cached), choice(prompts, arguments), arguments.length)
    others, slow = generate(without_cache(model, total), choice(prompts, arguments), arguments.length)
    for text in texts[:: max(1, arguments.beams)]:
        print(f"\n{text.decode(errors='replace')}")
    print(f"\nwith the cache {fast:.0f} tokens/s, without {slow:.0f} tokens/s: {fast / slow:.1f} times as fast")
    same = texts == others
    print(f"the same text: {'yes' if same else 'NO'}")
    return int(not same)


if __name__ == "__main__":
    raise SystemExit(main())
