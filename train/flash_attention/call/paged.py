"""Describe calls against a paged cache: keys and values in blocks that a table names."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from flash_attention.call.call import Call
from flash_attention.call.checks import INTEGERS, check_dtype, check_int, check_range
from flash_attention.call.inputs import DTYPES, TensorSpec, fits
from flash_attention.call.layout import UNKNOWN
from flash_attention.call.rules import AttentionRules
from flash_attention.call.storage import Paged


def paged_call(
    query: TensorSpec,
    key_cache: TensorSpec,
    value_cache: TensorSpec,
    block_tables: TensorSpec,
    context_lens: TensorSpec,
    sinks: TensorSpec | None = None,
    alibi_slopes: TensorSpec | None = None,
    *,
    rules: AttentionRules,
    device: str = "CPU",
    max_length: int | None = None,
    padding: str | None = None,
    left_padding: bool = False,
    return_lse: bool = False,
) -> Call:
    """Describe a call of `paged_attention`, or with max_length a call of a `KVCache`."""
    if len(query.shape) not in (3, 4):
        raise ValueError(
            f"query: got shape {query.shape}, allowed are (tokens, heads, head_dim) and (batch, seq_q, heads, head_dim)"
        )
    check_dtype("query", query.dtype, DTYPES)
    batch, heads, dim = query.shape[0], query.shape[-2], query.shape[-1]
    check_caches({"key_cache": key_cache, "value_cache": value_cache}, query.dtype)
    if key_cache.shape[3] != dim:
        raise ValueError(f"key_cache: got head_dim {key_cache.shape[3]}, but query has {dim}; they must be equal")
    check_dtype("block_tables", block_tables.dtype, INTEGERS)
    if len(block_tables.shape) != 2 or not fits(block_tables.shape[0], batch):
        raise ValueError(f"block_tables: got shape {block_tables.shape}, allowed is (batch, blocks), batch {batch}")
    check_counts("context_lens", context_lens, batch)
    seq_q = query.shape[1] if len(query.shape) == 4 else 1
    stored = product((block_tables.shape[1], key_cache.shape[1]))
    if UNKNOWN in block_tables.shape + context_lens.shape:
        stored = UNKNOWN
    keys = (batch, stored, key_cache.shape[2])
    whole = Call.from_inputs(
        TensorSpec((batch, seq_q, heads, dim), query.dtype),
        *(TensorSpec((*keys, cache.shape[3]), cache.dtype) for cache in (key_cache, value_cache)),
        sinks=sinks,
        alibi_slopes=alibi_slopes,
        rules=replace(rules, window_right=-1) if rules.causal else rules,
        input_layout="BSND",
        device=device,
        return_lse=return_lse,
    )
    pages = Paged(key_cache.shape[1], key_cache.shape[0], len(query.shape) == 3, max_length, padding, left_padding)
    return replace(whole, storage=pages)


def gathered_call(call: Call, dtype: str) -> Call:
    """Return the dense call of a paged call whose pages are gathered. A mask says which keys a query sees."""
    scores = call.batch, call.heads, call.seq_q, call.seq_k
    given: dict[str, Any] = {"mask_shape": (call.batch, 1, *scores[2:]), "mask_dtype": "bool"}
    if call.bias == "alibi":
        given.update(bias_shape=scores, bias_dtype="float32", bias_grad=False, slopes_shape=None)
    rules = AttentionRules(scale=call.rules.scale, softcap=call.rules.softcap)
    return replace(call, storage=None, rules=rules, layout="BNSD", dtype=dtype, **given)


def check_numbers(call: Call, block_tables, context_lens) -> None:
    """Check the arrays of a call without max_length: no length goes past the table, nor a block past the caches."""
    import numpy as np

    size = call.paged.block_size
    check_range("context_lens", context_lens, block_tables.shape[1] * size if call.paged.blocks > 0 else 0)
    lengths, left = context_lens.astype(np.int64)[:, None], call.rules.window_left
    first = 0 if left < 0 else lengths - call.seq_q - left
    starts = np.arange(block_tables.shape[1]) * size
    seen = (starts < lengths) & (starts + size > first)
    check_range("block_tables", block_tables[seen], call.paged.blocks - 1)


def product(sizes: tuple) -> int:
    """Return the product of sizes; UNKNOWN if one of them is."""
    return UNKNOWN if UNKNOWN in sizes else math.prod(sizes)


def check_cache_dtype(name: str, dtype: str, allowed: tuple = DTYPES) -> None:
    """Raise an error unless a cache, or a tensor for one, may have this dtype."""
    check_dtype(name, dtype, allowed, "; quantised caches are out of scope" if dtype == "int8" else "")


def check_caches(caches: dict[str, TensorSpec], dtype: str) -> None:
    """Check the shapes and dtypes of caches of keys and values, by name. Tensors of the call are of `dtype`."""
    first = None
    for name, cache in caches.items():
        check_cache_dtype(name, cache.dtype, (dtype,))
        if len(cache.shape) != 4:
            raise ValueError(f"{name}: got shape {cache.shape}, allowed is (blocks, block_size, kv_heads, head_dim)")
        first = first or cache.shape
        if cache.shape[:3] != first[:3]:
            raise ValueError(
                f"{name}: got shape {cache.shape}, but {next(iter(caches))} has {first}; all but the last "
                "axis must be equal"
            )


def stored_width(width: int) -> int:
    """Return the last axis of a cache as `paged_caches` makes it."""
    return -(-width // 16) * 16


def true_widths(query: TensorSpec, key_cache: TensorSpec, value_cache: TensorSpec, value_head_dim: int | None) -> tuple:
    """Return query as wide as the cache's keys, and the width of narrower values. The width is None if values are as
    wide as their cache.
    """
    key_shape, value_shape = key_cache.shape, value_cache.shape
    if not query.shape or len(key_shape) != 4 or len(value_shape) != 4:
        return query, None  # `paged_call` refuses it
    dim, width, values = query.shape[-1], key_shape[3], value_shape[3]
    rounded = dim != width and stored_width(dim) == width
    if value_head_dim is None:
        value_head_dim = dim if rounded else values
    check_int("value_head_dim", value_head_dim, 1)
    if values not in (value_head_dim, stored_width(value_head_dim)):
        raise ValueError(
            f"value_head_dim: got {value_head_dim} with a value_cache of shape {value_shape}, allowed are "
            f"{values} and what is rounded up to that as a multiple of 16"
        )
    wide = query._replace(shape=(*query.shape[:-1], width)) if rounded else query
    return wide, None if value_head_dim == values else int(value_head_dim)


def check_tokens(
    tokens: dict[str, TensorSpec], caches: dict[str, TensorSpec], batch: int, widths: dict[str, int]
) -> None:
    """Check the key and value that a `KVCache` is given to keep. Caches and widths have the same names."""
    seq = None
    for name, tensor in tokens.items():
        _check_cached_dtype(name, tensor, caches[name])
        heads, width = caches[name].shape[2], widths[name]
        shape = tensor.shape
        allowed = batch, seq or shape[1:2] and shape[1], heads, width
        if len(shape) != 4 or not all(map(fits, shape, allowed)):
            raise ValueError(f"{name}: got shape {shape}, allowed is ({batch}, {seq or 'seq'}, {heads}, {width})")
        seq = shape[1]


def check_counts(name: str, tensor: TensorSpec, batch: int) -> None:
    """Check a tensor that holds a number for each sequence."""
    check_dtype(name, tensor.dtype, INTEGERS)
    if len(tensor.shape) != 1 or not fits(tensor.shape[0], batch):
        raise ValueError(f"{name}: got shape {tensor.shape}, allowed is (batch,) = ({batch},)")


def check_query(query: TensorSpec, batch: int, cache: TensorSpec, head_dim: int) -> None:
    """Check the query that attends to a `KVCache`. The cache's own shape and dtype are as they are."""
    _check_cached_dtype("query", query, cache)
    if len(query.shape) != 4 or not fits(query.shape[0], batch) or query.shape[-1] != head_dim:
        raise ValueError(f"query: got shape {query.shape}, allowed is ({batch}, seq, heads, {head_dim})")


def _check_cached_dtype(name: str, tensor: TensorSpec, cache: TensorSpec) -> None:
    check_dtype(name, tensor.dtype, (cache.dtype,), ", the dtype of the KVCache (its argument dtype)")
