"""flash_attn.flash_attn_interface: attention between tensors, of padded batches or of packed sequences."""

from __future__ import annotations

from mindspore import Tensor, ops
from mindspore import dtype as mstype
from mindspore.ops import constexpr

from flash_attention.bridge.constants import filled
from flash_attention.bridge.tensors import compiling, spec
from flash_attention.call.checks import check_bool
from flash_attention.compat.flash_attn.kvcache import flash_attn_with_kvcache
from flash_attention.compat.flash_attn.lengths import check_ends, tensor_or_none, with_rest
from flash_attention.compat.flash_attn.pages import check_pages, gatherer
from flash_attention.functional import flash_attention
from flash_attention.varlen import flash_attention_varlen

__all__ = ["flash_attn_func", "flash_attn_varlen_func", "flash_attn_with_kvcache"]

# flash_attn's names of the arguments of this package's functions.
_NAMES = (
    *(("query", "q"), ("key", "k"), ("value", "v"), ("scale", "softmax_scale"), ("dropout_rate", "dropout_p")),
    ("return_lse", "return_attn_probs"),
)


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
    """Compute attention of (batch, seqlen, nheads, headdim) tensors. Causal masks are aligned BOTTOM RIGHT.

    Args:
        q (Tensor): (batch, seqlen_q, nheads, headdim), float16, bfloat16 or float32.
        k (Tensor): (batch, seqlen_k, nheads_k, headdim); nheads_k divides nheads.
        v (Tensor): like k; it may have a headdim of its own.
        dropout_p (float): share of the probabilities set to zero, whenever it is not 0. PYNATIVE only: a compiled graph
            needs a seed, which `flash_attention.flash_attention` takes. Default: 0.0.
        softmax_scale (float): factor on the scores. Default: None, 1 / sqrt(headdim).
        causal (bool): query i sees keys 0 to i + seqlen_k - seqlen_q, so that the last query sees all keys.
            (`flash_attention.flash_attention` aligns top left unless told otherwise.) Default: False.
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
    rules = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return _attend(q, k, v, None, rules)


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
    """Compute `flash_attn_func` on sequences one behind the other. Causal masks are aligned BOTTOM RIGHT in each.

    Args:
        q (Tensor): (total_q, nheads, headdim).
        k (Tensor): (total_k, nheads_k, headdim).
        v (Tensor): like k.
        cu_seqlens_q (Tensor): ints (batch + 1,), cumulative lengths from 0 to total_q or less; rows behind the last
            length give zeros.
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
    if block_table is not None:
        check_pages(spec(k), spec(v), spec(cu_seqlens_q), spec(cu_seqlens_k), spec(block_table))
        k, v = gatherer()(k, v, cu_seqlens_k, block_table, max_seqlen_k)
    rules = dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs
    return _attend(q, k, v, (cu_seqlens_q, cu_seqlens_k), rules)


def _attend(q, k, v, ends, rules):
    """Compute attention, of packed sequences if there are ends. Errors use flash_attn's names."""
    dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, deterministic, return_attn_probs = rules
    _check(deterministic)
    if ends is not None:
        look = check_ends(spec(q), spec(k), spec(ends[0]), spec(ends[1]), spec(alibi_slopes), _NAMES)
        if not compiling():
            look(tensor_or_none(ends[0]), tensor_or_none(ends[1]))
        # Two more sequences hold the rows behind the last sequence: queries without keys, and keys without queries.
        ends = with_rest(ends[0], q.shape[0], True), with_rest(ends[1], k.shape[0], False)
        if alibi_slopes is not None and len(alibi_slopes.shape) == 2:
            slopes = ops.cast(alibi_slopes, mstype.float32)
            alibi_slopes = ops.concat((slopes, filled((2, slopes.shape[1]), 0)), 0)
    given = {
        "dropout_rate": dropout_p,
        "scale": softmax_scale,
        "causal": causal,
        "causal_alignment": "bottom_right",
        "window_size": window_size,
        "softcap": softcap,
        "alibi_slopes": alibi_slopes,
        "return_lse": return_attn_probs,
        "argument_names": _NAMES,
    }
    if ends is None:
        result = flash_attention(q, k, v, input_layout="BSND", **given)
    else:
        result = flash_attention_varlen(q, k, v, *ends, **given)
    return result + (None,) if return_attn_probs else result


@constexpr(reuse_result=False)
def _check(deterministic):
    check_bool("deterministic", deterministic)
