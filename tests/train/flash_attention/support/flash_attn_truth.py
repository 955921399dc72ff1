"""Attention as flash_attn defines it, in float64, for the tests of its functions."""

import numpy as np
from mindspore import Tensor

# float16 results of sums in float32 on stored float16 tensors: a unit in the last place of numbers around one.
CLOSE = {"rtol": 2e-3, "atol": 2e-3}


def random(*shape, seed=0) -> np.ndarray:
    """Normal random float16 elements."""
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


def shown(seq_q: int, seq_k: int, causal=False, window=(-1, -1), leftpad=0) -> np.ndarray:
    """Boolean (seq_q, seq_k): what a query sees, the last lines of both meeting."""
    row, column = np.arange(seq_q)[:, None] + seq_k - seq_q, np.arange(seq_k)
    left, right = window
    visible = np.broadcast_to(column >= leftpad, (seq_q, seq_k)).copy()
    if causal:
        right = 0
    if right >= 0:
        visible &= column <= row + right
    if left >= 0:
        visible &= column >= row - left
    return visible


def exact(q, k, v, visible, *, scale=None, softcap=0.0, slopes=None, upstream=None) -> tuple:
    """One sequence, (seq, heads, dim) each: output, logsumexp (heads, seq), and gradients where `upstream` is given."""
    q, k, v = (array.astype(np.float64) for array in (q, k, v))
    group = q.shape[1] // k.shape[1]
    wide_k, wide_v = np.repeat(k, group, axis=1), np.repeat(v, group, axis=1)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    scores = np.einsum("qhd,khd->hqk", q, wide_k) * scale
    slope = 1.0
    if softcap:
        squashed = np.tanh(scores / softcap)
        scores, slope = squashed * softcap, 1 - squashed**2
    if slopes is not None:
        distance = np.abs(np.arange(len(q))[:, None] + len(k) - len(q) - np.arange(len(k)))
        scores = scores - np.asarray(slopes, np.float64)[:, None, None] * distance
    scores = np.where(visible, scores, -np.inf)
    top = scores.max(-1, keepdims=True, initial=-1e300)
    weights = np.exp(scores - top)
    total = weights.sum(-1, keepdims=True)
    probability = weights / np.where(total == 0, 1, total)
    output = np.einsum("hqk,khd->qhd", probability, wide_v)
    with np.errstate(divide="ignore"):
        logsumexp = (np.log(total) + top)[..., 0]
    if upstream is None:
        return output, logsumexp
    upstream = upstream.astype(np.float64)
    d_probability = np.einsum("qhd,khd->hqk", upstream, wide_v)
    d_scores = probability * (d_probability - (probability * d_probability).sum(-1, keepdims=True)) * slope * scale
    d_k, d_v = np.einsum("hqk,qhd->khd", d_scores, q), np.einsum("hqk,qhd->khd", probability, upstream)
    grouped = len(k), k.shape[1], group, -1
    return (
        *(output, logsumexp, np.einsum("hqk,khd->qhd", d_scores, wide_k)),
        *(d_k.reshape(grouped).sum(2), d_v.reshape(grouped).sum(2)),
    )


def turned(x, cos, sin, positions, interleaved) -> np.ndarray:
    """One sequence, (seq, heads, dim), with its pairs turned by the angles of its positions."""
    half = cos.shape[1]
    first, second = np.arange(half), np.arange(half) + half
    if interleaved:
        first, second = np.arange(half) * 2, np.arange(half) * 2 + 1
    factors = (cos.astype(np.float64) + 1j * sin.astype(np.float64))[positions][:, None]
    pairs = (x[..., first].astype(np.float64) + 1j * x[..., second]) * factors
    result = x.astype(np.float64)
    result[..., first], result[..., second] = pairs.real, pairs.imag
    return result


def slopes_of(kind: str, batch: int, heads: int):
    """None, or slopes for the heads, or for each item too, as the caller gives them and as (batch, heads)."""
    values = np.random.default_rng(3).uniform(0.0, 0.3, (batch, heads)).astype(np.float32)
    if kind == "none":
        return None, [None] * batch
    return (Tensor(values), values) if kind == "batch" else (Tensor(values[0]), [values[0]] * batch)
