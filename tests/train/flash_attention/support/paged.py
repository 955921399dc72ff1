"""Keys in pages: caches that hold NaN where no sequence has a key, and attention to the keys themselves in float64.

It needs no pytest, because it runs on the virtual card too.
"""

from __future__ import annotations

import numpy as np
from flash_attention import reference
from flash_attention.call import AttentionRules, Call

from tests.train.flash_attention.support.arrays import random

SINKS = np.array([1.0, -2.0, 0.5, 9.0], np.float32)


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


def expected(query: np.ndarray, keys, values, **rules) -> np.ndarray:
    """Return the output for queries at the ends of their keys, (batch, seq, heads, width).

    Args:
        keys, values: of each sequence, (length, heads, width). A sequence without keys gives zeros.
        rules: arguments of `paged_attention`, sinks and slopes as arrays.
    """
    sinks, slopes = rules.pop("sinks", None), rules.pop("alibi_slopes", None)
    rules = AttentionRules.from_arguments(**{"causal": True, "causal_alignment": "bottom_right", **rules})
    output = np.zeros((*query.shape[:3], values[0].shape[2]))
    for index, (row, key, value) in enumerate(zip(query, keys, values)):
        if not len(key):
            continue
        sizes, given = (1, row.shape[1], len(row), len(key), row.shape[2], key.shape[1]), {"sinks": sinks}
        call = Call(*sizes, value_dim=value.shape[2], dtype="float32", rules=rules, sinks=sinks is not None)
        if slopes is not None:
            own = slopes if slopes.ndim == 1 else slopes[index]
            distance = np.abs(np.arange(len(row))[:, None] + len(key) - len(row) - np.arange(len(key)))
            given["bias"] = -own.astype(np.float64)[None, :, None, None] * distance
            biased = {"bias_shape": given["bias"].shape, "bias_dtype": "float32"}
            call = Call(*sizes, value_dim=value.shape[2], dtype="float32", rules=rules, **biased)
        tensors = (array.swapaxes(0, 1)[None] for array in (row, key, value))
        output[index] = reference.truth(call, *tensors, **given).output[0].swapaxes(0, 1)
    return output
