"""Describe an attention call once, frozen and validated. Every backend takes this description.

Every complaint about inputs is raised here or in the modules behind it (`inputs`, `checks`), before anything runs.
Nothing in them needs MindSpore.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from flash_attention.call.checks import check_bool, check_dtype, check_int, check_name
from flash_attention.call.inputs import (
    DTYPES,
    MASK_DTYPES,
    MAX_HEAD_DIM,
    MAX_VALUE_DIM,
    TensorSpec,
    bias_dtypes,
    blocks_of_8,
    broadcasts,
    read_tensors,
)
from flash_attention.call.layout import CALL_LAYOUTS, UNKNOWN
from flash_attention.call.optional import NAMES, OPTIONAL, Given
from flash_attention.call.rules import PLAIN_RULES, AttentionRules
from flash_attention.call.storage import Paged, Varlen
from flash_attention.call.tiling import BLOCK_MASK_TILES, tiles_of
from flash_attention.call.visibility import Band


@dataclass(frozen=True)
class Call:
    """Describe one attention call: sizes, dtypes, rules, optional inputs and storage.

    `Call.from_inputs` derives a dense call from its tensors, `varlen_call` a call of packed sequences, and `paged_call`
    a call against a paged cache. The constructor is for tests and tools, and for `explain`, which says which backends
    can run a call. batch, seq_q and seq_k are UNKNOWN (-1) if a graph is compiled for dynamic shapes, see `dynamic`.

    Packed sequences are the rows of one batch item in layout "BSND" (tensors (T, N, D)) or "BSH" ((T, N * D)). The
    rules hold in every sequence by itself, by position in the sequence. Dropout's batch element is the index of the
    sequence, and a prefix belongs to a sequence. A paged call has as many keys as its table can name, in layout "BSND".
    Its rules are aligned with the end of each sequence, which may be shorter.

    Attributes:
        batch, heads, seq_q, seq_k, head_dim: sizes of query and key.
        kv_heads: heads of key and value; 0 = as many as heads.
        dtype: "float16", "bfloat16" or "float32".
        layout: layout of query, key, value and output. A backend gets a call in a layout that it takes.
        rules: what the call computes, whatever its sizes.
        value_dim: head_dim of value and output; 0 = head_dim.
        mask_shape: shape of an explicit mask, non-zero = hidden: (batch or 1, heads or 1, seq_q or 1, seq_k). A compact
            causal mask is not here, because it became rules.causal.
        mask_dtype: dtype of that mask. Backends still receive the mask as bool.
        bias_shape: shape of a bias, (batch or 1, heads or 1, seq_q or 1, seq_k), added to the scaled scores instead of
            rules.alibi.
        bias_dtype: the dtype of query, or float32.
        bias_grad: whether the gradient of a given bias is wanted; None comes back otherwise.
        keep_bits: the caller gives the keep decisions of dropout instead of a seed.
        sinks: one more logit per query head in every denominator, float32 (heads,).
        prefix: int32 (batch,): the keys before it are visible to every query besides the causal ones. Only with causal,
            and without windows.
        segments: int32 (batch, seq_q) and (batch, seq_k): a query sees keys of its own id only; negative ids see
            nothing and are seen by none.
        training: rules.dropout_rate applies only here.
        return_lse: the logsumexp is wanted too.
        device: MindSpore's device target.
        batch_offset, head_offset: where a shard's first batch element and first query head sit in the whole call.
            Dropout and computed ALiBi are as in the whole call.
        all_heads: query heads of the whole call; 0 = as many as heads.
        slopes_shape: shape of the caller's slopes for computed ALiBi, (heads,) or (batch, heads), or with packed
            sequences (sequences, heads). They replace the standard slopes of rules.alibi and get no gradient.
        block_mask_shape: (batch or 1, heads or 1, query tiles, key tiles) of a block mask, not 0 = visible.
        block_mask_tile: tokens of its tiles.
        block_mask_key: `BlockMask.key` of a mask that is known when the call is prepared; "" if it is data.
        storage: None for a dense call; `Varlen` for packed sequences, `Paged` for keys in a paged cache.
    """

    batch: int
    heads: int
    seq_q: int
    seq_k: int
    head_dim: int
    kv_heads: int = 0
    dtype: str = "float16"
    layout: str = "BNSD"
    rules: AttentionRules = PLAIN_RULES
    value_dim: int = 0
    mask_shape: tuple | None = None
    mask_dtype: str | None = None
    bias_shape: tuple | None = None
    bias_dtype: str | None = None
    bias_grad: bool = True
    keep_bits: bool = False
    sinks: bool = False
    prefix: bool = False
    segments: bool = False
    training: bool = False
    return_lse: bool = False
    device: str = "CPU"
    batch_offset: int = 0
    head_offset: int = 0
    all_heads: int = 0
    slopes_shape: tuple | None = None
    block_mask_shape: tuple | None = None
    block_mask_tile: int = 0
    block_mask_key: str = ""
    storage: Varlen | Paged | None = None

    def __post_init__(self):
        _check_sizes(self)
        _check_score_tensors(self)
        for name in ("bias_grad", "sinks", "prefix", "segments", "keep_bits", "training", "return_lse"):
            object.__setattr__(self, name, check_bool(name, getattr(self, name)))
        if self.keep_bits and self.rules.dropout_rate == 0.0:
            raise ValueError(
                "keep_bits: given with dropout_rate 0, allowed only with a rate > 0, which sets the scaling"
            )
        _check_prefix(self)
        _check_block_mask(self)
        _check_storage(self)

    @classmethod
    def from_inputs(
        cls,
        query: TensorSpec,
        key: TensorSpec,
        value: TensorSpec,
        mask: TensorSpec | None = None,
        bias: TensorSpec | None = None,
        keep_bits: TensorSpec | None = None,
        *,
        rules: AttentionRules = PLAIN_RULES,
        input_layout: str = "BNSD",
        head_dim: int | None = None,
        value_head_dim: int | None = None,
        batch: int | None = None,
        items: tuple[str, set[int]] | None = None,
        block_mask_tile: int = 0,
        **others: Any,
    ) -> Call:
        """Describe a call from the specs of its inputs.

        Args:
            query: in `input_layout`; float16, bfloat16 or float32.
            key: likewise, dtype of query.
            value: likewise, dtype of query.
            mask: not 0 = hidden; (Sq, Sk), (1, Sq, Sk), (B, Sq, Sk), a rank-4 shape that broadcasts to (B, H, Sq, Sk)
                with a full last axis, or the compact causal (T, T) or (1, T, T) with T = rules.tile.
            bias: added to the scaled scores; rank 4, broadcasts to (B, H, Sq, Sk) with a full last axis.
            keep_bits: uint8 (B, H, Sq, ceil(Sk / 8)), bit k % 8 of byte k // 8 set = key k is kept.
            rules: rules of the call; a compact causal mask makes them causal.
            head_dim: needed for BSH, SBH and TH; when given, it must agree with the other layouts too.
            value_head_dim: head_dim of value; None = head_dim for BSH, SBH and TH, any in the other layouts.
            batch: number of batch items, for TH only.
            items: the unit that has a prefix of its own, and the allowed numbers of such units. None: the batch items.
            block_mask_tile: tokens of the tiles of a block mask; 0: as its shape says.
            **others: specs of further optional inputs, see `OPTIONAL`, or fields of Call, by name.

        Raises:
            TypeError, ValueError: naming the argument, what came and what is allowed.
        """
        sizes = read_tensors(query, key, value, input_layout, head_dim, value_head_dim, batch)
        named = {"mask": mask, "bias": bias, "keep_bits": keep_bits}
        named.update((name, others.pop(name)) for name in NAMES if name in others)
        given = {name: spec for name, spec in named.items() if spec is not None}
        units = items or ("batch", {sizes.batch})
        whole = Given(sizes, query.dtype, rules.tile, given, *units, block_mask_tile)
        for one in OPTIONAL:
            if one.name in given:
                name = "attention_mask" if one.name == "mask" else one.name
                others.update(one.read(name, given[one.name], whole))
        if "mask" in given and "mask_shape" not in others:
            rules = replace(rules, causal=True)
        return cls(**sizes._asdict(), rules=rules, dtype=query.dtype, layout=input_layout, **others)

    @property
    def inputs(self) -> tuple[str, ...]:
        """Return the names of its optional inputs, in the order in which backends get them."""
        return tuple(one.name for one in OPTIONAL if one.has(self))

    def place(self, name: str) -> int | None:
        """Return the place of an input among `inputs`, None if the call lacks it."""
        return self.inputs.index(name) if name in self.inputs else None

    @property
    def dynamic(self) -> bool:
        """Return True if a size is unknown, because a graph is compiled for dynamic shapes."""
        sequences = self.storage.count if isinstance(self.storage, Varlen) else 0
        return UNKNOWN in (self.batch, self.seq_q, self.seq_k, sequences)

    @property
    def empty(self) -> bool:
        """Return True if there is no score to compute."""
        blocks = self.storage.blocks if isinstance(self.storage, Paged) else UNKNOWN
        unknown = UNKNOWN in (self.batch, self.seq_q, self.seq_k)
        return blocks == 0 or not unknown and 0 in (self.batch, self.heads, self.seq_q, self.seq_k)

    @property
    def kind(self) -> str:
        """Return the kind: "dense", "varlen" or "paged"."""
        if self.storage is None:
            return "dense"
        return "varlen" if isinstance(self.storage, Varlen) else "paged"

    @property
    def varlen(self) -> Varlen:
        """Return how the sequences of this call are packed. Only a call of kind "varlen" has it."""
        assert isinstance(self.storage, Varlen)
        return self.storage

    @property
    def paged(self) -> Paged:
        """Return the caches of this call. Only a call of kind "paged" has them."""
        assert isinstance(self.storage, Paged)
        return self.storage

    @property
    def group(self) -> int:
        """Query heads per key/value head: query head h reads key/value head h // group."""
        return self.heads // self.kv_heads

    @property
    def bias(self) -> str:
        """Return the kind of bias on the scaled scores: "none", "per_key" or "per_score" (a tensor), or "alibi"
        (computed).
        """
        if self.bias_shape is not None:
            return "per_key" if self.bias_shape[2] == 1 else "per_score"
        return "alibi" if self.rules.alibi or self.slopes_shape is not None else "none"

    @property
    def scale(self) -> float:
        """Return the factor on the scores."""
        return self.rules.scale_of(self.head_dim)

    @property
    def offset(self) -> int:
        """Return the key position of query row 0, see `AttentionRules.offset`."""
        if self.dynamic and self.rules.causal_alignment == "bottom_right":
            raise ValueError("offset: unknown before run time, because seq_q or seq_k is")
        return self.rules.offset(self.seq_q, self.seq_k)

    @property
    def band(self) -> Band:
        """Return the positional visibility, see `AttentionRules.band`. A dynamic call has none."""
        if self.dynamic:
            raise ValueError("band: unknown before run time, because a size is")
        return self.rules.band(self.seq_q, self.seq_k)

    @property
    def dropout_threshold(self) -> int:
        """Return the threshold below which a 16-bit random value drops its key. It is 0 if dropout is inactive."""
        return self.rules.dropout_threshold if self.training else 0

    @property
    def dropout_scale(self) -> float:
        """Return the factor on kept probabilities: 1 / (1 - dropped_share)."""
        return 1.0 / (1.0 - self.dropped_share)

    @property
    def dropped_share(self) -> float:
        """Return the rate of dropout: the rules' rate if decisions are given, rounded to 16 bits if they are drawn."""
        return self.rules.dropout_rate if self.training and self.keep_bits else self.dropout_threshold / 65536

    def shape_query(self) -> tuple:
        """Return the BNSD shape of query."""
        return self.batch, self.heads, self.seq_q, self.head_dim

    def shape_key(self) -> tuple:
        """Return the BNSD shape of key."""
        return self.batch, self.kv_heads, self.seq_k, self.head_dim

    def shape_value(self) -> tuple:
        """Return the BNSD shape of value."""
        return self.batch, self.kv_heads, self.seq_k, self.value_dim

    def shape_output(self) -> tuple:
        """Return the BNSD shape of the output."""
        return self.batch, self.heads, self.seq_q, self.value_dim

    def laid_out(self, shape: tuple) -> tuple:
        """Return a BNSD shape in this call's layout. Packed tensors and single paged queries have an axis less."""
        batch, heads, seq, dim = shape
        if isinstance(self.storage, Paged) and self.storage.one_query:
            return batch, heads, dim
        own = CALL_LAYOUTS[self.layout].shape(batch, heads, seq, dim)
        return own[1:] if isinstance(self.storage, Varlen) else own

    def shape_lse(self) -> tuple:
        """Return the shape of the logsumexp, which is float32."""
        return self.batch, self.heads, self.seq_q

    def shape_keep_bits(self) -> tuple:
        """Return the shape of packed keep decisions, which are uint8."""
        return self.batch, self.heads, self.seq_q, blocks_of_8(self.seq_k)


def alibi_slopes(call: Call) -> list[float]:
    """Return computed ALiBi's slopes for the heads of `call`, if the caller gives none. They are float64.

    If H is a power of two, they are 2 ** (-8 (i + 1) / H). Otherwise they are the slopes of the next lower power of
    two, followed by every other slope of twice that power. Source: Press et al., "Train Short, Test Long" (2022),
    section 3, and the authors' released code.
    """

    def powers(count):
        return [2.0 ** (-8.0 * (i + 1) / count) for i in range(count)]

    total = call.all_heads
    lower = 1 << (total.bit_length() - 1)
    slopes = powers(lower)
    if lower != total:
        slopes += powers(2 * lower)[0::2]
    return slopes[call.head_offset : call.head_offset + call.heads]


def _set(call: Call, name: str, value) -> None:
    object.__setattr__(call, name, value)


def _check_sizes(call: Call) -> None:
    for name in ("batch", "seq_q", "seq_k"):
        if getattr(call, name) != UNKNOWN:
            check_int(name, getattr(call, name), 0)
    check_int("heads", call.heads, 0)
    check_int("head_dim", call.head_dim, 1, MAX_HEAD_DIM)
    check_int("value_dim", call.value_dim, 0, MAX_VALUE_DIM)
    if call.value_dim == 0:
        check_int("value_dim (here head_dim)", call.head_dim, 1, MAX_VALUE_DIM)
        _set(call, "value_dim", call.head_dim)
    check_int("kv_heads", call.kv_heads, 0)
    if call.kv_heads == 0:
        _set(call, "kv_heads", call.heads)
    if call.heads and call.heads % call.kv_heads:
        raise ValueError(
            f"key: got {call.kv_heads} heads, which do not divide the {call.heads} heads of query; "
            "allowed is any divisor (grouped-query attention)"
        )
    check_dtype("dtype", call.dtype, DTYPES)
    check_name("input_layout", call.layout, CALL_LAYOUTS)
    for name in ("batch_offset", "head_offset", "all_heads"):
        check_int(name, getattr(call, name), 0)
    if call.all_heads == 0:
        _set(call, "all_heads", call.heads)
    if call.head_offset + call.heads > call.all_heads:
        raise ValueError(f"head_offset: {call.head_offset} + {call.heads} heads go past all_heads {call.all_heads}")


def _check_score_tensors(call: Call) -> None:
    """Check the shapes and dtypes of mask and bias, which cover the scores."""
    scores = call.batch, call.heads, call.seq_q, call.seq_k
    for name, shape in (("mask_shape", call.mask_shape), ("bias_shape", call.bias_shape)):
        if shape is not None and not broadcasts(shape, scores):
            raise ValueError(f"{name}: got {shape}, which does not broadcast to {scores}")
    if call.mask_shape is not None:
        check_dtype("mask_dtype", call.mask_dtype, MASK_DTYPES)
    if call.bias_shape is not None:
        check_dtype("bias_dtype", call.bias_dtype, bias_dtypes(call.dtype))
        if call.slopes_shape is not None:
            raise ValueError("alibi_slopes: given together with a bias, allowed is one of them")


def _check_prefix(call: Call) -> None:
    """Check that a prefix stands only beside causal visibility, which it widens. Beside other rules of position it
    has no meaning.
    """
    if not call.prefix:
        return
    rules = call.rules
    if not rules.causal:
        raise ValueError("prefix: given without causal=True, allowed only with it")
    window, blocks = (rules.window_left, rules.window_right), (rules.prev_blocks, rules.next_blocks)
    if max(window) >= 0:
        raise ValueError(
            f"prefix, window_size: got a prefix together with window_size {window}, allowed is one of them"
        )
    if rules.in_blocks:
        raise ValueError(
            f"prefix, prev_block_num, next_block_num: got a prefix together with a window of {blocks} blocks, "
            "allowed is one of them"
        )


def _check_block_mask(call: Call) -> None:
    """Check that a block mask's tiles cover the scores."""
    shape, tile = call.block_mask_shape, call.block_mask_tile
    if shape is None:
        return
    if tile not in BLOCK_MASK_TILES:
        raise ValueError(f"block_mask_tile: got {tile}, allowed are {', '.join(map(str, BLOCK_MASK_TILES))}")
    scores = call.batch, call.heads, tiles_of(call.seq_q, tile), tiles_of(call.seq_k, tile)
    if call.storage is not None or call.dynamic or not broadcasts(shape, scores) or shape[2] != scores[2]:
        allowed = f"{scores}, or 1 for batch or heads, in a dense call of known sizes"
        raise ValueError(f"block_mask_shape: got {shape}, allowed is {allowed}")


def _check_storage(call: Call) -> None:
    """Check that a call's sizes and layout fit how its sequences are stored."""
    if call.storage is None:
        return
    if not isinstance(call.storage, (Varlen, Paged)):
        raise TypeError(f"storage: got {type(call.storage).__name__}, allowed are Varlen, Paged and None")
    layouts = ("BSND", "BSH") if isinstance(call.storage, Varlen) else ("BSND",)
    if call.layout not in layouts:
        raise ValueError(f"layout: got {call.layout} with {call.kind} storage, allowed is {' or '.join(layouts)}")
    if call.rules.first_query is not None:
        raise ValueError(f"first_query: given with {call.kind} storage, allowed is a dense call")
    if isinstance(call.storage, Varlen) and call.batch != 1:
        raise ValueError(f"batch: got {call.batch} with varlen storage, allowed is 1, all sequences in its rows")
