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


def truth(query, key, value, mask=None, bias=None, d_output=None, **rules):
    """Return the reference's results for these tensors and rules."""
    sizes = *query.shape[:3], key.shape[2], query.shape[3], key.shape[1]
    if mask is not None:
        rules |= {"mask_shape": mask.shape, "mask_dtype": "uint8"}
    if bias is not None:
        bias = bias[(None,) * (4 - bias.ndim)]
        rules |= {"bias_shape": bias.shape, "bias_dtype": "float32"}
    call = make_call(*sizes, dtype="float32", value_dim=value.shape[3], **rules)
    arrays = (query.asnumpy(), key.asnumpy(), value.asnumpy())
    d_output = None if d_output is None else d_output.asnumpy()
    return reference.truth(call, *arrays, mask=mask, bias=bias, d_output=d_output)


def near(actual, expected, tolerance=2e-5):
    """Check equality up to rounding."""
    np.testing.assert_allclose(actual.asnumpy().astype(np.float64), expected, atol=tolerance, rtol=tolerance)
