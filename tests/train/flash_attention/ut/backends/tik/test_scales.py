"""Check the bounds of scales on the TIK operators: right within, and refused beyond."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import flash_attention
from mindspore import Tensor, ops

RANDOM = np.random.default_rng(0)
QUERY, KEY, VALUE = (RANDOM.standard_normal((1, 1, 20, 16)).astype(np.float16) for _ in range(3))
#: Beside biases that are all low, a mask hides by less than it does elsewhere.
LOW = Tensor((RANDOM.standard_normal((1, 1, 1, 20)) - 30000).astype(np.float16))
MASK = Tensor((np.arange(20) > 12)[None, None, None])


def results(backend, scale, **inputs):
    """Return the output, logsumexp and the gradients of query, key and value."""

    def total(query, key, value):
        output, logsumexp = flash_attention(query, key, value, scale=scale, backend=backend, return_lse=True, **inputs)
        return ops.sum(output.astype(ms.float32)), output, logsumexp

    gradients, outputs = ms.ops.grad(total, (0, 1, 2), has_aux=True)(*map(Tensor, (QUERY, KEY, VALUE)))
    return [one.asnumpy().astype(np.float64) for one in (*outputs, *gradients)]


@pytest.mark.parametrize("scale", [2.0**-10, -(2.0**-10), 0.0, 2.0**10])
@pytest.mark.parametrize(
    "inputs", [{}, {"attention_mask": MASK, "bias": LOW}, {"alibi": True}], ids=["plain", "low", "alibi"]
)
def test_within_the_bounds_they_are_right(inputs, scale):
    for found, wanted in zip(results("emulator", scale, **inputs), results("math", scale, **inputs)):
        np.testing.assert_allclose(found, wanted, rtol=4e-3, atol=4e-3 * np.abs(wanted).max())


@pytest.mark.parametrize("scale", [9.7e-4, -1e-4, 1e-10, 1e-38, 1025.0, -1e10])
def test_beyond_they_are_refused(scale):
    with pytest.raises(RuntimeError, match="take a scale from 0.0009765625 to 1024.0, of either sign, or 0, got "):
        results("emulator", scale)
