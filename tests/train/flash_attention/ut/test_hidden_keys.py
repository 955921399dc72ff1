"""Through MindSpore, NaN and infinities in keys and values reach only rows that see them."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention.backends.registry import attention_backend
from flash_attention.functional import flash_attention
from mindspore import Tensor


def results(backend, query, key, value, **options) -> list:
    """Return the output and gradients of query, key and value, as NumPy arrays."""

    def total(query, key, value):
        output = flash_attention(query, key, value, **options)
        # Not cos: MindSpore 2.0 gets its gradient wrong from the sixth call on.
        return (output * ms.ops.tanh(query)).sum(), output

    with attention_backend(backend):
        gradients, output = ms.ops.grad(total, grad_position=(0, 1, 2), has_aux=True)(*map(Tensor, (query, key, value)))
    return [array.asnumpy() for array in (output[0] if isinstance(output, tuple) else output, *gradients)]


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("rule", ["causal", "window", "padding"])
@pytest.mark.parametrize("backend", ["cpu", "math"])
def test_hidden_keys_may_hold_anything(backend, rule, bad):
    random = np.random.default_rng(0)
    query, key, value = (random.standard_normal((1, heads, 40, 8)).astype(np.float32) for heads in (2, 1, 1))
    options = {
        "causal": {"causal": True},
        "window": {"window_size": (5, 2)},
        "padding": {"attention_mask": Tensor((np.arange(40) >= 30).reshape(1, 1, 1, 40))},
    }[rule]
    clean = results(backend, query, key, value, **options)
    # Rows that see key 33, and keys that one of these rows sees too.
    rows = {"causal": slice(33, 40), "window": slice(31, 39), "padding": slice(0, 0)}[rule]
    keys = {"causal": slice(0, 40), "window": slice(26, 40), "padding": slice(0, 0)}[rule]
    for index in (1, 2):
        tensors = [query, key.copy(), value.copy()]
        tensors[index][:, :, 33] = bad
        for place, (one, other) in enumerate(zip(results(backend, *tensors, **options), clean)):
            touched = rows if place < 2 else keys
            untouched = np.delete(np.arange(40), touched)
            np.testing.assert_array_equal(one[:, :, untouched], other[:, :, untouched])
            if place == 0 and rule != "padding":
                assert not np.isfinite(one[:, :, touched]).any()
