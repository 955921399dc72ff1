"""Find the visible keys from sparse_mode, attn_mask, prefix, pre_tokens and next_tokens."""

from __future__ import annotations

import numpy as np

from flash_attention.backends.fused import (
    BAND,
    COMPRESSED_MASK,
    DEFAULT_MASK,
    LEFT_UP_CAUSAL,
    PREFIX,
    RIGHT_DOWN_CAUSAL,
    UNLIMITED_TOKENS,
)
from flash_attention.call.checks import INTEGERS, check_dtype, check_int
from flash_attention.call.inputs import Sizes, TensorSpec, fits
from flash_attention.call.layout import UNKNOWN
from flash_attention.compat.mindspore_ops.call import PACKED, FusedCall
from flash_attention.compat.mindspore_ops.inference import read_unmasked

_NOT_THERE = {6: "global", 7: "dilated", 8: "block_local"}


def check_mode(mode: int) -> None:
    """Raise ValueError for a sparse mode that does not exist, and name the mode."""
    check_int("sparse_mode", mode, 0)
    if mode > PREFIX:
        meaning = _NOT_THERE.get(mode, "unknown")
        said = "; MindSpore documents it as not implemented yet, without a meaning" if mode in _NOT_THERE else ""
        raise ValueError(f"sparse_mode: got {mode} ({meaning}), allowed are 0 to 5{said}")


def read_rules(call: FusedCall, mask: TensorSpec | None, prefix) -> FusedCall:
    """Add to a call the rules of sparse_mode, attn_mask, prefix and the tokens.

    Raises:
        TypeError, ValueError: one of them is not allowed.
    """
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
        return call if call.settings.input_layout in PACKED else read_unmasked(call)
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
