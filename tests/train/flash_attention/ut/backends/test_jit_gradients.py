"""PYNATIVE differentiates several layers in a `@jit` function: same gradients as without `@jit`."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention
from flash_attention.bridge.versions import OLD
from mindspore import ops

from tests.train.flash_attention.support.layer_inputs import draw, half
from tests.train.flash_attention.support.modes import in_mode

LAYERS = ("one layer", "two alike")


@pytest.mark.parametrize("backend", ("cpu", "math", "emulator"))
@pytest.mark.parametrize("layers", LAYERS)
def test_several_calls(backend, layers):
    if OLD and backend != "math":
        pytest.skip("MindSpore 2.0: emulator is refused by name, and cpu meets closure_around_branch.py")
    first = FlashAttention(16, causal=True, backend=backend)
    second = first if layers == LAYERS[0] else FlashAttention(16, causal=True, backend=backend)

    def total(query, key, value, sinks, weights):
        result = first(query, key, value, sinks=sinks)
        further = second(query + result, key * 2, value * 3, sinks=sinks)
        return ((result.astype(ms.float32) + further.astype(ms.float32)) * weights).sum()

    tensors = (*(half(2, 2, 20, 16, seed=seed) for seed in range(3)), draw(2, seed=3), draw(2, 2, 20, 16, seed=9))
    with in_mode("pynative"):
        expected, found = (
            [gradient.asnumpy() for gradient in ops.grad(function, (0, 1, 2, 3))(*tensors)]
            for function in (total, ms.jit(total))
        )
        assert np.abs(expected[0]).max() > 0.1
        for gradient, right in zip(found, expected):
            np.testing.assert_allclose(gradient, right, atol=2e-3 * np.abs(right).max())
