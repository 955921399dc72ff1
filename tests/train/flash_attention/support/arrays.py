"""NumPy arrays that many tests make."""

from __future__ import annotations

import numpy as np


def ends(lengths, zero: bool = True) -> tuple:
    """Return the cumulative lengths."""
    return tuple(np.cumsum((0, *lengths) if zero else lengths).tolist())


def random(*shape: int, seed: int | list[int] = 0, dtype: type = np.float32) -> np.ndarray:
    """Return normal random elements."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def draw(*shape: int, seed: int = 0, dtype: type = np.float32) -> np.ndarray:
    """Return normal random elements, different for each shape."""
    return random(*shape, seed=[seed, *shape], dtype=dtype)


def bias_of_slopes(slopes: np.ndarray, seq_q: int, seq_k: int, offset: int) -> np.ndarray:
    """Return ALiBi as a float64 bias (batch, heads, seq_q, seq_k). Slopes are (heads,) or (batch, heads)."""
    distance = np.abs(np.arange(seq_q)[:, None] + offset - np.arange(seq_k))
    return -np.atleast_2d(slopes).astype(np.float64)[..., None, None] * distance


def pages(lengths, block_size: int, kv_heads: int, dim: int, value_dim: int, dtype: type = np.float32) -> tuple:
    """Return each sequence's keys and values, and the caches and the table for them. What no sequence has is NaN;
    table entries past an end are far away.
    """
    keys = [random(length, kv_heads, dim, seed=length, dtype=dtype) for length in lengths]
    values = [random(length, kv_heads, value_dim, seed=length + 1, dtype=dtype) for length in lengths]
    counts = [-(-length // block_size) for length in lengths]
    order = np.random.default_rng(1).permutation(sum(counts) + 2)
    caches = [np.full((len(order), block_size, kv_heads, width), np.nan, dtype) for width in (dim, value_dim)]
    tables = np.full((len(lengths), max(counts) + 1), 1 << 30, np.int32)
    for sequence, count in enumerate(counts):
        for index in range(count):
            block, order = order[0], order[1:]
            tables[sequence, index] = block
            for cache, tokens in zip(caches, (keys, values)):
                part = tokens[sequence][index * block_size : (index + 1) * block_size]
                cache[block, : len(part)] = part
    return keys, values, *caches, tables
