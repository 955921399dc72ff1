"""`PagedAttention` and `PagedAttentionMask`: attention of tokens to keys and values in a cache of blocks."""

from __future__ import annotations

from typing import Any, NamedTuple

import mindspore as ms
from mindspore import dtype as mstype
from mindspore import nn, ops

from flash_attention.bridge.constants import numbered
from flash_attention.bridge.parameters import EntryCell
from flash_attention.bridge.precision import fix_dtypes
from flash_attention.bridge.tensors import as_int32, compile_time, remembered, spec, tensor_spec, widened
from flash_attention.call.checks import INTEGERS, check_dtype, check_int, check_name, check_range, check_real
from flash_attention.call.inputs import DTYPES, TensorSpec
from flash_attention.call.layout import UNKNOWN
from flash_attention.call.paged import product
from flash_attention.call_cells import NumberCheck
from flash_attention.compat.ascend910 import Operator
from flash_attention.compat.mindspore_ops.reshaped import reads_hidden, reshaped
from flash_attention.functional import flash_attention
from flash_attention.paged import paged_attention

_MASK_MODES = ("MASK_DEFAULT", "TRAPEZOIDAL")


@ms.jit_class
class PagedAttention(Operator):
    """Stand for `mindspore.ops.auto_generate.PagedAttention`, by `flash_attention.paged_attention`.

    Without a mask every query sees the whole context. N and D of keys are the sizes of the cache; kv_head_num is not
    looked at. A query that sees nothing gives 0.

    Args:
        head_num (int): heads of query.
        scale_value (float): factor on the scores.
        kv_head_num (int): without effect.
        kv_cache_quant_mode (str): "DEFAULT".
        mask_mode (str): "MASK_DEFAULT", or "TRAPEZOIDAL": causal, aligned bottom right.
        mla_v_dim (int): if not 0, there is no value_cache; the values are so many columns of key_cache.

    Inputs:
        query (Tensor): (tokens, H) or (1, tokens, H), one token for each sequence, or with q_seq_lens several;
            (batch, tokens, H).
        key_cache, value_cache (Parameter): (blocks, block_size, N, D), dtype of query.
        block_tables (Tensor): ints (batch, most blocks of a sequence); entries past the context are never read.
        context_lens (Tensor): ints (batch,), keys of each sequence, new tokens included.
        attn_mask (Tensor): (tokens, keys) or (batch, tokens, keys), keys for the longest context at least. It is added
            to the scaled scores; a number above 0 hides its key. (1, 1) has no effect if each sequence has one token.
        q_seq_lens (Tensor): ints (batch,): so many of the tokens belong to each sequence.

    Outputs:
        Tensor: like query, as wide as the values.
    """

    def __init__(
        self, head_num, scale_value, kv_head_num, kv_cache_quant_mode="DEFAULT", mask_mode="MASK_DEFAULT", mla_v_dim=0
    ):
        super().__init__()
        self.settings = head_num, scale_value, kv_cache_quant_mode, mask_mode, mla_v_dim

    def __call__(
        self,
        query,
        key_cache,
        value_cache=None,
        block_tables=None,
        context_lens=None,
        antiquant_scale=None,
        antiquant_offset=None,
        attn_mask=None,
        q_seq_lens=None,
        alibi_mask=None,
    ):
        refused = spec(antiquant_scale), spec(antiquant_offset), spec(alibi_mask)
        tensors = spec(query), spec(key_cache), spec(value_cache), spec(block_tables), spec(context_lens)
        run = _prepared(self.settings, (*tensors, spec(attn_mask), spec(q_seq_lens)), refused, False)
        return run(query, key_cache, value_cache, block_tables, context_lens, attn_mask, q_seq_lens)


@ms.jit_class
class PagedAttentionMask(Operator):
    """`mindspore.ops.auto_generate.PagedAttentionMask`: `PagedAttention` with a bias for each head.

    Inputs:
        alibi_mask (Tensor): (batch, N, tokens, keys), added to the scaled scores; keys for the longest context at
            least. MindFormers 1.0 gives it as the sixth input, antiquant_scale.
    """

    def __init__(self, head_num, scale_value, kv_head_num, kv_cache_quant_mode="DEFAULT"):
        super().__init__()
        self.settings = head_num, scale_value, kv_cache_quant_mode, "MASK_DEFAULT", 0

    def __call__(
        self,
        query,
        key_cache,
        value_cache=None,
        block_tables=None,
        context_lens=None,
        antiquant_scale=None,
        antiquant_offset=None,
        alibi_mask=None,
    ):
        if alibi_mask is None and antiquant_scale is not None and len(antiquant_scale.shape) == 4:
            alibi_mask, antiquant_scale = antiquant_scale, None
        refused = spec(antiquant_scale), spec(antiquant_offset), None
        tensors = spec(query), spec(key_cache), spec(value_cache), spec(block_tables), spec(context_lens)
        run = _prepared(self.settings, (*tensors, spec(alibi_mask), None), refused, alibi_mask is not None)
        return run(query, key_cache, value_cache, block_tables, context_lens, alibi_mask, None)


class _Call(NamedTuple):
    """Describe a call. Sequences have `each` tokens; None: as q_seq_lens says."""

    heads: int
    head_dim: int
    value_dim: int
    latent: bool  # values are columns of key_cache
    scale: float
    causal: bool
    each: int | None
    tokens: int
    mask: TensorSpec | None
    per_head: bool


@compile_time
def _prepared(settings, specs, refused, per_head):
    for name, given in zip(("antiquant_scale", "antiquant_offset", "alibi_mask"), refused):
        if given is not None:
            raise ValueError(f"{name}: got a Tensor, allowed is None; quantised caches and this mask are out of scope")
    names = "query", "key_cache", "value_cache", "block_tables", "context_lens", "attn_mask", "q_seq_lens"
    if per_head:
        names = (*names[:5], "alibi_mask", names[6])
    for name, given in zip(names, specs):
        if given is None and name not in ("value_cache", *names[5:]):
            raise ValueError(f"{name}: got None, allowed is a Tensor")
    specs = tuple(one and tensor_spec(name, one) for name, one in zip(names, specs))
    return _cell(settings, specs, per_head, reads_hidden())


@remembered
def _cell(settings, specs, per_head, clears) -> nn.Cell:
    return fix_dtypes(PagedCell(read_paged(settings, specs, per_head), clears))


def read_paged(settings: tuple, specs: tuple, per_head: bool) -> _Call:
    """Return a call, whose mask is a bias if it is `per_head`."""
    query, key_cache, value_cache, tables, lengths, mask, counts = specs
    head_num, scale, quantised, mask_mode, latent = settings
    check_int("head_num", head_num, 1)
    check_int("mla_v_dim", latent, 0)
    check_name("kv_cache_quant_mode", quantised, ("DEFAULT",))
    check_name("mask_mode", mask_mode, _MASK_MODES)
    if (value_cache is None) != (latent > 0):
        raise ValueError(f"value_cache: got {value_cache and 'one'} with mla_v_dim {latent}, allowed is one of the two")
    for name, cache in (("key_cache", key_cache), ("value_cache", value_cache)):
        if cache is not None and len(cache.shape) != 4:
            raise ValueError(f"{name}: got shape {cache.shape}, allowed is (blocks, block_size, N, D); NZ is refused")
    head_dim = key_cache.shape[3]
    value_dim = latent or value_cache.shape[3]
    check_int("mla_v_dim", latent, 0, head_dim)
    if len(query.shape) not in (2, 3) or query.shape[-1] != head_num * head_dim:
        raise ValueError(
            f"query: got shape {query.shape}, allowed are (tokens, H) and (batch, tokens, H) with H = "
            f"head_num * D = {head_num * head_dim}"
        )
    if len(tables.shape) != 2:
        raise ValueError(f"block_tables: got shape {tables.shape}, allowed is (batch, blocks)")
    batch, tokens = tables.shape[0], product(query.shape[:-1])
    each = _tokens_of_each(query, batch) if counts is None else None
    for name, one in (("context_lens", lengths), ("q_seq_lens", counts)):
        if one is not None:
            check_dtype(name, one.dtype, INTEGERS)
            if len(one.shape) != 1 or UNKNOWN not in (one.shape[0], batch) and one.shape[0] != batch:
                raise ValueError(f"{name}: got shape {one.shape}, allowed is (batch,) = ({batch},)")
    if mask is not None and not per_head and mask.shape == (1, 1) and each == 1:
        mask = None
    causal = mask_mode == "TRAPEZOIDAL"
    if mask is not None:
        _check_mask(mask, per_head, (head_num, batch, tokens, each), causal, specs)
    scale = check_real("scale_value", scale)
    return _Call(head_num, head_dim, value_dim, latent > 0, scale, causal, each, tokens, mask, per_head)


def _tokens_of_each(query: TensorSpec, batch: int) -> int:
    """Return the tokens of each sequence without q_seq_lens; UNKNOWN in a graph for dynamic shapes."""
    sizes = query.shape[:-1]
    if UNKNOWN in (*sizes, batch):
        return sizes[1] if len(sizes) == 2 and sizes[1] == 1 else UNKNOWN
    if len(sizes) == 2 and sizes[0] == batch:
        return sizes[1]
    if sizes in ((batch,), (1, batch)):
        return 1
    raise ValueError(
        f"query: got shape {query.shape} for {batch} rows in block_tables without q_seq_lens, allowed are a token or "
        f"(batch, tokens, H) for each sequence"
    )


def _check_mask(mask: TensorSpec, per_head: bool, sizes: tuple, causal: bool, specs: tuple) -> None:
    heads, batch, tokens, each = sizes
    name = "alibi_mask" if per_head else "attn_mask"
    if causal:
        raise ValueError(f"{name}: got one with mask_mode 'TRAPEZOIDAL', allowed is None; the mode is a mask by itself")
    check_dtype(name, mask.dtype, DTYPES)
    if any(UNKNOWN in one.shape for one in specs if one is not None):
        raise ValueError(f"{name}: got one in a graph for dynamic shapes, allowed is None there, or known shapes")
    allowed = {(batch, heads, each)} if per_head else {(tokens,)} | ({(batch, each)} if each else set())
    if mask.shape[:-1] not in allowed:
        shapes = " or ".join(str((*one, "keys")) for one in sorted(allowed, key=len))
        raise ValueError(f"{name}: got shape {mask.shape}, allowed is {shapes}".replace("'", ""))


class PagedCell(EntryCell):
    """Compute a call by `paged_attention`, or with a mask by `flash_attention` to the gathered cache.

    `clears`: 0 takes the place of keys and values behind a context.
    """

    def __init__(self, call: _Call, clears: bool):
        super().__init__()
        self.latent, self.value_dim = call.latent, call.value_dim
        self.apart = (call.heads, call.head_dim)
        self.width = call.heads * call.value_dim
        self.several = call.each != 1 and call.each is not None
        self.rules = {"scale": call.scale, "causal": call.causal}
        self.split = None if call.each is not None else _Split(call.tokens, call.causal, call.mask is None)
        self.masked = None if call.mask is None else _Masked(call, clears)

    def construct(self, query, key_cache, value_cache, block_tables, context_lens, mask, counts):
        if self.latent:
            value_cache = ops.cast(widened(key_cache)[..., : self.value_dim], key_cache.dtype)
        if self.masked is not None:
            owner = None
            if self.split is not None:
                owner = self.split(counts, block_tables, context_lens)
            rows = reshaped(query, (-1,) + self.apart)
            output = self.masked(rows, key_cache, value_cache, block_tables, context_lens, mask, owner)
        elif self.split is not None:
            tables, lengths = self.split(counts, block_tables, context_lens)
            rows = reshaped(query, (-1,) + self.apart)
            output = paged_attention(rows, key_cache, value_cache, tables, lengths, **self.rules)
        else:
            shape = (block_tables.shape[0], -1) if self.several else (-1,)
            rows = reshaped(query, shape + self.apart)
            output = paged_attention(rows, key_cache, value_cache, block_tables, context_lens, **self.rules)
        return reshaped(output, query.shape[:-1] + (self.width,))


class _Split(nn.Cell):
    """Say to which sequence each token belongs: ints (tokens,), or the tables and lengths of tokens.

    Numbers that do not add up to the tokens give a sequence, or a length, that is not there.
    """

    def __init__(self, tokens: int, causal: bool, expands: bool):
        super().__init__()
        self.tokens, self.causal, self.expands = tokens, causal, expands
        looks = ms.get_context("device_target") == "CPU" and tokens != UNKNOWN
        self.check = NumberCheck(self._check if looks else None)

    def _check(self, counts, lengths):
        check_range("q_seq_lens", counts, lengths)
        if counts.sum() != self.tokens:
            raise ValueError(f"q_seq_lens: got {counts.tolist()}, allowed is a sum of {self.tokens}, the tokens")

    def construct(self, counts, block_tables, context_lens):
        self.check(counts, context_lens)
        ends = ops.cumsum(ops.cast(as_int32(counts), mstype.float32), 0)
        token = ops.cast(numbered(self.tokens), mstype.float32)
        passed = ops.cast(ops.reshape(token, (-1, 1)) >= ops.reshape(ends, (1, -1)), mstype.float32)
        owner = ops.cast(passed.sum(1), mstype.int32)
        fits = ops.equal(ends[-1:], self.tokens)
        if not self.expands:
            return ops.select(ops.logical_and(fits, owner >= 0), owner, owner * 0 - 1)
        owner = ops.minimum(owner, block_tables.shape[0] - 1)
        lengths = ops.gather(as_int32(context_lens), owner, 0)
        if self.causal:
            behind = ops.cast(ops.gather(ends, owner, 0) - 1 - token, mstype.int32)
            lengths = ops.maximum(lengths - behind, 0)
        lengths = ops.select(ops.logical_and(fits, lengths >= 0), lengths, lengths * 0 - 1)
        return ops.gather(as_int32(block_tables), owner, 0), lengths


class _Masked(nn.Cell):
    """Compute a call with a mask or bias, on gathered keys and values.

    Tokens of q_seq_lens see the keys of all sequences behind each other, of which all but their own are hidden.
    """

    def __init__(self, call: _Call, clears: bool):
        super().__init__()
        self.clears = clears
        self.each, self.tokens, self.per_head = call.each, call.tokens, call.per_head
        self.keys = call.mask.shape[-1] if call.mask is not None else 0
        looks = ms.get_context("device_target") == "CPU"
        self.check = NumberCheck(self._check if looks else None)
        self.rules: dict[str, Any] = {"scale": call.scale, "input_layout": "BSND"}

    def _check(self, lengths):
        check_range("context_lens", lengths, self.keys)

    def construct(self, query, key_cache, value_cache, block_tables, context_lens, mask, owner):
        self.check(context_lens)
        tables, lengths = as_int32(block_tables), ops.reshape(as_int32(context_lens), (-1, 1))
        batch, keys = tables.shape[0], tables.shape[1] * key_cache.shape[1]
        known = ops.reshape(numbered(keys), (1, -1)) < lengths
        key, value = self.gathered(key_cache, tables, known), self.gathered(value_cache, tables, known)
        shown = reshaped_mask(mask, self.per_head, keys)
        wrong = lengths > min(self.keys, keys)
        if owner is None:
            rows = reshaped(query, (batch, self.each) + query.shape[1:])
            bias = ops.reshape(shown, (batch, -1, self.each, keys))
            hidden = ops.reshape(ops.logical_not(known), (batch, 1, 1, keys))
            wrong = ops.reshape(wrong, (batch, 1, 1, 1))
        else:
            rows = reshaped(query, (1,) + query.shape)
            bias = ops.reshape(ops.tile(ops.expand_dims(shown, 1), (1, batch, 1)), (1, 1, self.tokens, batch * keys))
            mine = ops.equal(ops.reshape(owner, (-1, 1)), ops.reshape(numbered(batch), (1, -1)))
            mine = ops.logical_and(ops.expand_dims(mine, 2), ops.expand_dims(known, 0))
            hidden = ops.reshape(ops.logical_not(mine), (1, 1, self.tokens, batch * keys))
            key, value = reshaped(key, (1, -1) + key.shape[2:]), reshaped(value, (1, -1) + value.shape[2:])
            wrong = ops.logical_or(owner < 0, ops.cast(ops.cast(wrong, mstype.float32).sum(), mstype.bool_))
            wrong = ops.reshape(wrong, (1, -1, 1, 1))
        output = flash_attention(rows, key, value, hidden, bias, bias_grad=False, **self.rules)
        wide = ops.masked_fill(ops.cast(output, mstype.float32), wrong, float("nan"))
        return ops.cast(wide, output.dtype)

    def gathered(self, cache, tables, known):
        """Return (batch, keys, N, width)."""
        inside = ops.minimum(ops.maximum(tables, 0), cache.shape[0] - 1)
        rows = ops.reshape(ops.gather(widened(cache), inside, 0), (tables.shape[0], -1) + cache.shape[2:])
        if self.clears:
            rows = ops.masked_fill(rows, ops.reshape(ops.logical_not(known), known.shape + (1, 1)), 0.0)
        return ops.cast(rows, cache.dtype)


def reshaped_mask(mask, per_head, keys):
    """Return the bias of the scaled scores, -inf where a mask is above 0."""
    added = ops.cast(mask, mstype.float32)
    if not per_head:
        added = ops.reshape(ops.masked_fill(added, added > 0, float("-inf")), (-1, mask.shape[-1]))
    if mask.shape[-1] >= keys:
        return added[..., :keys]
    return ops.concat((added, ops.zeros(added.shape[:-1] + (keys - mask.shape[-1],), mstype.float32)), -1)
