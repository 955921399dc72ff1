"""Time attention of a decoding step by MindSpore's PagedAttention through the patch.

    python -m benchmarks.inference_primitives

Columns: through the patch, our own paged_attention, and the same composed from MindSpore's operators with keys and
values read once. The three run in turns; a figure is a median.
"""

from __future__ import annotations

import time

import mindspore as ms
import numpy as np
from flash_attention import paged_attention
from flash_attention.compat.mindspore_ops import PagedAttention
from mindspore import Parameter, Tensor, ops

BATCH, HEADS, KV_HEADS, DIM, KEYS, BLOCK, ROUNDS = 8, 32, 8, 128, 4096, 128, 15


def composed(query, key_cache, value_cache, tables, lengths):
    """Return the same from MindSpore's operators: keys and values gathered once, heads of a group together."""
    key, value = (
        ops.gather(cache, tables, 0).reshape((BATCH, KEYS, KV_HEADS, DIM)) for cache in (key_cache, value_cache)
    )
    rows = query.reshape((BATCH, KV_HEADS, HEADS // KV_HEADS, DIM))
    scores = ops.matmul(rows, key.transpose((0, 2, 3, 1))).astype(ms.float32) * DIM**-0.5
    hidden = ops.arange(KEYS).reshape((1, 1, 1, -1)) >= lengths.reshape((-1, 1, 1, 1))
    weights = ops.softmax(ops.masked_fill(scores, hidden, -1e9), -1).astype(value.dtype)
    return ops.matmul(weights, value.transpose((0, 2, 1, 3))).reshape((BATCH, HEADS * DIM))


def measure(dtype) -> None:
    """Print the times of one dtype."""
    generator = np.random.default_rng(0)
    blocks = BATCH * KEYS // BLOCK
    caches = [
        Parameter(
            Tensor(generator.standard_normal((blocks, BLOCK, KV_HEADS, DIM), np.float32)).astype(dtype), name=name
        )
        for name in ("key_cache", "value_cache")
    ]
    tables = Tensor(generator.permutation(blocks).reshape(BATCH, -1).astype(np.int32))
    lengths = Tensor(np.full(BATCH, KEYS, np.int32))
    query = Tensor(generator.standard_normal((BATCH, HEADS * DIM), np.float32)).astype(dtype)
    patched, apart = PagedAttention(HEADS, DIM**-0.5, KV_HEADS), query.reshape((BATCH, HEADS, DIM))
    ways = {
        "through the patch": lambda: patched(query, *caches, tables, lengths),
        "paged_attention": lambda: paged_attention(apart, *caches, tables, lengths),
        "composed": lambda: composed(query, *caches, tables, lengths),
    }
    times: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(ROUNDS):
        order = list(ways.items())[:: 1 if turn % 2 else -1]  # each comes as often behind the other
        for name, way in (*order, *order):
            start = time.perf_counter()
            way().asnumpy()
            times[name].append(time.perf_counter() - start)
    medians = {name: float(np.median(values[4:])) for name, values in times.items()}
    own, first = medians["paged_attention"], medians["through the patch"]
    print(str(dtype), *(f"{name} {value * 1e3:.1f} ms" for name, value in medians.items()), sep="  ")
    print(
        f"  through the patch / paged_attention {first / own:.3f}, composed / patch {medians['composed'] / first:.1f}"
    )


if __name__ == "__main__":
    for one in (ms.float32, ms.float16):
        measure(one)
