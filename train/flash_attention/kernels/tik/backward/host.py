"""Host side of the backward operator: BNSD arrays to its inputs, and back. NumPy only."""

from __future__ import annotations

import numpy as np

from flash_attention.kernels.tik import host, layout
from flash_attention.kernels.tik.problem import KernelProblem, padded


def inputs(
    problem: KernelProblem, query, key, value, output, logsumexp, d_output, d_logsumexp=None, **features
) -> dict[str, np.ndarray]:
    """Stored arrays for `Backward.run`.

    Args:
        query: (B, H, Sq, D), float16; output, d_output: (B, H, Sq, Dv); key: (B, Hkv, Sk, D); value: (B, Hkv, Sk, Dv).
        logsumexp, d_logsumexp: (B, H, Sq), float32.
        features: mask, bias, keep_bits as for host.forward_inputs.
    """
    arrays = host.forward_inputs(problem, query, key, value, **features)
    for name, array in (("output", output), ("d_output", d_output)):
        arrays[name] = layout.to_stored(problem, name, np.asarray(array, np.float16))
    arrays["logsumexp"] = _rows(problem, logsumexp)
    if d_logsumexp is not None:
        arrays["d_logsumexp"] = _rows(problem, d_logsumexp)
    return arrays


def outputs(problem: KernelProblem, stored: dict) -> dict[str, np.ndarray]:
    """d_query, d_key, d_value (float16), d_bias (float32, shape of the bias) and d_sinks (float32, heads)

    from what `Backward.run` returns.
    """
    p = problem
    result = {name: layout.from_stored(p, name, stored[name]) for name in ("d_query", "d_key", "d_value")}
    if "d_sink_rows" in stored:
        result["d_sinks"] = stored["d_sink_rows"].sum(axis=(0, 2))
    if "d_bias" in stored:
        planes = layout.from_nz(stored["d_bias"], p.seq_q, p.seq_k)
        result["d_bias"] = planes.reshape(*p.bias_planes, p.seq_q, p.seq_k)
    if "d_bias_sums" in stored:
        # (batch, key/value heads, chunks, keys, 16 query heads of the group)
        sums = stored["d_bias_sums"].reshape(p.batch, p.kv_heads, -1, padded(p.seq_k), 16)
        heads = np.moveaxis(sums, 4, 3).reshape(p.batch, p.kv_heads, -1, padded(p.seq_k))
        rows = heads[:, :, : p.group, : p.seq_k].reshape(p.batch, p.heads, 1, p.seq_k)
        for axis, size in enumerate(p.bias_planes):
            if size == 1:
                rows = rows.sum(axis=axis, keepdims=True)
        result["d_bias"] = np.ascontiguousarray(rows)
    return result


def _rows(problem: KernelProblem, values) -> np.ndarray:
    """(B, H, Sq) to (B, H, seq_q padded), zeros in the padding."""
    wide = np.zeros((problem.batch, problem.heads, padded(problem.seq_q)), np.float32)
    wide[..., : problem.seq_q] = values
    return wide
