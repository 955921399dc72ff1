"""flash_attn.flash_attn_interface: attention between tensors, packed or not."""

from __future__ import annotations

import functools

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype
from mindspore.ops import constexpr

from flash_attention.bridge.constants import filled, numbered
from flash_attention.bridge.tensors import as_int32, spec, tensor_spec
from flash_attention.call.checks import INTEGERS, check_bool, check_dtype, check_rate, check_scale
from flash_attention.call.layout import UNKNOWN
from flash_attention.call.optional import read_slopes
from flash_attention.compat.flash_attn.kvcache import flash_attn_with_kvcache
from flash_attention.compat.flash_attn.passes import (
    _flash_attn_backward,
    _flash_attn_forward,
    _flash_attn_varlen_backward,
    _flash_attn_varlen_forward,
)
from flash_attention.functional import flash_attention
from flash_attention.varlen import flash_attention_varlen

__all__ = [
    "_flash_attn_backward",
    "_flash_attn_forward",
    "_flash_attn_varlen_backward",
    "_flash_attn_varlen_forward",
    "flash_attn_func",
    "flash_attn_kvpacked_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_with_kvcache",
]


def flash_attn_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """Return attention of (batch, seqlen, nheads, headdim) tensors. Causal masks are aligned BOTTOM RIGHT.

    Args:
        q (Tensor): (batch, seqlen_q, nheads, headdim), float16, bfloat16 or float32.
        k (Tensor): (batch, seqlen_k, nheads_k, headdim); nheads_k divides nheads.
        v (Tensor): like k; it may have a headdim of its own.
        dropout_p (float): share of the probabilities set to zero, whenever it is not 0. PYNATIVE only: a compiled graph
            needs a seed, which `flash_attention.flash_attention` takes. Default: 0.0.
        softmax_scale (float): factor on the scores. Default: None, 1 / sqrt(headdim).
        causal (bool): query i sees keys 0 to i + seqlen_k - seqlen_q: the last query sees all keys, as the last lines
            of the two meet. (`flash_attention.flash_attention` aligns top left unless told otherwise.) Default: False.
        window_size (tuple): (left, right): query i sees keys i + seqlen_k - seqlen_q - left to + right; -1 = all.
        softcap (float): scores become softcap * tanh(score / softcap); 0 = off. Default: 0.0.
        alibi_slopes (Tensor): (nheads,) or (batch, nheads): -slope * |i + seqlen_k - seqlen_q - j| is added.
        deterministic (bool): no effect: every backward pass is deterministic. Default: False.
        return_attn_probs (bool): also return the logsumexp, and None for the probabilities, which nothing stores.

    Returns:
        Tensor like q, as wide as v; with return_attn_probs (output, logsumexp, None), the logsumexp float32
        (batch, nheads, seqlen_q). A query that sees nothing gives 0, and a logsumexp of -inf.

    Raises:
        TypeError, ValueError: an input is not allowed; before anything runs.
    """
    _check(deterministic, return_attn_probs, dropout_p, softmax_scale)
    result = flash_attention(
        q,
        k,
        v,
        dropout_rate=dropout_p,
        scale=softmax_scale,
        softcap=softcap,
        causal=causal,
        causal_alignment="bottom_right",
        window_size=window_size,
        alibi_slopes=alibi_slopes,
        input_layout="BSND",
        return_lse=return_attn_probs,
    )
    return result + (None,) if return_attn_probs else result


def flash_attn_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """Return `flash_attn_func` with key and value in one tensor.

    Args:
        kv (Tensor): (batch, seqlen_k, 2, nheads_k, headdim), key and value.

    All other arguments, the result and the errors are as in `flash_attn_func`.
    """
    _check_packed("kv", spec(kv), 5, 2)
    k, v = _part(kv, 0), _part(kv, 1)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def flash_attn_qkvpacked_func(
    qkv: Tensor,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """Return `flash_attn_func` with query, key and value in one tensor.

    Args:
        qkv (Tensor): (batch, seqlen, 3, nheads, headdim).

    All other arguments, the result and the errors are as in `flash_attn_func`.
    """
    _check_packed("qkv", spec(qkv), 5, 3)
    q, k, v = _part(qkv, 0), _part(qkv, 1), _part(qkv, 2)
    return flash_attn_func(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    )


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Tensor | None = None,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """Return `flash_attn_func` on sequences one behind the other. Causal masks are aligned BOTTOM RIGHT in each.

    Args:
        q (Tensor): (total_q, nheads, headdim).
        k (Tensor): (total_k, nheads_k, headdim).
        v (Tensor): like k.
        cu_seqlens_q (Tensor): ints (batch + 1,), cumulative lengths from 0 to total_q or less; what lies behind gives
            zeros.
        cu_seqlens_k (Tensor): likewise, to total_k or less.
        max_seqlen_q (int): no effect.
        max_seqlen_k (int): no effect, except with a block_table in a compiled graph, which makes room for so many keys
            of each sequence on average.
        block_table (Tensor): ints (batch, most pages of a sequence): k and v then are (num_blocks, page_block_size,
            nheads_k, headdim), and key j of sequence b is in page block_table[b, j // page_block_size]. The keys in use
            are gathered first. Entries past the end of a sequence may be anything; a key that no page holds is NaN.

    All other arguments are as in `flash_attn_func`; alibi_slopes are (nheads,) or (batch, nheads).

    Returns:
        as `flash_attn_func`: (total_q, nheads, headdim), the logsumexp (nheads, total_q).

    Raises:
        TypeError, ValueError: an input is not allowed; before anything runs.
    """
    _check(deterministic, return_attn_probs, dropout_p, softmax_scale)
    if block_table is not None:
        _check_pages(spec(k), spec(v), spec(cu_seqlens_q), spec(cu_seqlens_k), spec(block_table))
        k, v = _gatherer()(k, v, cu_seqlens_k, block_table, max_seqlen_k)
    _check_ends(spec(q), spec(cu_seqlens_q), spec(cu_seqlens_k), spec(alibi_slopes))
    # Two more sequences are what lies behind the last one: queries without keys, and keys without queries.
    cu_seqlens_q = _with_rest(cu_seqlens_q, q.shape[0], True)
    cu_seqlens_k = _with_rest(cu_seqlens_k, k.shape[0], False)
    if alibi_slopes is not None and len(alibi_slopes.shape) == 2:
        slopes = ops.cast(alibi_slopes, mstype.float32)
        alibi_slopes = ops.concat((slopes, filled((2, slopes.shape[1]), 0)), 0)
    result = flash_attention_varlen(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        dropout_rate=dropout_p,
        scale=softmax_scale,
        softcap=softcap,
        causal=causal,
        causal_alignment="bottom_right",
        window_size=window_size,
        alibi_slopes=alibi_slopes,
        return_lse=return_attn_probs,
    )
    return result + (None,) if return_attn_probs else result


def flash_attn_varlen_kvpacked_func(
    q: Tensor,
    kv: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """Return `flash_attn_varlen_func` with key and value in one tensor.

    Args:
        kv (Tensor): (total_k, 2, nheads_k, headdim).

    All other arguments, the result and the errors are as in `flash_attn_varlen_func`.
    """
    _check_packed("kv", spec(kv), 4, 2)
    k, v = _part(kv, 0), _part(kv, 1)
    options = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return flash_attn_varlen_func(q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k, *options)


def flash_attn_varlen_qkvpacked_func(
    qkv: Tensor,
    cu_seqlens: Tensor,
    max_seqlen: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
) -> Tensor | tuple[Tensor, Tensor, None]:
    """Return `flash_attn_varlen_func` with query, key and value in one tensor.

    Args:
        qkv (Tensor): (total, 3, nheads, headdim).

    All other arguments, the result and the errors are as in `flash_attn_varlen_func`.
    """
    _check_packed("qkv", spec(qkv), 4, 3)
    q, k, v = _part(qkv, 0), _part(qkv, 1), _part(qkv, 2)
    options = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return flash_attn_varlen_func(q, k, v, cu_seqlens, cu_seqlens, max_seqlen, max_seqlen, *options)


def _part(packed, index):
    """Return one of the tensors that are packed in the last axis but two."""
    # A compiled graph on a CPU slices neither float16 nor bfloat16.
    return ops.cast(ops.cast(packed, mstype.float32)[..., index, :, :], packed.dtype)


class _Gathered(nn.Cell):
    """Gather the keys and values of packed sequences from pages. A key that no page holds is NaN.

    PYNATIVE takes those in use; a compiled graph `most` for each sequence, of which the last mean nothing.
    """

    def __call__(self, k, v, cu_seqlens, table, most):
        ends, table = cu_seqlens.asnumpy().astype(np.int64), table.asnumpy()
        if ends[0] != 0 or (np.diff(ends) < 0).any():
            raise ValueError(f"cu_seqlens_k: got {ends.tolist()}, allowed are cumulative lengths, which ascend from 0")
        blocks, size = k.shape[:2]
        owner = np.repeat(np.arange(len(table)), np.diff(ends))
        inside = np.arange(len(owner)) - ends[owner]
        block = table[owner, np.minimum(inside // size, table.shape[1] - 1)]
        known = (block >= 0) & (block < blocks) & (inside < table.shape[1] * size)
        places = np.stack((np.where(known, block, 0), inside % size), -1).astype(np.int32)
        if len(places) == 0:
            places = np.zeros((1, 2), np.int32)
        missing = None if known.all() else Tensor(~known.reshape(-1, 1, 1))
        if k.dtype not in (mstype.float32, mstype.float16):  # which `rows` casts: the pages in use alone
            used, places[:, 0] = np.unique(places[:, 0], return_inverse=True)
            k, v = (ops.concat([cache[page : page + 1] for page in used.tolist()], 0) for cache in (k, v))
        return self.rows(k, Tensor(places), missing), self.rows(v, Tensor(places), missing)

    def construct(self, k, v, cu_seqlens, table, most):
        (blocks, size), (batch, width) = k.shape[:2], table.shape
        row = ops.reshape(numbered(batch * min(most, width * size)), (-1, 1))
        ends, table = ops.cast(cu_seqlens, mstype.int32), as_int32(table)
        owner = ops.cast(row >= ops.reshape(ends[1:], (1, -1)), mstype.float32).sum(1)
        exists = owner < batch
        owner = ops.minimum(ops.cast(owner, mstype.int32), batch - 1)
        inside = ops.reshape(row, (-1,)) - ops.gather(ends, owner, 0)
        page = ops.minimum(inside // size, width - 1)
        block = ops.gather(ops.reshape(table, (-1,)), owner * width + page, 0)
        known = ops.logical_and(ops.logical_and(block >= 0, block < blocks), inside < width * size)
        missing = ops.reshape(ops.logical_and(exists, ops.logical_not(known)), (-1, 1, 1))
        places = ops.stack((ops.minimum(ops.maximum(block, 0), blocks - 1), inside % size), -1)
        return self.rows(k, places, missing), self.rows(v, places, missing)

    def rows(self, cache, places, missing):
        dtype = cache.dtype
        if dtype != mstype.float32 and dtype != mstype.float16:  # a CPU gathers no bfloat16
            cache = ops.cast(cache, mstype.float32)
        rows = ops.gather_nd(cache, places)
        if missing is not None:
            rows = ops.masked_fill(rows, missing, float("nan"))
        return ops.cast(rows, dtype)


@constexpr(reuse_result=False)
def _gatherer():
    return _gatherer_of_pages()


_gatherer_of_pages = functools.lru_cache(maxsize=None)(_Gathered)  # made at the first call: none may be at import


def _with_rest(ends, rows, of_queries):
    """Add two more sequences to cumulative lengths, up to all rows."""
    if not isinstance(ends, Tensor):
        return tuple(ends) + ((rows, rows) if of_queries else (ends[-1], rows))
    ends, last = ops.cast(ends, mstype.int32), numbered(1) + rows
    return ops.concat((ends, last if of_queries else ends[-1:], last), 0)


@constexpr(reuse_result=False)
def _check_ends(q, cu_seqlens_q, cu_seqlens_k, alibi_slopes):
    counts = set()
    for name, given in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        if isinstance(given, (tuple, list)) and not isinstance(given[0], tuple):
            counts |= {len(given) - 1, len(given)}
        else:
            ends = tensor_spec(name, given)
            check_dtype(name, ends.dtype, INTEGERS)
            if len(ends.shape) != 1 or ends.shape[0] == 0:
                raise ValueError(f"{name}: got shape {ends.shape}, allowed is (batch + 1,)")
            counts |= {ends.shape[0] - 1, ends.shape[0]}
    if alibi_slopes is not None:
        heads = tensor_spec("q", q).shape[-2]
        read_slopes("alibi_slopes", tensor_spec("alibi_slopes", alibi_slopes), heads, "batch", counts)


@constexpr(reuse_result=False)
def _check_pages(k, v, cu_seqlens_q, cu_seqlens_k, block_table):
    k, v, table = tensor_spec("k", k), tensor_spec("v", v), tensor_spec("block_table", block_table)
    for name, shape in (("k", k.shape), ("v", v.shape), ("block_table", table.shape)):
        if UNKNOWN in shape:
            raise ValueError(f"{name}: got shape {shape} in a graph for dynamic shapes, {UNKNOWN} is not known")
    check_dtype("block_table", table.dtype, INTEGERS)
    if len(table.shape) != 2:
        raise ValueError(f"block_table: got shape {table.shape}, allowed is (batch, pages)")
    for name, tensor in (("k", k), ("v", v)):
        if len(tensor.shape) != 4 or tensor.shape[:3] != k.shape[:3]:
            raise ValueError(
                f"{name}: got shape {tensor.shape}, allowed is (num_blocks, page_block_size, nheads_k, headdim) with a "
                "block_table, the first three the same for k and v"
            )
    for name, given in (("cu_seqlens_q", cu_seqlens_q), ("cu_seqlens_k", cu_seqlens_k)):
        ends = tensor_spec(name, given)
        check_dtype(name, ends.dtype, INTEGERS)
        if ends.shape != (table.shape[0] + 1,):
            raise ValueError(f"{name}: got shape {ends.shape}, allowed is (batch + 1,) = ({table.shape[0] + 1},)")


@constexpr(reuse_result=False)
def _check(deterministic, return_attn_probs, dropout_p, softmax_scale):
    check_bool("deterministic", deterministic)
    check_bool("return_attn_probs", return_attn_probs)
    check_rate("dropout_p", dropout_p)
    if softmax_scale is not None:
        check_scale("softmax_scale", softmax_scale)


@constexpr(reuse_result=False)
def _check_packed(name, described, rank, parts):
    shape = tensor_spec(name, described).shape
    if len(shape) != rank or shape[-3] != parts:
        tokens = "batch, seqlen" if rank == 5 else "total"
        raise ValueError(f"{name}: got shape {shape}, allowed is ({tokens}, {parts}, nheads, headdim)")
