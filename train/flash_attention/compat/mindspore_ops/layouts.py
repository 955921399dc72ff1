"""Read a call: its sizes out of input_layout and head_num, packed sequences, and how a strategy splits it."""

from __future__ import annotations

from flash_attention.backends.fused import ALL_MASK, DEFAULT_MASK, PREFIX, UNLIMITED_TOKENS
from flash_attention.call.checks import check_int, check_name, check_real
from flash_attention.call.inputs import Sizes, TensorSpec, read_tensors
from flash_attention.call.layout import UNKNOWN
from flash_attention.compat.mindspore_ops.call import PACKED, FusedCall, Settings
from flash_attention.compat.mindspore_ops.inference import TRIANGLE, is_triangle
from flash_attention.compat.mindspore_ops.real_shift import read_packed_shift, read_shift
from flash_attention.compat.mindspore_ops.sparse_modes import check_mode, read_rules
from flash_attention.sharding.request import ShardRequest

LAYOUTS = ("BSH", "BNSD", "SBH", "BSND")


def read_call(settings: Settings, specs: tuple, prefix) -> FusedCall:
    """Check a call and translate it.

    Raises:
        TypeError, ValueError: an argument is not allowed.
    """
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
    return read_shift(shift, read_rules(FusedCall(settings, sizes), mask, prefix))


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
    call = call._replace(causal=True, triangle=True) if triangle else read_rules(call, mask, None)
    return read_packed_shift(shift, call)


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
    check_mode(settings.sparse_mode)
    for name in ("pre_tokens", "next_tokens"):
        check_int(name, getattr(settings, name), -UNLIMITED_TOKENS - 1)


def _check_drop_mask(drop: TensorSpec | None, settings: Settings) -> None:
    if drop is not None and settings.keep_prob == 1.0:
        raise ValueError("drop_mask: got one with keep_prob 1.0, allowed is one with keep_prob < 1")


def shard_request(strategy, layout: str) -> ShardRequest | None:
    """Return the split of batch and heads by query's strategy; None for packed sequences.

    Raises:
        ValueError: the strategy splits another axis.
    """
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
