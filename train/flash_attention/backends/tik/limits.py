"""List the limits of the TIK operators, for a device and for the emulator."""

from __future__ import annotations

import math

from flash_attention.call import Call
from flash_attention.kernels.tik import describe
from flash_attention.kernels.tik.decode.schedule import MOST_QUERIES
from flash_attention.kernels.tik.problem import ALIBI_TOKENS, MAX_HEAD_DIM, SCALES, SOFTCAPS

# Keep decisions are made for a whole call, one bit a score, because the Vector unit cannot draw them cheaply.
MAX_KEEP_BYTES = 1 << 30
MAX_MASK_BYTES = 1 << 32  # of the mask that other inputs become, see explicit_mask


def layout_on_910(call: Call, sharded: bool) -> str:
    """Return the layout in which the TIK operators take a call, see `Backend.layout`.

    It is a matrix of tokens, whose heads are columns, if two conditions hold. The caller's tensors are such matrices or
    can be seen as such, and every head has fractals of its own. Shards and the decoding kernels have heads on an axis.
    """
    apart = call.head_dim % 16 == 0 and call.value_dim % 16 == 0
    return "TH" if call.layout != "BNSD" and apart and not sharded and call.seq_q > MOST_QUERIES else "BNSD"


def refuse_on_910(call: Call) -> str | None:
    """Return why the TIK operators cannot run `call`, or None."""
    if call.dtype != "float16":
        return f"the Cube of the first-generation Ascend 910 multiplies float16 only, got {call.dtype}"
    if max(call.head_dim, call.value_dim) > MAX_HEAD_DIM:
        return (
            f"the TIK operators take a head_dim up to {MAX_HEAD_DIM} for query, key and value, got "
            f"{call.head_dim} and {call.value_dim} of value"
        )
    mask_bytes = 2 * math.prod(describe.mask_shape(call) or ()) if describe.makes_mask(call) else 0
    if mask_bytes > MAX_MASK_BYTES:
        return (
            f"prefix, segment_ids and block_mask become a float16 per score, {mask_bytes} bytes for this call; "
            f"allowed are {MAX_MASK_BYTES}"
        )
    if call.rules.softcap and not SOFTCAPS[0] <= call.rules.softcap <= SOFTCAPS[1]:
        return f"the TIK operators take a softcap from {SOFTCAPS[0]} to {SOFTCAPS[1]}, got {call.rules.softcap}"
    if call.scale != 0 and not SCALES[0] <= abs(call.scale) <= SCALES[1]:
        return f"the TIK operators take a scale from {SCALES[0]} to {SCALES[1]}, of either sign, or 0, got {call.scale}"
    if call.bias_dtype not in (None, "float16"):
        return f"the TIK operators take a float16 bias, got {call.bias_dtype}"
    if call.bias == "alibi" and max(call.seq_q, call.seq_k) > ALIBI_TOKENS:
        return f"the TIK operators compute ALiBi for {ALIBI_TOKENS} tokens at most, got {max(call.seq_q, call.seq_k)}"
    keep_bytes = math.prod(call.shape_keep_bits()) if call.dropout_threshold else 0
    if keep_bytes > MAX_KEEP_BYTES:
        return (
            f"dropout takes its keep decisions packed, {keep_bytes} bytes for this call; allowed are {MAX_KEEP_BYTES}"
        )
    return None
