"""Attention as flash_attn defines it, in float64, for the tests of its functions."""

import numpy as np
from flash_attention import reference
from mindspore import Tensor

from tests.train.flash_attention.support import arrays
from tests.train.flash_attention.support.arrays import bias_of_slopes
from tests.train.flash_attention.support.calls import make_call

# float16 results of sums in float32 on stored float16 tensors: a unit in the last place of numbers around one.
CLOSE = {"rtol": 2e-3, "atol": 2e-3}


def random(*shape, seed=0) -> np.ndarray:
    """Return normal random float16 elements."""
    return arrays.random(*shape, seed=seed, dtype=np.float16)


def shown(seq_q: int, seq_k: int, causal=False, window=(-1, -1), leftpad=0) -> np.ndarray:
    """Return the keys that a query sees, boolean (seq_q, seq_k). The last query stands at the last key."""
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


def exact(q, k, v, visible, *, softcap=0.0, slopes=None, upstream=None) -> tuple:
    """Compute the attention of one sequence, (seq, heads, dim) each. Returns output, logsumexp (heads, seq), and
    the gradients if `upstream` is given.
    """
    scores, given = (1, q.shape[1], len(q), len(k)), {"mask": ~visible[None, None]}
    rules = {"softcap": softcap, "mask_shape": (1, 1, *visible.shape), "mask_dtype": "bool"}
    if slopes is not None:
        rules.update(bias_shape=scores, bias_dtype="float32")
        given["bias"] = bias_of_slopes(slopes, len(q), len(k), len(k) - len(q))
    if upstream is not None:
        given["d_output"] = upstream.swapaxes(0, 1)[None]
    call = make_call(*scores, q.shape[2], k.shape[1], dtype="float32", **rules)
    right = reference.truth(call, *(array.swapaxes(0, 1)[None] for array in (q, k, v)), **given)
    gradients = () if upstream is None else (right.d_query, right.d_key, right.d_value)
    output, *gradients = (array[0].swapaxes(0, 1) for array in (right.output, *gradients))
    return output, right.logsumexp[0], *gradients


def turned(x, cos, sin, positions, interleaved) -> np.ndarray:
    """Turn the pairs of x by the angles of their positions, in float64. x is (..., seq, heads, dim)."""
    half = cos.shape[1]
    first, second = np.arange(half), np.arange(half) + half
    if interleaved:
        first, second = np.arange(half) * 2, np.arange(half) * 2 + 1
    factors = (cos.astype(np.float64) + 1j * sin.astype(np.float64))[positions][..., None, :]
    pairs = (x[..., first].astype(np.float64) + 1j * x[..., second]) * factors
    result = x.astype(np.float64)
    result[..., first], result[..., second] = pairs.real, pairs.imag
    return result


def slopes_of(kind: str, batch: int, heads: int):
    """Return the slopes of a kind: none, for the heads, or for each item too. They come as the caller gives them and as
    (batch, heads).
    """
    values = np.random.default_rng(3).uniform(0.0, 0.3, (batch, heads)).astype(np.float32)
    if kind == "none":
        return None, [None] * batch
    return (Tensor(values), values) if kind == "batch" else (Tensor(values[0]), [values[0]] * batch)
