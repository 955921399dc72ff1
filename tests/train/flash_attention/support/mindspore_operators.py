"""Compute attention in float64 for tests of MindSpore's operators."""

from __future__ import annotations

import numpy as np
from flash_attention.bridge.versions import VERSION
from mindspore import Tensor, nn
from mindspore import dtype as mstype

from tests.train.flash_attention.support.versions import dtype_named

ERRORS = {"float32": 3e-6, "float16": 4e-3, "bfloat16": 4e-2}
DTYPES = tuple(name for name in ERRORS if name != "bfloat16" or VERSION >= (2, 7))  # on a CPU


def numbers(values) -> Tensor:
    """Return an int32 Tensor."""
    return Tensor(np.array(values, np.int32))


def attention(query, keys, values, scale, added=0.0, softcap=None):
    """Return attention in float64, and its logsumexp.

    Query is (..., heads, queries, D), keys and values are (..., kv_heads, keys, D). `added` goes to
    the scaled and capped scores; a query that sees nothing gives 0 and -inf.
    """
    query = query.astype(np.float64)
    keys, values = (one.astype(np.float64).repeat(query.shape[-3] // one.shape[-3], -3) for one in (keys, values))
    scores = query @ keys.swapaxes(-1, -2) * scale
    scores = (scores if softcap is None else softcap * np.tanh(scores / softcap)) + added
    highest = scores.max(-1, keepdims=True)
    highest[highest == -np.inf] = 0
    weights = np.exp(scores - highest)
    total = weights.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        logsumexp = np.log(total) + highest
    return weights @ values / np.maximum(total, 1e-300), logsumexp


def causal(rows, columns):
    """Return what hides the keys behind each query, aligned bottom right."""
    return np.where(np.triu(np.ones((rows, columns)), columns - rows + 1) > 0, -np.inf, 0)


class Calls(nn.Cell):
    """Operators, called with the same arguments in one graph."""

    def __init__(self, *operators):
        super().__init__()
        self.first, self.second = (*operators, *operators)[:2]

    def construct(self, *given):
        return self.first(*given), self.second(*given)


def assert_right(found, right, dtype="float32", as_exact_as=None):
    """Compare a Tensor of a dtype with the truth."""
    assert found.dtype == dtype_named(dtype)
    found = found.astype(mstype.float32).asnumpy().astype(np.float64)
    right = np.asarray(right)
    finite = right[np.isfinite(right)]
    atol = ERRORS[as_exact_as or dtype] * max(1, np.abs(finite).max(initial=0))
    np.testing.assert_allclose(found.reshape(right.shape), right, atol=atol)
