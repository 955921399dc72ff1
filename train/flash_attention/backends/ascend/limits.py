"""What the TIK operators cannot do, whatever executes them."""

from __future__ import annotations

import math

from flash_attention.kernels.tik.problem import ALIBI_TOKENS, MAX_HEAD_DIM
from flash_attention.problem import AttentionProblem

# Keep decisions are made for a whole call, one bit a score, because the Vector unit cannot draw them cheaply.
MAX_KEEP_BYTES = 1 << 30


def refuse_on_910(problem: AttentionProblem) -> str | None:
    """Why the TIK operators cannot run `problem`, or None."""
    if problem.dtype != "float16":
        return f"the Cube of the first-generation Ascend 910 multiplies float16 only, got {problem.dtype}"
    if problem.head_dim > MAX_HEAD_DIM or problem.value_dim != problem.head_dim:
        return (
            f"the TIK operators take one head_dim up to {MAX_HEAD_DIM} for query, key and value, got "
            f"{problem.head_dim} and {problem.value_dim} of value"
        )
    for name, given in (("sinks", problem.sinks), ("prefix", problem.prefix), ("segment_ids", problem.segments)):
        if given:
            return f"the TIK operators have no {name} yet"
    if problem.rules.softcap:
        return f"the TIK operators have no soft cap yet, got softcap {problem.rules.softcap}"
    if problem.bias_dtype not in (None, "float16"):
        return f"the TIK operators take a float16 bias, got {problem.bias_dtype}"
    if problem.bias == "alibi" and max(problem.seq_q, problem.seq_k) > ALIBI_TOKENS:
        return (
            f"the TIK operators compute ALiBi for {ALIBI_TOKENS} tokens at most, "
            f"got {max(problem.seq_q, problem.seq_k)}"
        )
    keep_bytes = math.prod(problem.shape_keep_bits()) if problem.dropout_threshold else 0
    if keep_bytes > MAX_KEEP_BYTES:
        return (
            f"dropout takes its keep decisions packed, {keep_bytes} bytes for this problem; "
            f"allowed are {MAX_KEEP_BYTES}"
        )
    return None
