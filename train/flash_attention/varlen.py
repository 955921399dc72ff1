"""Attention over packed sequences."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypedDict, overload

from mindspore import Tensor, ops
from mindspore.ops import constexpr

from flash_attention.bridge.tensors import fresh_seed, int_tensor, refuse, spec
from flash_attention.call import ALL_BLOCKS
from flash_attention.call.checks import check_int
from flash_attention.call.literals import Alignment, BackendName
from flash_attention.call.optional import in_order
from flash_attention.call.tiling import DEFAULT_STRATEGY
from flash_attention.prepare import prepare, read_rules

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Options(TypedDict, total=False):
    """The optional arguments that dense and packed calls share."""

    dropout_rate: float
    seed: Tensor | None
    keep_bits: Tensor | None
    sinks: Tensor | None
    prefix: Tensor | tuple | None
    segment_ids: Tensor | None
    kv_segment_ids: Tensor | None
    alibi_slopes: Tensor | None
    scale: float | None
    softcap: float
    causal: bool
    causal_alignment: Alignment
    window_size: tuple[int, int]
    prev_block_num: int
    next_block_num: int
    tiling_stgy_name: str
    alibi: bool
    bias_grad: bool
    head_dim: int | None
    value_head_dim: int | None
    backend: BackendName | None
    argument_names: tuple[tuple[str, str], ...]


class PackedOptions(Options, total=False):
    """The optional arguments of a packed call."""

    bias: Tensor | None


@overload
def flash_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor | tuple[int, ...] | list[int],
    cu_seqlens_k: Tensor | tuple[int, ...] | list[int],
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[PackedOptions],
) -> Tensor: ...
@overload
def flash_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor | tuple[int, ...] | list[int],
    cu_seqlens_k: Tensor | tuple[int, ...] | list[int],
    *,
    return_lse: Literal[True],
    **options: Unpack[PackedOptions],
) -> tuple[Tensor, Tensor]: ...
def flash_attention_varlen(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seqlens_q: Tensor | tuple[int, ...] | list[int],
    cu_seqlens_k: Tensor | tuple[int, ...] | list[int],
    *,
    dropout_rate: float = 0.0,
    seed: Tensor | None = None,
    keep_bits: Tensor | None = None,
    bias: Tensor | None = None,
    sinks: Tensor | None = None,
    prefix: Tensor | tuple | None = None,
    segment_ids: Tensor | None = None,
    kv_segment_ids: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    scale: float | None = None,
    softcap: float = 0.0,
    causal: bool = False,
    causal_alignment: Alignment = "top_left",
    window_size: tuple[int, int] = (-1, -1),
    prev_block_num: int = ALL_BLOCKS,
    next_block_num: int = ALL_BLOCKS,
    tiling_stgy_name: str = DEFAULT_STRATEGY,
    alibi: bool = False,
    bias_grad: bool = True,
    head_dim: int | None = None,
    value_head_dim: int | None = None,
    return_lse: bool = False,
    backend: BackendName | None = None,
    argument_names: tuple[tuple[str, str], ...] = (),
) -> Tensor | tuple[Tensor, Tensor]:
    """Run `flash_attention` on sequences that lie one behind the other, each by itself, without padding.

    Every sequence is a call of its own. Rules go by the position in the sequence, and dropout takes the index of the
    sequence for its batch element. The cost is the sum over the sequences, whatever their lengths.

    Args:
        query (Tensor): (Tq, heads, head_dim), Tq the queries of all sequences; or (Tq, heads * head_dim) with head_dim.
        key (Tensor): (Tk, kv_heads, head_dim) or (Tk, kv_heads * head_dim), dtype of query.
        value (Tensor): like key; it may have a width of its own.
        cu_seqlens_q (Tensor, tuple or list): where the sequences of queries end, ascending to Tq, with or without a 0
            in front. A sequence may be empty; if the first one is, the 0 in front is needed. A Tensor, int32 or
            int64, is data: a compiled graph serves any lengths in it.
        cu_seqlens_k (Tensor, tuple or list): likewise for the keys, ascending to Tk.
        keep_bits (Tensor): uint8 (bytes,): the keep decisions of `flash_attention` for each sequence, (heads, queries,
            ceil(keys / 8)) bytes, one sequence behind the other.
        bias (Tensor): (heads or 1, Tk), float32 or the dtype of query: a number for each key of each head, added to the
            scores of its sequence. -inf hides the key. It has a gradient, unless bias_grad=False.
        sinks (Tensor): (heads,), float32 or the dtype of query, the same for every sequence.
        prefix (Tensor or tuple): ints (sequences,): the keys of a sequence before its number are visible to all of its
            queries besides the causal ones.
        segment_ids (Tensor): refused; the cumulative lengths say what they would.
        kv_segment_ids (Tensor): refused likewise.
        causal (bool): query i of a sequence sees its keys 0..i only: aligned TOP LEFT. flash_attn aligns bottom right,
            as causal_alignment="bottom_right" does.
        alibi_slopes (Tensor): (heads,) or (sequences, heads), see `flash_attention`.
        head_dim (int): size of a head, needed for tensors of rank 2.
        value_head_dim (int): size of a head of the value, if it differs there.
        return_lse (bool): also return the logsumexp. Default: False.

    All other arguments are as in `flash_attention`.

    Returns:
        Tensor like query, as wide as the value; with return_lse a pair of it and the logsumexp, float32 (heads, Tq).

    Raises:
        TypeError, ValueError: an input is not allowed; before anything runs. Numbers in Tensors are looked at in
            PYNATIVE on a CPU; elsewhere the results of wrong ones are NaN.
        RuntimeError: the backend asked for cannot run this.
    """

    def drawn_seed():  # an inner function: mindspore.rewrite (amp level O1) leaves a function that has one alone
        return fresh_seed(argument_names)

    if isinstance(prefix, (tuple, list)):
        _check_prefix(prefix, cu_seqlens_k if isinstance(cu_seqlens_k, (tuple, list)) else ())
        prefix = int_tensor("prefix", prefix, 0)
    if segment_ids is not None or kv_segment_ids is not None:
        refuse(
            "segment_ids, cu_seqlens_q, cu_seqlens_k: got segment ids beside cumulative lengths, allowed are the "
            "lengths alone; a sequence for each document says the same"
        )
    rules = read_rules(
        argument_names,
        *(causal, causal_alignment, window_size, prev_block_num, next_block_num, tiling_stgy_name),
        *(alibi, dropout_rate, scale, softcap),
    )
    if dropout_rate != 0.0 and seed is None and keep_bits is None:
        seed = drawn_seed()
    given = in_order(
        bias=spec(bias),
        keep_bits=spec(keep_bits),
        seed=spec(seed),
        sinks=spec(sinks),
        prefix=spec(prefix),
        alibi_slopes=spec(alibi_slopes),
    )
    specs = spec(query), spec(key), spec(value), spec(cu_seqlens_q), spec(cu_seqlens_k)
    # In the order of the options of `prepare`: a graph passes constants in tuples.
    options = bias_grad, head_dim, value_head_dim, return_lse
    run = prepare("varlen", specs, given, argument_names, rules, options, backend)
    if bias is not None:
        bias = ops.reshape(bias, (1, bias.shape[0], 1, bias.shape[1]))
    inputs = in_order(bias=bias, keep_bits=keep_bits, seed=seed, sinks=sinks, prefix=prefix, alibi_slopes=alibi_slopes)
    lengths_q = cu_seqlens_q if isinstance(cu_seqlens_q, Tensor) else None
    lengths_k = cu_seqlens_k if isinstance(cu_seqlens_k, Tensor) else None
    output, logsumexp = run(query, key, value, lengths_q, lengths_k, inputs)
    if return_lse:
        return output, logsumexp
    return output


@constexpr(reuse_result=False)
def _check_prefix(prefix, ends):
    """Raise for numbers above the key counts of their sequences, if both are constants."""
    ends = [end for end in ends[:1] if end != 0] + list(ends[1:])
    for index, (number, start, end) in enumerate(zip(prefix, [0, *ends], ends)):
        check_int("prefix", number, 0)
        if number > end - start:
            raise ValueError(f"prefix: got {number} for sequence {index}, allowed are 0 to its {end - start} keys")
