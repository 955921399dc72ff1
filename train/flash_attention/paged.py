"""Attention against a paged cache, and the cache's update."""

from __future__ import annotations

import functools

import mindspore as ms
from mindspore import Tensor

from flash_attention.backends import registry
from flash_attention.backends.cache_update import append_cell, update_cell
from flash_attention.precision import fix_dtypes
from flash_attention.problem.checks import check_dtype
from flash_attention.problem.paged import PagedProblem, check_cache_dtype, check_caches, check_tokens
from flash_attention.tensors import Prepared, compile_time, spec, tensor_spec


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    *,
    sinks: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    window_size: tuple[int, int] = (-1, -1),
    alibi: bool = False,
    alibi_slopes: Tensor | None = None,
    backend: str | None = None,
) -> Tensor:
    """Attention of the last tokens of sequences whose keys and values are in a cache of blocks.

    The queries of a sequence stand at its end: the last sees all its keys, the one before all but the last. That is
    the meaning of MindSpore's `PagedAttention`. It has no gradient.

    Args:
        query (Tensor): (tokens, heads, head_dim), the last token of each sequence, or (batch, seq_q, heads, head_dim),
            the last seq_q; float16, bfloat16 or float32.
        key_cache (Tensor): (blocks, block_size, kv_heads, head_dim), dtype of query; kv_heads divides heads, and
            block_size is free.
        value_cache (Tensor): (blocks, block_size, kv_heads, value_head_dim).
        block_tables (Tensor): int32 (batch, most blocks of a sequence): key j of sequence b is key j % block_size of
            block block_tables[b, j // block_size]. Entries past its end are not looked at.
        context_lens (Tensor): int32 (batch,), keys of each sequence, those of the query tokens included.
        sinks (Tensor): (heads,), float32 or the dtype of query: one more logit in the denominator of every row of a
            head. Default: None.
        scale (float): factor on the scores. Default: None, 1 / sqrt(head_dim).
        softcap (float): scores become softcap * tanh(score / softcap); 0 = off. Default: 0.0.
        window_size (tuple): (left, right), keys that a query sees before its position, -1 = all; none follow it.
        alibi (bool): add -slope(head) * distance. Default: False.
        alibi_slopes (Tensor): (heads,) or (batch, heads), float32, float16 or bfloat16: the slopes to take for that,
            whether alibi is set or not. Not on the TIK operators. Default: None.
        backend (str): "cpu", "tik", "emulator" or "math". Default: None, see `attention_backend`.

    Returns:
        Tensor like query, as wide as the values; 0 for a query that sees nothing.

    Raises:
        TypeError, ValueError: an input is not allowed; before anything runs.
        RuntimeError: the backend asked for cannot run this; or, on backend "cpu", a length or an entry of the table
            goes past the cache.
    """
    return limited_attention(
        *(query, key_cache, value_cache, block_tables, context_lens, None),
        *(sinks, scale, softcap, window_size, alibi, alibi_slopes, backend),
    )


def limited_attention(
    query,
    key_cache,
    value_cache,
    block_tables,
    context_lens,
    max_length,
    sinks=None,
    scale=None,
    softcap=0.0,
    window_size=(-1, -1),
    alibi=False,
    alibi_slopes=None,
    backend=None,
):
    """`paged_attention` where sequences may be longer than max_length: queries of tokens behind it get NaN."""
    run = _plan(
        *(spec(query), spec(key_cache), spec(value_cache), spec(block_tables), spec(context_lens), spec(sinks)),
        spec(alibi_slopes),
        *(scale, softcap, window_size, alibi, backend, max_length),
    )
    inputs = (None, None, None, None, sinks, None, None, None, alibi_slopes)  # in the order of OPTIONAL
    return run(query, key_cache, value_cache, block_tables, context_lens, inputs)


def append_tokens(
    key, value, key_cache, value_cache, block_tables, lengths, used_blocks, max_length: int, strict: bool
) -> Tensor:
    """Appends tokens to the sequences of a `KVCache`; `append_cell` gives the meaning of the tensors."""
    run = _append(spec(key), spec(value), spec(key_cache), spec(value_cache), spec(lengths), max_length)
    return run(key, value, key_cache, value_cache, block_tables, lengths, used_blocks, strict)


def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> Tensor:
    """Writes keys and values of tokens into a cache, in place.

    The meaning is that of MindSpore's `ReshapeAndCache`.

    Args:
        key (Tensor): (tokens, kv_heads, head_dim) or (batch, seq, kv_heads, head_dim).
        value (Tensor): likewise, of its own width.
        key_cache (Parameter): (blocks, block_size, kv_heads, head_dim), dtype of key; it is written. In PYNATIVE on a
            CPU it may be a plain Tensor.
        value_cache (Parameter): likewise, as wide as the value.
        slot_mapping (Tensor): int32, a number per token in the order of the keys: block * block_size + offset; a
            token of a negative number is left out. No slot may come twice.

    Returns:
        Tensor int32 of shape (1,), which a graph may depend on; what it holds has no meaning.

    Raises:
        TypeError, ValueError: an input is not allowed; before anything runs.
        RuntimeError: a slot is past the cache.
    """
    run = _update(spec(key), spec(value), spec(key_cache), spec(value_cache), spec(slot_mapping))
    return run(key, value, key_cache, value_cache, slot_mapping)


@compile_time
def _plan(
    query, key_cache, value_cache, block_tables, context_lens, sinks, slopes,
    scale, softcap, window_size, alibi, backend, max_length,
):  # fmt: skip
    named = {
        "query": query,
        "key_cache": key_cache,
        "value_cache": value_cache,
        "block_tables": block_tables,
        "context_lens": context_lens,
    }
    tensors = tuple(tensor_spec(name, described) for name, described in named.items())
    tensors += (None if sinks is None else tensor_spec("sinks", sinks),)
    tensors += (None if slopes is None else tensor_spec("alibi_slopes", slopes),)
    window_size = tuple(window_size) if isinstance(window_size, list) else window_size
    forced, device = registry.forced_backend(backend), ms.get_context("device_target")
    return _planned(tensors, scale, softcap, window_size, alibi, forced, device, max_length)


@functools.lru_cache(maxsize=512)
def _planned(tensors, scale, softcap, window_size, alibi, backend, device, max_length):
    problem = PagedProblem.from_inputs(
        *tensors,
        scale=scale,
        softcap=softcap,
        window_size=window_size,
        alibi=alibi,
        device=device,
        max_length=max_length,
    )
    return fix_dtypes(Prepared(registry.build(problem, backend), problem.whole))


@compile_time
def _update(key, value, key_cache, value_cache, slot_mapping):
    named = {"key": key, "value": value, "key_cache": key_cache, "value_cache": value_cache}
    tensors = {name: tensor_spec(name, described) for name, described in named.items()}
    slots = tensor_spec("slot_mapping", slot_mapping)
    check_dtype("slot_mapping", slots.dtype, ("int32",))
    check_cache_dtype("key", tensors["key"].dtype)
    caches = {name: tensors[name] for name in ("key_cache", "value_cache")}
    check_caches(caches, tensors["key"].dtype)
    tokens = 1
    for size in slots.shape:
        tokens *= size
    for name in ("key", "value"):
        shape, cache = tensors[name].shape, caches[f"{name}_cache"].shape
        rows = 1
        for size in shape[:-2]:
            rows *= size
        if len(shape) not in (3, 4) or shape[-2:] != cache[2:] or rows != tokens:
            raise ValueError(
                f"{name}: got shape {shape}, allowed are (tokens, kv_heads, width) and (batch, seq, kv_heads, width) "
                f"with {tokens} tokens as in slot_mapping, and {cache[2:]} as in {name}_cache"
            )
        check_dtype(name, tensors[name].dtype, (tensors["key"].dtype,))
    return update_cell(*caches.values())


@compile_time
def _append(key, value, key_cache, value_cache, lengths, max_length):
    tokens = {"key": tensor_spec("key", key), "value": tensor_spec("value", value)}
    caches = {"key": tensor_spec("key_cache", key_cache), "value": tensor_spec("value_cache", value_cache)}
    batch = lengths[0][0]
    check_tokens(tokens, caches, batch)
    return append_cell(caches["key"], caches["value"], batch, max_length)
