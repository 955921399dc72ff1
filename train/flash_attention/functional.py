"""Attention as functions; `flash_attention.prepare` chooses what runs a call."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, overload

from mindspore import Tensor, ops
from mindspore import dtype as mstype

from flash_attention.bridge.tensors import compile_time, compiling, fresh_seed, int_tensor, spec, tensor_spec
from flash_attention.call import ALL_BLOCKS
from flash_attention.call.block_mask import BlockMask
from flash_attention.call.checks import check_bool
from flash_attention.call.inputs import read_tensors
from flash_attention.call.layout import UNKNOWN
from flash_attention.call.literals import Alignment, BackendName, LayoutName
from flash_attention.call.tiling import DEFAULT_STRATEGY
from flash_attention.call.torch_shapes import mask_steps, tensor_steps
from flash_attention.paged import paged_attention as paged_attention
from flash_attention.paged import reshape_and_cache as reshape_and_cache
from flash_attention.prepare import lacks_operations, prepare, read_rules
from flash_attention.varlen import Options
from flash_attention.varlen import flash_attention_varlen as flash_attention_varlen

if TYPE_CHECKING:
    from typing_extensions import Unpack

# The names that `scaled_dot_product_attention` has for the arguments of `flash_attention`.
_TORCH_NAMES = (
    *(("attention_mask", "attn_mask"), ("bias", "attn_mask"), ("dropout_rate", "dropout_p"), ("causal", "is_causal")),
)


class DenseOptions(Options, total=False):
    """The optional arguments of a dense call."""

    input_layout: LayoutName
    batch: int | None
    block_mask: BlockMask | Tensor | None
    shards: Any


@overload
def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    return_lse: Literal[False] = False,
    **options: Unpack[DenseOptions],
) -> Tensor: ...
@overload
def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    return_lse: Literal[True],
    **options: Unpack[DenseOptions],
) -> tuple[Tensor, Tensor]: ...
def flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    dropout_rate: float = 0.0,
    seed: Tensor | None = None,
    keep_bits: Tensor | None = None,
    sinks: Tensor | None = None,
    prefix: Tensor | tuple | None = None,
    segment_ids: Tensor | None = None,
    kv_segment_ids: Tensor | None = None,
    alibi_slopes: Tensor | None = None,
    block_mask: BlockMask | Tensor | None = None,
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
    input_layout: LayoutName = "BNSD",
    head_dim: int | None = None,
    value_head_dim: int | None = None,
    batch: int | None = None,
    return_lse: bool = False,
    backend: BackendName | None = None,
    argument_names: tuple[tuple[str, str], ...] = (),
    shards: Any = None,
) -> Tensor | tuple[Tensor, Tensor]:
    """Compute softmax attention: softmax(scale * query @ key^T + bias) @ value over the visible keys.

    Shapes are (batch, heads, seq, head_dim), or as `input_layout` says. B is the batch. H and Hkv are the heads of
    query and key. Sq and Sk are the lengths of both. D and Dv are the sizes of a head of key and value. Hkv may be
    smaller than H (grouped-query attention). The lengths are free.

    Args:
        query (Tensor): (B, H, Sq, D), float16, bfloat16 or float32.
        key (Tensor): (B, Hkv, Sk, D), dtype of query; Hkv divides H.
        value (Tensor): (B, Hkv, Sk, Dv), dtype of query.
        attention_mask (Tensor): 0 = visible, anything else = hidden; bool, uint8 or floating. (Sq, Sk),
            (1, Sq, Sk), (B, Sq, Sk), (B, 1, Sk), or rank 4 with B or 1, H or 1, Sq or 1, Sk. (T, T) or (1, T, T), T the
            tile of the tiling strategy, strictly upper triangular, stands for a causal mask of any length.
            Default: None.
        bias (Tensor): added to the scaled scores; rank 4 with B or 1, H or 1, Sq or 1, Sk; dtype of query, or float32.
            -inf in it hides a key. Default: None.
        dropout_rate (float): share of the probabilities set to zero, 0 <= rate < 1. Default: 0.0.
        seed (Tensor): int64 (2,), decides which probabilities are dropped, equally on every backend. Default: None, a
            fresh seed for each call in PYNATIVE (see `mindspore.set_seed`). A compiled graph needs a seed.
        keep_bits (Tensor): the decisions themselves instead of a seed: uint8 (B, H, Sq, ceil(Sk / 8)), bit k % 8 of
            byte k // 8 set = key k is kept. Default: None.
        sinks (Tensor): (H,), float32 or the dtype of query: one more logit in the denominator of every row of a head
            and in the logsumexp. Default: None.
        prefix (Tensor or tuple): ints (B,): every query of an item also sees the keys before its number, 0 to Sk. With
            causal, and without windows. Default: None.
        segment_ids (Tensor): ints (B, Sq): a query sees keys of its own id only. Negative ids, of padding, see nothing
            and are seen by none. Ids of int64 must fit int32; in a compiled graph others count as negative.
            Default: None.
        kv_segment_ids (Tensor): ints (B, Sk), the ids of the keys. Default: None, segment_ids.
        alibi_slopes (Tensor): (H,) or (B, H), float32, float16 or bfloat16: add -slope * distance inside, whether
            alibi is set or not; without a bias. They get no gradient.
            Default: None.
        block_mask (BlockMask or Tensor): which tiles of queries see which tiles of keys; the other rules decide inside
            them. A compiled function takes the Tensor, uint8 or bool (B or 1, H or 1, query tiles, key tiles), not 0 =
            visible, of tiles of 64, 128 or 256 tokens as the shape says; it may be other data in each call. Default:
            None, all.
        scale (float): factor on the scores. Default: None, 1 / sqrt(head_dim).
        softcap (float): scaled scores become softcap * tanh(score / softcap), before any bias. Default: 0.0, off.
        causal (bool): query i sees keys 0..i only. It is aligned TOP LEFT: one query against ten keys sees one key.
            flash_attn and cached decoding align bottom right, see causal_alignment. Default: False.
        causal_alignment (str): "top_left", or "bottom_right": query i stands at key i + Sk - Sq, for causal, windows
            and computed ALiBi. Default: "top_left".
        window_size (tuple): (left, right), keys that a query sees before and after its position; -1 = all.
            Default: (-1, -1).
        prev_block_num (int): tiles of keys that a tile of queries sees before its own. Default: 65536, all.
        next_block_num (int): tiles of keys that it sees after its own. Default: 65536, all.
        tiling_stgy_name (str): see `flash_attention.call.tiling`. Default: "sparse", tiles of 128.
        alibi (bool): without a bias, add -slope(head) * distance inside. Default: False.
        bias_grad (bool): False skips the gradient of `bias`, which is then zero. Default: True.
        input_layout (str): "BNSD", "BSND", "BSH", "SBH", or "TH": matrices (batch * seq, heads * head_dim), the items
            of the batch one after the other. Default: "BNSD".
        head_dim (int): size of a head of query and key, 1 to 576; on an Ascend 910 to 256. Needed for "BSH", "SBH" and
            "TH".
        value_head_dim (int): size of a head of value and output, up to 512. Default: None, head_dim for "BSH", "SBH"
            and "TH".
        batch (int): items of the batch, needed for "TH", and for it only. Default: None.
        return_lse (bool): also return the logsumexp. Default: False.
        backend (str): name of the backend to use. Default: None, see `attention_backend`.
        argument_names (tuple): pairs of an argument's name here and its name in error messages. For functions that
            call this one with arguments of their own. Default: (), the names here.
        shards (tuple): how semi-automatic parallelism splits the call, a
            `flash_attention.sharding.shard.ShardRequest`; the FlashAttention layer sets it. Default: None.

    Returns:
        Tensor like query, as wide as value. With return_lse a pair of it and the logsumexp, float32 (B, H, Sq), -inf
        for a query that sees nothing. Both are differentiable. A query that sees nothing gives 0.

    Raises:
        TypeError, ValueError: an input is not allowed; before anything runs.
        RuntimeError: the backend asked for cannot run this call; with the reason. MindSpore cannot differentiate
            this call, see docs/usage.md about bfloat16.
    """

    def drawn_seed():  # an inner function: mindspore.rewrite (amp level O1) leaves a function that has one alone
        return fresh_seed(argument_names)

    rules = read_rules(
        argument_names,
        *(causal, causal_alignment, window_size, prev_block_num, next_block_num, tiling_stgy_name),
        *(alibi, dropout_rate, scale, softcap),
    )
    if dropout_rate != 0.0 and seed is None and keep_bits is None:
        seed = drawn_seed()
    return attend(
        (query, key, value),
        rules,
        # In the order of the options of `prepare`: a graph passes constants in tuples.
        (bias_grad, input_layout, head_dim, value_head_dim, batch, return_lse) + _known(block_mask),
        backend,
        argument_names,
        shards,
        attention_mask,
        bias,
        keep_bits,
        seed,
        sinks,
        prefix,
        segment_ids,
        kv_segment_ids,
        alibi_slopes,
        block_mask,
    )


def attend(
    tensors, rules, others, backend, argument_names=(), shards=None, mask=None, bias=None, keep_bits=None, seed=None,
    sinks=None, prefix=None, segment_ids=None, kv_segment_ids=None, alibi_slopes=None, block_mask=None,
):  # fmt: skip
    """Run `flash_attention` with `AttentionRules.constants`, which are validated, and with options in a tuple."""

    def number_of_keys(of_tensors, others):  # an inner function as in `flash_attention`
        return _seq_k(of_tensors, others)

    query, key, value = tensors
    of_tensors = spec(query), spec(key), spec(value)
    if isinstance(prefix, (tuple, list)):
        prefix = int_tensor("prefix", prefix, 0, number_of_keys(of_tensors, others))
    if isinstance(block_mask, BlockMask):
        block_mask = Tensor(block_mask.tiles)
    if segment_ids is not None and kv_segment_ids is None:
        kv_segment_ids = segment_ids
    # No loop adds to a tuple here, because a graph would compile each step of it and take a third longer.
    first = spec(mask), spec(bias), spec(keep_bits), spec(seed), spec(sinks)
    second = spec(prefix), spec(segment_ids), spec(kv_segment_ids), spec(alibi_slopes), spec(block_mask)
    _bias_grad, _layout, _head_dim, _value_head_dim, _batch, return_lse, _tile, _block_mask_key = others
    specs, compiled_lse = first + second, return_lse and compiling()
    # No starred tuple: the graph of a recomputed cell would not compute the attention again.
    run = prepare("dense", of_tensors, specs, argument_names, rules, others, backend, shards, compiled_lse)
    inputs = mask, bias, keep_bits, seed, sinks, prefix, segment_ids, kv_segment_ids, alibi_slopes, block_mask
    output, logsumexp = run(query, key, value, inputs)
    if return_lse:
        return output, logsumexp
    return output


def _known(block_mask):
    """Return tile and key of a BlockMask; 0 and "" for other masks."""
    if isinstance(block_mask, BlockMask):
        return block_mask.tile, block_mask.key
    return 0, ""


def scaled_dot_product_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    scale: float | None = None,
    enable_gqa: bool = False,
    *,
    seed: Tensor | None = None,
    block_mask: BlockMask | Tensor | None = None,
) -> Tensor:
    """Compute attention with the meaning of `torch.nn.functional.scaled_dot_product_attention`.

    Args:
        query (Tensor): (..., L, E), any leading dimensions, the last of which is the heads.
        key (Tensor): (..., S, E), leading dimensions that broadcast with the ones of query.
        value (Tensor): (..., S, Ev), likewise.
        attn_mask (Tensor): broadcasts to (..., L, S). Boolean: True = takes part. Floating (dtype of query, or
            float32): added to the scores. Default: None.
        dropout_p (float): applied whenever it is not 0, as in torch. 1 gives zeros. Default: 0.0.
        is_causal (bool): query i sees keys 0..i; an error together with attn_mask. Default: False.
        scale (float): factor on the scores. Default: None, 1 / sqrt(E).
        enable_gqa (bool): allow fewer heads in key and value, each dividing the heads of query. Default: False, heads
            that broadcast.

    Keyword Args:
        seed (Tensor): int64 (2,) that decides what dropout drops, not known to torch. Default: None, a fresh one for
            each call in PYNATIVE (see `mindspore.set_seed`); a compiled graph needs it given.
        block_mask (BlockMask or Tensor): see `flash_attention`. Default: None.

    Returns:
        Tensor (..., L, Ev). A query that takes part in nothing gives 0, as in torch, never NaN.

    Raises:
        TypeError, ValueError: an input is not allowed.
    """
    lead, of_query, of_key, of_value = _torch_steps(spec(query), spec(key), spec(value), enable_gqa)
    shape = lead + (query.shape[-2], value.shape[-1])
    mask, bias = None, None
    if attn_mask is not None:
        new_axes, broadcast, reshape = _torch_mask(spec(attn_mask), lead, spec(query), spec(key), is_causal)
        if new_axes or broadcast is not None or reshape is not None:
            attn_mask = _reshapable(attn_mask)
        for _ in range(new_axes):
            attn_mask = ops.expand_dims(attn_mask, 0)
        if broadcast is not None:
            attn_mask = ops.broadcast_to(attn_mask, broadcast)
        if reshape is not None:
            attn_mask = ops.reshape(attn_mask, reshape)
        if attn_mask.dtype == mstype.bool_:
            mask = ops.logical_not(attn_mask)
        else:
            bias = attn_mask
    nothing = _drops_all(dropout_p)
    output = flash_attention(
        _broadcast(query, of_query),
        _broadcast(key, of_key),
        _broadcast(value, of_value),
        mask,
        bias,
        dropout_rate=0.0 if nothing else dropout_p,
        seed=seed,
        scale=scale,
        causal=is_causal,
        block_mask=block_mask,
        argument_names=_TORCH_NAMES,
    )
    if nothing:
        output = ops.zeros_like(output)
    return output if len(shape) == 4 else ops.cast(ops.reshape(_reshapable(output), shape), query.dtype)


def _broadcast(tensor, steps):
    """Bring a tensor to rank 4, by a `TensorSteps`. Heads and items that repeat are views where MindSpore has views."""
    apart, broadcast, merged = steps
    if apart is None and broadcast is None and merged is None:
        return tensor
    wide = _reshapable(tensor)
    if apart is not None:
        wide = ops.reshape(wide, apart)
    if broadcast is not None:
        wide = ops.broadcast_to(wide, broadcast)
    if merged is not None:
        wide = ops.reshape(wide, merged)
    return ops.cast(wide, tensor.dtype)


def _reshapable(tensor):
    """Return the tensor in a dtype that compiled graphs can reshape and broadcast. This holds forward and backward."""
    return ops.cast(tensor, mstype.float32) if _needs_float32(spec(tensor)) else tensor


@compile_time
def _seq_k(specs, others):
    """Return the number of keys of a call's batch item, None if unknown."""
    tensors = map(tensor_spec, ("query", "key", "value"), specs)
    _bias_grad, layout, head_dim, value_head_dim, batch, *_ = others
    seq_k = read_tensors(*tensors, layout, head_dim, value_head_dim, batch).seq_k
    return None if seq_k == UNKNOWN else seq_k


@compile_time
def _needs_float32(described):
    return lacks_operations(tensor_spec("tensor", described))


@compile_time
def _torch_steps(query, key, value, enable_gqa):
    check_bool("enable_gqa", enable_gqa)
    lead, *steps = tensor_steps(*map(tensor_spec, ("query", "key", "value"), (query, key, value)), enable_gqa)
    return lead, *map(tuple, steps)


@compile_time
def _torch_mask(mask, lead, query, key, is_causal):
    specs = tensor_spec("attn_mask", mask), lead, tensor_spec("query", query), tensor_spec("key", key)
    return tuple(mask_steps(*specs, is_causal))


@compile_time
def _drops_all(dropout_p):
    return type(dropout_p) in (int, float) and dropout_p == 1
