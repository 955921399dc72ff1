"""Build inputs for the tests of the layer, and expected results."""

import numpy as np
from flash_attention import reference
from mindspore import Tensor

from tests.train.flash_attention.support import arrays
from tests.train.flash_attention.support.calls import make_call


def draw(*shape, dtype=np.float32, seed=0):
    """Return normal random elements."""
    return Tensor(arrays.draw(*shape, dtype=dtype, seed=seed))


def half(*shape: int, seed: int = 0) -> Tensor:
    """Return normal random float16 elements."""
    return Tensor(arrays.random(*shape, seed=seed, dtype=np.float16))


def inputs(batch=2, heads=4, kv_heads=2, seq_q=40, seq_k=56, head_dim=32, dtype=np.float32):
    """Query, key and value."""
    return (
        draw(batch, heads, seq_q, head_dim, dtype=dtype),
        draw(batch, kv_heads, seq_k, head_dim, dtype=dtype, seed=1),
        draw(batch, kv_heads, seq_k, head_dim, dtype=dtype, seed=2),
    )


def truth(query, key, value, mask=None, d_output=None, **rules):
    """Return the reference's results for these tensors and rules."""
    call = make_call(
        batch=query.shape[0],
        heads=query.shape[1],
        kv_heads=key.shape[1],
        seq_q=query.shape[2],
        seq_k=key.shape[2],
        head_dim=query.shape[3],
        dtype="float32",
        mask_shape=None if mask is None else mask.shape,
        mask_dtype=None if mask is None else "uint8",
        **rules,
    )
    arrays = (query.asnumpy(), key.asnumpy(), value.asnumpy())
    return reference.truth(call, *arrays, mask=mask, d_output=None if d_output is None else d_output.asnumpy())


def near(actual, expected, tolerance=2e-5):
    """Check equality up to rounding."""
    np.testing.assert_allclose(actual.asnumpy().astype(np.float64), expected, atol=tolerance, rtol=tolerance)
