"""A server by KVCache: ragged prompts, sequences that end and begin, beams, against a list for each sequence.

It needs no pytest, because it runs on the virtual card too.
"""

import mindspore as ms
import numpy as np
from flash_attention import KVCache, attention_backend
from mindspore import Tensor, nn

from tests.train.flash_attention.support.mindspore_operators import attention, causal

BATCH, SEQ, HEADS, KV_HEADS, DIM, VALUE_DIM, MOST = 4, 3, 4, 2, 32, 16, 24
KINDS = {"contiguous": {}, "paged": {"paged": True, "block_size": 4, "num_blocks": 26}}
# The operators take float16 alone, and blocks of 16 keys and more.
BACKENDS = {
    "cpu": (ms.float32, 2e-6),
    "math": (ms.float32, 4e-6),
    "emulator": (ms.float16, 4e-3),
    "tik": (ms.float16, 4e-3),
}


class Serving(nn.Cell):
    """A step of a server: sequences end, others go on from one another, and all take tokens."""

    def __init__(self, cache: KVCache):
        super().__init__()
        self.cache = cache

    def construct(self, query, key, value, tokens, order, ended):
        self.cache.reset(ended)
        self.cache.reorder(order)
        return self.cache(query, key, value, tokens)


def garbage(cache: KVCache, number: float = np.nan) -> KVCache:
    """Return the cache with storage that holds what must not be seen."""
    for storage in (cache.key_cache, cache.value_cache):
        storage.set_data(Tensor(np.full(storage.shape, number, np.float32)).astype(storage.dtype))
    return cache


def attended(query: np.ndarray, keys: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Compute attention in float64 of a sequence's last tokens against all its keys. Tokens are (seq, heads, dim)."""
    heads_first = (array.swapaxes(0, 1) for array in (query, keys, values))
    return attention(*heads_first, DIM**-0.5, causal(len(query), len(keys)))[0].swapaxes(0, 1)


class Truth:
    """Keys and values of every sequence."""

    def __init__(self):
        self.sequences = [self.empty() for _ in range(BATCH)]

    @staticmethod
    def empty() -> tuple:
        """Return a sequence without tokens."""
        return np.zeros((0, KV_HEADS, DIM)), np.zeros((0, KV_HEADS, VALUE_DIM))

    def step(self, query, key, value, tokens, order, ended, side) -> np.ndarray:
        """Return the same results as `Serving` gives."""
        for index in ended[ended >= 0]:
            self.sequences[index] = self.empty()
        self.sequences = [self.sequences[index] for index in order]
        output = np.zeros((*query.shape[:3], VALUE_DIM))
        for b, count in enumerate(tokens):
            kept = slice(query.shape[1] - count, None) if side == "left" else slice(0, count)
            self.sequences[b] = tuple(
                np.concatenate((old, new[b, kept])) for old, new in zip(self.sequences[b], (key, value))
            )
            if count:
                output[b, kept] = attended(query[b, kept], *self.sequences[b])
        return output


def draw(generator: np.random.Generator, heads: int, width: int, tokens: np.ndarray, side: str) -> np.ndarray:
    """Return normal random rows that float16 can hold, padded with NaN."""
    rows = generator.standard_normal((BATCH, SEQ, heads, width)).astype(np.float16).astype(np.float32)
    for row, count in zip(rows, tokens):
        padding = slice(0, SEQ - count) if side == "left" else slice(count, None)
        row[padding] = np.nan
    return rows


def serve(cache: KVCache, backend: str, steps: int, seed: int = 0) -> Serving:
    """Run a random program of steps and compare it with the truth. The mode is set."""
    dtype, error = BACKENDS[backend]
    generator, truth, net = np.random.default_rng(seed), Truth(), Serving(garbage(cache))
    for step in range(steps):
        lengths = np.array([len(keys) for keys, _ in truth.sequences])
        ended = np.where(lengths + SEQ > MOST, np.arange(BATCH), -1)
        if generator.random() < 0.3:
            ended[0] = generator.integers(BATCH)
        ended = ended.astype(np.int32)
        order = np.arange(BATCH) if generator.random() < 0.4 else generator.integers(0, BATCH, BATCH)
        tokens = generator.integers(0, SEQ + 1, BATCH) if step % 3 else np.full(BATCH, SEQ)
        tokens, order = tokens.astype(np.int32), order.astype(np.int32)
        given = [
            draw(generator, heads, width, tokens, cache.padding_side)
            for heads, width in ((HEADS, DIM), (KV_HEADS, DIM), (KV_HEADS, VALUE_DIM))
        ]
        expected = truth.step(*given, tokens, order, ended, cache.padding_side)
        with attention_backend(backend):
            output = net(*(Tensor(array).astype(dtype) for array in given), *map(Tensor, (tokens, order, ended)))
        output = output.astype(ms.float32).asnumpy()
        np.testing.assert_allclose(output, expected, atol=error, err_msg=f"step {step}")
        assert not output[expected == 0].any()
        assert cache.lengths.asnumpy().tolist() == [len(keys) for keys, _ in truth.sequences]
    return net


def made(kind: str, side: str, backend: str = "cpu") -> KVCache:
    """Return a cache with hardly enough blocks."""
    options = dict(KINDS[kind], padding_side=side)
    if backend in ("emulator", "tik") and kind == "paged":
        options |= {"block_size": 16, "num_blocks": 8}
    return KVCache(BATCH, MOST, KV_HEADS, DIM, VALUE_DIM, BACKENDS[backend][0], **options)


class Two(nn.Cell):
    """Two caches of one shape: one is called, the other is updated in a statement of its own."""

    def __init__(self, backend: str, kind: str):
        super().__init__()
        options = {"paged": True, "block_size": 16} if kind == "paged" else {}
        sizes = 2, MOST, KV_HEADS, DIM, VALUE_DIM, BACKENDS[backend][0]
        self.first, self.second = (garbage(KVCache(*sizes, **options)) for _ in range(2))

    def construct(self, query, key, value, other_key, other_value):
        output = self.first(query, key, value)
        self.second.update(other_key, other_value)
        return output, self.second.attend(query)


def check_two(backend: str, kind: str, called=lambda net: net) -> None:
    """Run a prompt of 12 tokens, and eight more, in two caches of one net. `called` is the net as it is called."""
    dtype, error = BACKENDS[backend]
    net, generator = Two(backend, kind), np.random.default_rng(0)
    call = called(net)
    widths = (HEADS, DIM), *[(KV_HEADS, DIM), (KV_HEADS, VALUE_DIM)] * 2
    arrays = [generator.standard_normal((2, 20, *width)).astype(np.float16).astype(np.float32) for width in widths]
    for start, end in [(0, 12), *((at, at + 1) for at in range(12, 20))]:
        parts = [array[:, start:end] for array in arrays]
        with attention_backend(backend):
            outputs = call(*(Tensor(part).astype(dtype) for part in parts))
        for output, (keys, values) in zip(outputs, (arrays[1:3], arrays[3:])):
            right = [attended(*one) for one in zip(parts[0], keys[:, :end], values[:, :end])]
            found = output.astype(ms.float32).asnumpy()
            np.testing.assert_allclose(found, right, atol=error, err_msg=f"tokens {start} to {end}")
    assert net.first.lengths.asnumpy().tolist() == net.second.lengths.asnumpy().tolist() == [20, 20]
