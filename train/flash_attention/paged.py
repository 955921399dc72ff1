"""Attention against a paged cache, and the cache's update."""

from __future__ import annotations

import functools

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn
from mindspore import dtype as mstype
from mindspore.common.initializer import initializer

from flash_attention.backends import registry
from flash_attention.bridge.constants import numbered
from flash_attention.bridge.parameters import EntryCell
from flash_attention.bridge.tensors import as_int32, compile_time, compiling, spec, tensor_spec
from flash_attention.bridge.views import writable
from flash_attention.cache_update import append_cell, reorder_cell, update_cell
from flash_attention.call.checks import INTEGERS, check_dtype, check_int, check_range
from flash_attention.call.inputs import TensorSpec, fits
from flash_attention.call.layout import UNKNOWN
from flash_attention.call.literals import BackendName
from flash_attention.call.optional import in_order
from flash_attention.call.paged import (
    check_cache_dtype,
    check_caches,
    check_counts,
    check_tokens,
    product,
    stored_width,
)
from flash_attention.call.tiling import DEFAULT_STRATEGY
from flash_attention.call.visibility import ALL_BLOCKS
from flash_attention.call_cells import NumberCheck, Padding
from flash_attention.prepare import prepare, read_rules

# The names that the functions here have for key and value of a Call.
_NAMES = (("key", "key_cache"), ("value", "value_cache"))


def paged_caches(
    blocks: int, block_size: int, kv_heads: int, head_dim: int, value_head_dim: int | None = None, dtype=mstype.float16
) -> tuple[Parameter, Parameter]:
    """Make caches of keys and values for `reshape_and_cache` and `paged_attention`, on every backend.

    Their last axes are rounded up to multiples of 16, which the TIK operators need. The two functions take tensors of
    the true widths with them.

    Args:
        blocks (int): of each cache.
        block_size (int): keys of a block.
        kv_heads (int): heads of key and value.
        head_dim (int): size of a head of the key.
        value_head_dim (int): size of a head of the value. Default: None, head_dim.
        dtype (mindspore.dtype or str): float16, bfloat16 or float32. Default: float16.

    Returns:
        Two Parameters of zeros, (blocks, block_size, kv_heads, head_dim or value_head_dim rounded up).

    Raises:
        TypeError, ValueError: an argument is not allowed.
    """
    value_head_dim = head_dim if value_head_dim is None else value_head_dim
    given = {"blocks": blocks, "block_size": block_size, "kv_heads": kv_heads, "head_dim": head_dim}
    for name, size in {**given, "value_head_dim": value_head_dim}.items():
        check_int(name, size, 1)
    check_cache_dtype("dtype", str(dtype).lower())
    dtype = getattr(mstype, str(dtype).lower())
    sizes = int(blocks), int(block_size), int(kv_heads)  # `initializer` takes no NumPy integer
    widths = {"key_cache": stored_width(int(head_dim)), "value_cache": stored_width(int(value_head_dim))}
    # No `ops.zeros`, see flash_attention.bridge.constants.
    key_cache, value_cache = (
        Parameter(initializer("zeros", (*sizes, width), dtype), name=name, requires_grad=False)
        for name, width in widths.items()
    )
    return key_cache, value_cache


def paged_attention(
    query: Tensor,
    key_cache: Tensor,
    value_cache: Tensor,
    block_tables: Tensor,
    context_lens: Tensor,
    *,
    value_head_dim: int | None = None,
    sinks: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    causal: bool = True,
    window_size: tuple[int, int] = (-1, -1),
    alibi: bool = False,
    alibi_slopes: Tensor | None = None,
    backend: BackendName | None = None,
) -> Tensor:
    """Compute attention of sequences' last tokens, with keys and values in a cache of blocks.

    The queries of a sequence stand at its end: the last query sees all keys, the query before it all but the last key.
    This is the meaning of MindSpore's `PagedAttention`. With causal=False all queries see all keys. It has no gradient.

    Args:
        query (Tensor): (tokens, heads, head_dim), the last token of each sequence, or (batch, seq_q, heads, head_dim),
            the last seq_q; float16, bfloat16 or float32.
        key_cache (Tensor): (blocks, block_size, kv_heads, head_dim), dtype of query; kv_heads divides heads, and
            block_size is free. head_dim may be rounded up to a multiple of 16, as `paged_caches` does.
        value_cache (Tensor): (blocks, block_size, kv_heads, value_head_dim), rounded up likewise.
        block_tables (Tensor): ints (batch, most blocks of a sequence): key j of sequence b is key j % block_size of
            block block_tables[b, j // block_size]. Entries past its end are not looked at.
        context_lens (Tensor): ints (batch,), keys of each sequence, keys of the query tokens included.
        value_head_dim (int): size of a head of the value. Default: None, head_dim if the head size of the keys is
            rounded up, else the width of value_cache.
        sinks (Tensor): (heads,), float32 or the dtype of query: one more logit in the denominator of every row of a
            head. Default: None.
        scale (float): factor on the scores. Default: None, 1 / sqrt(head_dim).
        softcap (float): scores become softcap * tanh(score / softcap); 0 = off. Default: 0.0.
        causal (bool): no query sees the keys behind its position, which is aligned BOTTOM RIGHT: the last query stands
            at the last key. Default: True.
        window_size (tuple): (left, right), keys that a query sees before and, without causal, behind its position;
            -1 = all.
        alibi (bool): add -slope(head) * distance. Default: False.
        alibi_slopes (Tensor): (heads,) or (batch, heads), float32, float16 or bfloat16: add -slope * distance with
            these slopes, whether alibi is set or not. Default: None.
        backend (str): "cpu", "tik", "emulator" or "math". Default: None, see `attention_backend`.

    Returns:
        Tensor like query, as wide as the values; 0 for a query that sees nothing.

    Raises:
        TypeError, ValueError: an input is not allowed; before anything runs. Lengths and entries of the table are
            checked in PYNATIVE on a CPU. In a graph with backend "cpu", wrong numbers give an output of NaN.
        RuntimeError: the backend asked for cannot run this.
    """
    return limited_attention(
        *(query, key_cache, value_cache, block_tables, context_lens, None, (None, value_head_dim), None, "right"),
        *(sinks, scale, softcap, causal, window_size, alibi, alibi_slopes, backend, True),
    )


def limited_attention(
    query,
    key_cache,
    value_cache,
    block_tables,
    context_lens,
    max_length,
    widths,
    tokens=None,
    padding_side="right",
    sinks=None,
    scale=None,
    softcap=0.0,
    causal=True,
    window_size=(-1, -1),
    alibi=False,
    alibi_slopes=None,
    backend=None,
    looks=False,
    left_padding=None,
    return_lse=False,
):
    """Compute `paged_attention` for sequences that may be longer than max_length. Queries behind max_length get NaN.

    widths are head_dim and value_head_dim, or None each.

    With `tokens`, ints (batch,), so many of the queries of each sequence count. The others are padding, on
    padding_side, and give 0. With `looks` the numbers in block_tables and context_lens are checked, if they can be.

    With `left_padding`, ints (batch,), so many keys at the start are hidden. With `return_lse` the result is a pair,
    with the logsumexp (batch, heads, seq_q). A call has these two or max_length and tokens.
    """
    run = _prepared(
        *(query, key_cache, value_cache, block_tables, context_lens, sinks, alibi_slopes),
        *(causal, window_size, alibi, scale, softcap, backend),
        (max_length, widths, spec(tokens), padding_side, looks, left_padding is not None, return_lse),
    )
    inputs = in_order(sinks=sinks, alibi_slopes=alibi_slopes)
    # Called from outside of a graph, in GRAPH mode, no Parameter may be part of a tuple.
    if tokens is not None:
        block_tables, context_lens = as_int32(block_tables), (as_int32(context_lens) + 0, as_int32(tokens))
    if left_padding is not None:
        block_tables, context_lens = as_int32(block_tables), (as_int32(context_lens), as_int32(left_padding))
    return run(query, key_cache, value_cache, block_tables, context_lens, inputs)


def check_attention(query, caches, max_length, widths, tokens, padding_side):
    """Raise the errors of `limited_attention` with these arguments; in PYNATIVE, before something is written."""
    options = max_length, widths, spec(tokens), padding_side, False, False, False
    _prepared(query, *caches, None, None, True, (-1, -1), False, None, 0.0, None, options)


def _prepared(
    query, key_cache, value_cache, block_tables, context_lens, sinks, alibi_slopes,
    causal, window_size, alibi, scale, softcap, backend, options,
):  # fmt: skip
    rules = read_rules(
        *(_NAMES, causal, "bottom_right", window_size, ALL_BLOCKS, ALL_BLOCKS, DEFAULT_STRATEGY),
        *(alibi, 0.0, scale, softcap),
    )
    specs = spec(query), spec(key_cache), spec(value_cache), spec(block_tables), spec(context_lens)
    given = in_order(sinks=spec(sinks), alibi_slopes=spec(alibi_slopes))
    return prepare("paged", specs, given, _NAMES, rules, options, backend)


def append_tokens(
    key, value, key_cache, value_cache, block_tables, lengths, tokens, max_length: int, widths, padding_side, strict
) -> Tensor:
    """Append tokens to the sequences of a `KVCache`. `append_cell` gives the meaning of the tensors. Without
    `tokens` all count.
    """
    run = _append(
        *(spec(key), spec(value), spec(key_cache), spec(value_cache), spec(lengths), spec(tokens)),
        *(max_length, widths, padding_side),
    )
    if tokens is None:
        tokens = _all_tokens(spec(key), spec(lengths))
        if tokens is None:
            tokens = lengths * 0 + key.shape[1]
    pad_key, pad_value = _padding("key", spec(key), spec(key_cache)), _padding("value", spec(value), spec(value_cache))
    key, value = pad_key(key), pad_value(value)
    return run(key, value, key_cache, value_cache, block_tables, lengths, as_int32(tokens), strict)


def reorder_sequences(key_cache, value_cache, block_tables, lengths, indices, max_length: int, strict: bool) -> Tensor:
    """Reorder the sequences of a `KVCache`; `reorder_cell` gives the meaning of the tensors."""
    run = _reorder(spec(key_cache), spec(value_cache), spec(lengths), spec(indices), max_length)
    return run(key_cache, value_cache, block_tables, lengths, as_int32(indices), strict)


def reshape_and_cache(
    key: Tensor, value: Tensor, key_cache: Tensor, value_cache: Tensor, slot_mapping: Tensor
) -> Tensor:
    """Write keys and values of tokens into a cache, in place.

    It has the meaning of MindSpore's `ReshapeAndCache`.

    Args:
        key (Tensor): (tokens, kv_heads, head_dim) or (batch, seq, kv_heads, head_dim).
        value (Tensor): likewise, of its own width.
        key_cache (Parameter): (blocks, block_size, kv_heads, head_dim), dtype of key; it is written. On a CPU it may be
            a plain Tensor. There, in PYNATIVE, it may also be a view (a slice, a part, a reshaped Tensor) whose
            elements lie one behind the other. Inside a graph, and in MindSpore 2.0, a slice is a new tensor: what is
            written there is lost. head_dim may be rounded up to a multiple of 16, as `paged_caches` does.
        value_cache (Parameter): likewise, as wide as the value.
        slot_mapping (Tensor): ints, a number per token in the order of the keys: block * block_size + offset. A
            negative number leaves its token out. No slot may come twice.

    Returns:
        Tensor int32 of shape (1,), a token without a meaning. A graph knows by itself that a Parameter is read after it
        is written. It must be told about plain Tensors: `key_cache = ops.depend(key_cache, token)`, and value_cache
        likewise, before `paged_attention`.

    Raises:
        TypeError, ValueError: an input is not allowed; before anything runs.
        RuntimeError: a slot is past the cache, in a compiled graph.
    """
    return update_cache(key, value, key_cache, value_cache, slot_mapping, True)


def update_cache(key, value, key_cache, value_cache, slot_mapping, looks=False):
    """Run `reshape_and_cache`. With `looks` the numbers in slot_mapping are checked, if they can be."""
    run = _update(spec(key), spec(value), spec(key_cache), spec(value_cache), spec(slot_mapping))
    if looks and not compiling():
        _slot_check(spec(key_cache))(slot_mapping)
    pad_key, pad_value = _padding("key", spec(key), spec(key_cache)), _padding("value", spec(value), spec(value_cache))
    key_cache, value_cache = writable()("key_cache", key_cache), writable()("value_cache", value_cache)
    return run(pad_key(key), pad_value(value), key_cache, value_cache, as_int32(slot_mapping))


class _NoUpdate(EntryCell):
    """Write no token; for `update_cell`."""

    def construct(self, key, value, key_cache, value_cache, slot_mapping):
        return numbered(1)


class _NoAppend(EntryCell):
    """Append no token; for `append_cell`."""

    def construct(self, key, value, key_cache, value_cache, block_tables, lengths, tokens, strict):
        return lengths + 0


@compile_time
def _padding(name, tensor, cache):
    """Return the Cell that makes a tensor as wide as its cache."""
    shape, width = tensor_spec(name, tensor).shape, tensor_spec(f"{name}_cache", cache).shape[-1]
    # MindSpore ends the process if a graph joins tensors without elements. These have nothing to write, so none is
    # joined.
    return _padding_of(width if 0 in shape else shape[-1], width)


_padding_of = functools.lru_cache(maxsize=64)(Padding)


@compile_time
def _slot_check(cache):
    return _slot_check_of(cache[0][0] * cache[0][1], ms.get_context("device_target"))


@functools.lru_cache(maxsize=64)
def _slot_check_of(slots: int, device: str) -> nn.Cell:
    def check(numbers):  # a negative number leaves a token out
        check_range("slot_mapping", np.maximum(numbers, 0), slots - 1)

    return NumberCheck(check if device == "CPU" else None)


@compile_time
def _update(key, value, key_cache, value_cache, slot_mapping):
    names = "key", "value", "key_cache", "value_cache", "slot_mapping"
    specs = tuple(map(tensor_spec, names, (key, value, key_cache, value_cache, slot_mapping)))
    known, (*_, key_cache, value_cache, slots) = check_update(*specs), specs
    return update_cell(key_cache, value_cache, not known) if product(slots.shape) != 0 else _NoUpdate()


def check_update(
    key: TensorSpec, value: TensorSpec, key_cache: TensorSpec, value_cache: TensorSpec, slots: TensorSpec
) -> bool:
    """Return True if all sizes are known. Raise unless `reshape_and_cache` takes the tensors."""
    tensors = {"key": key, "value": value, "key_cache": key_cache, "value_cache": value_cache}
    check_dtype("slot_mapping", slots.dtype, INTEGERS)
    check_cache_dtype("key", tensors["key"].dtype)
    caches = {name: tensors[name] for name in ("key_cache", "value_cache")}
    check_caches(caches, tensors["key"].dtype)
    known = check_known(**tensors, slot_mapping=slots)
    tokens = product(slots.shape)
    for name in ("key", "value"):
        shape, cache = tensors[name].shape, caches[f"{name}_cache"].shape
        stored = len(shape) in (3, 4) and cache[2:] in (shape[-2:], (shape[-2], stored_width(shape[-1])))
        if not stored or not fits(product(shape[:-2]), tokens):
            raise ValueError(
                f"{name}: got shape {shape}, allowed are (tokens, kv_heads, width) and (batch, seq, kv_heads, width) "
                f"with {tokens} tokens as in slot_mapping, and {cache[2:]} as in {name}_cache"
            )
        check_dtype(name, tensors[name].dtype, (tensors["key"].dtype,))
    return known


@compile_time
def _append(key, value, key_cache, value_cache, lengths, tokens, max_length, widths, padding_side):
    given = {"key": tensor_spec("key", key), "value": tensor_spec("value", value)}
    caches = {"key": tensor_spec("key_cache", key_cache), "value": tensor_spec("value_cache", value_cache)}
    batch = lengths[0][0]
    check_tokens(given, caches, batch, dict(zip(caches, widths)))
    if tokens is not None:
        check_counts("tokens", tensor_spec("tokens", tokens), batch)
    known = check_known(**given)
    if given["key"].shape[1] == 0:
        return _NoAppend()
    return append_cell(caches["key"], caches["value"], batch, max_length, padding_side, not known)


@compile_time
def _all_tokens(key, lengths):
    """Return the tokens of each sequence; None if they are unknown."""
    if tensor_spec("key", key).shape[1] == UNKNOWN:
        return None
    return Tensor(np.full(lengths[0], tensor_spec("key", key).shape[1], np.int32))


def check_known(**tensors: TensorSpec) -> bool:
    """Return True if all sizes of tensors are known.

    Raises:
        ValueError: some are not, and the native kernel or MindSpore needs them.
    """
    for name, tensor in tensors.items():
        if UNKNOWN in tensor.shape:
            if not (registry.serves_native() and registry.get_backend("cpu").dynamic):
                raise ValueError(
                    f"{name}: got shape {tensor.shape} in a graph for dynamic shapes, {UNKNOWN} is not known; allowed "
                    "is that on a CPU with MindSpore 2.7 or later; else compile it for each shape (no set_inputs), or "
                    "use PYNATIVE"
                )
            return False
    return True


@compile_time
def _reorder(key_cache, value_cache, lengths, indices, max_length):
    batch = lengths[0][0]
    check_counts("indices", tensor_spec("indices", indices), batch)
    caches = tensor_spec("key_cache", key_cache), tensor_spec("value_cache", value_cache)
    return reorder_cell(*caches, batch, max_length)
