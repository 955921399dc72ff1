"""Read a call of `flash_attention_score` in the terms of `flash_attention.flash_attention`.

Sizes come from input_layout and head_num, visible keys from sparse_mode, attn_mask, prefix and the tokens, a bias or
slopes from real_shift.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from flash_attention.backends.fused import (
    ALL_MASK,
    BAND,
    COMPRESSED_MASK,
    DEFAULT_MASK,
    LEFT_UP_CAUSAL,
    PREFIX,
    RIGHT_DOWN_CAUSAL,
    UNLIMITED_TOKENS,
)
from flash_attention.call.checks import INTEGERS, check_dtype, check_int, check_name, check_real
from flash_attention.call.inputs import DTYPES, Sizes, TensorSpec, fits, read_tensors
from flash_attention.call.layout import UNKNOWN
from flash_attention.sharding.shard import ShardRequest

PACKED = ("TND", "TH")
LAYOUTS = ("BSH", "BNSD", "SBH", "BSND")
#: The shape of a floating mask of packed sequences that stands for causal at any length.
TRIANGLE = (128, 128)
_NOT_THERE = {6: "global", 7: "dilated", 8: "block_local"}
COMPRESSED_ROWS = 1024  # rows of a real_shift that follows the ALiBi rule and is given for the last rows only


class Settings(NamedTuple):
    """Attributes of the primitive; plain constants, because a graph passes them on."""

    head_num: int
    keep_prob: float
    scale_value: float
    pre_tokens: int
    next_tokens: int
    inner_precise: int
    input_layout: str
    sparse_mode: int
    inference: bool | None


class FusedCall(NamedTuple):
    """Hold a call in the terms of `flash_attention.flash_attention`."""

    settings: Settings
    sizes: Sizes
    causal: bool = False
    causal_alignment: str = "top_left"
    window_size: tuple = (-1, -1)
    takes_mask: bool = False
    triangle: bool = False  # attn_mask stands for causal, sequences of keys are as long as the queries'
    hidden: Any = None  # NumPy bool array that broadcasts to the scores, hidden besides
    prefix: bool = False
    shift: str = "none"  # "full"; "alibi" or, of packed sequences, "slopes": slopes out of the last rows

    @property
    def offset(self) -> int:
        """Return the key position of query row 0."""
        return self.sizes.seq_k - self.sizes.seq_q if self.causal_alignment == "bottom_right" else 0


def read_call(settings: Settings, specs: tuple, prefix) -> FusedCall:
    """Check a call and translate it."""
    query, key, value, shift, drop, mask = specs
    _check(settings)
    layout, hidden_size = settings.input_layout, query.shape[-1]
    head_dim = None
    if layout in ("BSH", "SBH", "TH"):
        if hidden_size % settings.head_num:
            raise ValueError(
                f"query: got last axis {hidden_size}, allowed is a multiple of head_num {settings.head_num}"
            )
        head_dim = hidden_size // settings.head_num
    if layout in PACKED:
        return _read_packed(settings, specs, prefix, head_dim)
    sizes = read_tensors(query, key, value, layout, head_dim)
    _check_heads(settings, sizes, query)
    _check_drop_mask(drop, settings)
    if drop is not None and sizes.seq_k % 8 and sizes.seq_k != UNKNOWN:
        raise ValueError(f"drop_mask: got one for S2 = {sizes.seq_k}, allowed is a multiple of 8")
    return _read_shift(shift, _read_rules(FusedCall(settings, sizes), mask, prefix))


def _read_packed(settings: Settings, specs: tuple, prefix, head_dim: int | None) -> FusedCall:
    """Return a call on sequences one behind the other: one batch item of unknown length."""
    query, key, value, shift, drop, mask = specs
    layout, mode = settings.input_layout, settings.sparse_mode
    if prefix is not None:
        raise ValueError(f"prefix: got one with input_layout {layout!r}, allowed is None")
    _check_drop_mask(drop, settings)
    if drop is not None and (len(drop.shape) != 1 or drop.dtype != "uint8"):
        raise ValueError(
            f"drop_mask: got {drop.dtype} of shape {drop.shape} with input_layout {layout!r}, allowed is uint8 of "
            "shape (bytes,): N * S1 * S2 / 8 of one sequence behind the other"
        )
    triangle = mode == DEFAULT_MASK and is_triangle(mask)
    if mode in (ALL_MASK, PREFIX) or (mode == DEFAULT_MASK and mask is not None and not triangle):
        raise ValueError(
            f"sparse_mode: got {mode} with input_layout {layout!r}, allowed are 2 to 4, and 0 without attn_mask or "
            f"with a floating one of shape {TRIANGLE}, which stands for causal"
        )
    query_row, key_row, value_row = (one._replace(shape=(1, *one.shape)) for one in (query, key, value))
    sizes = read_tensors(query_row, key_row, value_row, "BSND" if layout == "TND" else "BSH", head_dim)
    _check_heads(settings, sizes, query)
    call = FusedCall(settings, sizes._replace(seq_q=UNKNOWN, seq_k=UNKNOWN))
    call = call._replace(causal=True, triangle=True) if triangle else _read_rules(call, mask, None)
    return _read_packed_shift(shift, call)


def _check_heads(settings: Settings, sizes: Sizes, query: TensorSpec) -> None:
    if sizes.heads != settings.head_num:
        raise ValueError(f"query: got {sizes.heads} heads in shape {query.shape}, allowed is {settings.head_num}")


def _check(settings: Settings) -> None:
    check_int("head_num", settings.head_num, 1)
    check_int("inner_precise", settings.inner_precise, 0)
    keep_prob = check_real("keep_prob", settings.keep_prob)
    if not 0.0 < keep_prob <= 1.0:
        raise ValueError(f"keep_prob: got {keep_prob}, allowed is 0 < keep_prob <= 1")
    check_real("scalar_value, scale_value", settings.scale_value)
    _check_mode(settings.sparse_mode)
    for name in ("pre_tokens", "next_tokens"):
        check_int(name, getattr(settings, name), -UNLIMITED_TOKENS - 1)


def _check_drop_mask(drop: TensorSpec | None, settings: Settings) -> None:
    if drop is not None and settings.keep_prob == 1.0:
        raise ValueError("drop_mask: got one with keep_prob 1.0, allowed is one with keep_prob < 1")


def shard_request(strategy, layout: str) -> ShardRequest | None:
    """Return the split of batch and heads by query's strategy; None for packed sequences."""
    if layout in PACKED:
        if any(size != 1 for size in strategy):
            raise ValueError(f"in_strategy: got {strategy} for query in layout {layout}, allowed are ones")
        return None
    axes = {"BSH": (0, 2), "SBH": (1, 2), "BNSD": (0, 1), "BSND": (0, 2)}
    check_name("input_layout", layout, axes)
    batch, heads = axes[layout]
    others = [size for axis, size in enumerate(strategy) if axis not in (batch, heads)]
    if len(strategy) != len(layout) or any(size != 1 for size in others):
        raise ValueError(
            f"in_strategy: got {strategy} for query in layout {layout}, allowed is one that splits batch and heads "
            "only; see flash_attention.context_parallel for the sequence"
        )
    return ShardRequest(strategy[batch], strategy[heads])


def _check_mode(mode: int) -> None:
    """Raise ValueError for a sparse mode that does not exist, and name the mode."""
    check_int("sparse_mode", mode, 0)
    if mode > PREFIX:
        meaning = _NOT_THERE.get(mode, "unknown")
        said = "; MindSpore documents it as not implemented yet, without a meaning" if mode in _NOT_THERE else ""
        raise ValueError(f"sparse_mode: got {mode} ({meaning}), allowed are 0 to 5{said}")


def _read_rules(call: FusedCall, mask: TensorSpec | None, prefix) -> FusedCall:
    """Add to a call the rules of sparse_mode, attn_mask, prefix and the tokens."""
    mode = call.settings.sparse_mode
    if mode in (LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL, BAND):
        _check_mask(mask, [(COMPRESSED_MASK, COMPRESSED_MASK)], mode)
        if mode != LEFT_UP_CAUSAL:
            call = call._replace(causal_alignment="bottom_right")
        return _read_tokens(call) if mode == BAND else call._replace(causal=True)
    batch, heads, seq_q, seq_k = call.sizes.scores
    allowed = [(batch, heads, seq_q, seq_k), (batch, 1, seq_q, seq_k)]
    if mode == PREFIX:
        _check_mask(mask, allowed, mode)
        _check_prefix(prefix, call.sizes)
        return call._replace(causal=True, causal_alignment="bottom_right", takes_mask=True, prefix=True)
    if mask is None and mode == DEFAULT_MASK:
        return call if call.settings.input_layout in PACKED else _read_unmasked(call)
    _check_mask(mask, [*allowed, (1, 1, seq_q, seq_k), (seq_q, seq_k)], mode)
    call = call._replace(takes_mask=True)
    return _read_tokens(call) if mode == DEFAULT_MASK else call


def _check_mask(mask: TensorSpec | None, allowed: list, mode: int) -> None:
    shapes = " or ".join(map(str, dict.fromkeys(allowed)))
    if mask is None:
        raise ValueError(f"attn_mask: got none with sparse_mode {mode}, allowed is a Tensor of shape {shapes}")
    if mask.dtype not in ("bool", "uint8"):
        raise TypeError(f"attn_mask: got dtype {mask.dtype}, allowed are bool and uint8")
    if not any(len(mask.shape) == len(shape) and all(map(fits, mask.shape, shape)) for shape in allowed):
        raise ValueError(f"attn_mask: got shape {mask.shape} with sparse_mode {mode}, allowed is {shapes}")


def _read_tokens(call: FusedCall) -> FusedCall:
    """Return the band from pre_tokens before the position of a query to next_tokens after it."""
    before, after = call.settings.pre_tokens, call.settings.next_tokens
    _, _, seq_q, seq_k = call.sizes.scores
    if before >= 0 and after >= 0:
        # A side as long as the sequences hides nothing.
        reach = UNLIMITED_TOKENS if UNKNOWN in (seq_q, seq_k) else seq_q + seq_k
        return call._replace(window_size=tuple(-1 if side >= reach else side for side in (before, after)))
    if UNKNOWN in (seq_q, seq_k):
        raise ValueError(f"pre_tokens, next_tokens: got {before}, {after}; negative ones need known lengths")
    position = np.arange(seq_q)[:, None] + call.offset
    keys = np.arange(seq_k)[None, :]
    visible = (keys >= position - before) & (keys <= position + after)
    forbidden = (
        max(before, after) < 0
        or (before < 0 and (after < -before or -before >= seq_k))
        or (after < 0 and (-after > before or -after >= seq_q))
    )
    if forbidden or not visible.any():
        raise ValueError(
            f"pre_tokens, next_tokens: got {before}, {after} with S1 = {seq_q}, S2 = {seq_k}; allowed is a band that "
            "is not empty: one of them >= 0, the other not below its negative, and inside the sequence"
        )
    return call._replace(hidden=~visible[None, None])


def _check_prefix(prefix, sizes: Sizes) -> None:
    if prefix is None:
        raise ValueError("prefix: got none with sparse_mode 5, allowed is one length for each batch item")
    if isinstance(prefix, TensorSpec):
        check_dtype("prefix", prefix.dtype, INTEGERS)
        return
    batch, _, seq_q, seq_k = sizes.scores
    if not fits(batch, len(prefix)):
        raise ValueError(f"prefix: got {len(prefix)} lengths, allowed is one for each of {batch} batch items")
    known = UNKNOWN not in (seq_q, seq_k)
    for length in prefix:
        check_int("prefix", length, max(0, seq_k - seq_q) if known else 0, seq_k if known else None)


def _read_unmasked(call: FusedCall) -> FusedCall:
    """Read a padded call of sparse mode 0 without a mask. If next_tokens is 0, it has two readings."""
    settings, seq_q, seq_k = call.settings, call.sizes.seq_q, call.sizes.seq_k
    if settings.next_tokens != 0 or settings.inference is False or seq_q == seq_k == 1:
        return call
    if settings.inference is None:
        raise ValueError(
            "next_tokens: got 0 without attn_mask, which has two readings; allowed is a choice: inference=True of "
            "patch_mindspore or flash_attention_score makes it causal, as MindSpore's inference operators do, "
            "inference=False shows every key, as its documentation says"
        )
    if seq_q != seq_k:
        raise ValueError(
            f"next_tokens: got 0 without attn_mask for S1 = {seq_q}, S2 = {seq_k} and inference=True; allowed are "
            "equal lengths, because no source says how MindSpore's inference operators align others"
        )
    if 0 <= settings.pre_tokens < (65536 if seq_k == UNKNOWN else seq_k - 1) or settings.pre_tokens < 0:
        raise ValueError(
            f"pre_tokens: got {settings.pre_tokens} without attn_mask for S2 = {seq_k} and inference=True; allowed is "
            "one that hides nothing, because no source says whether MindSpore's inference operators apply others"
        )
    return call._replace(causal=True)


def is_triangle(mask: TensorSpec | None) -> bool:
    """Return True for a mask of packed sequences that stands for causal."""
    return mask is not None and mask.dtype in DTYPES and mask.shape == TRIANGLE


def _read_shift(shift: TensorSpec | None, call: FusedCall) -> FusedCall:
    """Add the kind of real_shift to a call."""
    if shift is None:
        return call
    batch, heads, seq_q, seq_k = call.sizes.scores

    def has_rows(rows):
        fitting = len(shift.shape) == 4 and all(map(fits, shift.shape[1:], (heads, rows, seq_k)))
        return fitting and (shift.shape[0] == 1 or fits(shift.shape[0], batch))

    if has_rows(seq_q):
        return call._replace(shift="full")
    causal = call.settings.sparse_mode in (LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL)
    if seq_q > COMPRESSED_ROWS and has_rows(COMPRESSED_ROWS) and causal:
        return call._replace(shift="alibi")
    raise ValueError(
        f"real_shift: got shape {shift.shape}, allowed is (batch or 1, heads, S1, S2) = ({batch} or 1, {heads}, "
        f"{seq_q}, {seq_k}); with sparse_mode 2 or 3 and S1 > {COMPRESSED_ROWS} also {COMPRESSED_ROWS} rows"
    )


def _read_packed_shift(shift: TensorSpec | None, call: FusedCall) -> FusedCall:
    """Read the shift of packed sequences, which have the last rows of ALiBi alone."""
    if shift is None:
        return call
    heads = call.sizes.heads
    causal = call.settings.sparse_mode in (LEFT_UP_CAUSAL, RIGHT_DOWN_CAUSAL)
    if not causal or len(shift.shape) != 4 or shift.shape[1:3] != (heads, COMPRESSED_ROWS):
        raise ValueError(
            f"real_shift: got shape {shift.shape} with sparse_mode {call.settings.sparse_mode} and input_layout "
            f"{call.settings.input_layout!r}; allowed with sparse_mode 2 or 3 are the last rows of ALiBi, "
            f"(sequences or 1, {heads}, {COMPRESSED_ROWS}, longest S2)"
        )
    return call._replace(shift="slopes")
