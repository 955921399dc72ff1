"""Test bfloat16 in compiled graphs on a CPU.

MindSpore lacks Reshape, ExpandDims and AddN there.
"""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import flash_attention
from mindspore import Tensor, ops

from tests.train.flash_attention.support.cells import Call, with_gradients
from tests.train.flash_attention.support.modes import in_mode
from tests.train.flash_attention.support.versions import dtype_named


def draw(*shape, seed=0):
    """Return normal random bfloat16 elements."""
    return Tensor(
        np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32), dtype_named("bfloat16")
    )


def values(tensor):
    """Convert elements to float32."""
    return tensor.astype(ms.float32).asnumpy()


@pytest.mark.parametrize(
    "layout", ["BSND", "TH", *(pytest.param(one, marks=pytest.mark.slow) for one in ("SBH", "BSH"))]
)
def test_backend_math_in_every_layout(layout):
    """Backend math converts these layouts; graphs give the same as PYNATIVE."""
    shape = {"BSND": (2, 9, 3, 16), "SBH": (9, 2, 48), "BSH": (2, 9, 48), "TH": (18, 48)}[layout]
    *tensors, d_output = (draw(*shape, seed=seed) for seed in range(4))
    rules = {"causal": True, "input_layout": layout, "head_dim": 16, "batch": 2 if layout == "TH" else None}
    network = Call(flash_attention, **rules, backend="math")
    expected = with_gradients(network, *tensors, d_output)
    with in_mode("graph"):
        found = with_gradients(network, *tensors, d_output)
    for got, wanted in zip(found, expected):
        np.testing.assert_allclose(values(got), values(wanted), rtol=2**-7, atol=1e-6)


def total(query, key, value):
    """Return the sum of output and logsumexp."""
    output, logsumexp = flash_attention(query, key, value, return_lse=True, backend="cpu")
    return output.astype(ms.float32).sum() + logsumexp.sum()


def test_gradients_through_the_logsumexp_of_a_compiled_function():
    """The gradients are right if MindSpore can add; if it cannot, the error says so."""
    tensors = draw(1, 2, 9, 16), draw(1, 2, 13, 16, seed=1), draw(1, 2, 13, 16, seed=2)

    @ms.jit
    def inside(query, key, value):
        return ops.grad(total, (0, 1, 2))(query, key, value)

    expected = [values(gradient) for gradient in ops.grad(total, (0, 1, 2))(*tensors)]
    for got, wanted in zip(inside(*tensors), expected):
        np.testing.assert_array_equal(values(got), wanted)
    compiled = ms.jit(total)
    assert np.isfinite(compiled(*tensors).asnumpy())
    with pytest.raises(RuntimeError, match="return_lse: got bfloat16 in a @jit function that PYNATIVE differentiates"):
        ops.grad(compiled, (0, 1, 2))(*tensors)
    ops.grad(ms.jit(total), (0, 1, 2))(*(tensor.astype(ms.float16) for tensor in tensors))
    ms.set_context(mode=ms.GRAPH_MODE)
    for got, wanted in zip(ops.grad(compiled, (0, 1, 2))(*tensors), expected):
        np.testing.assert_array_equal(values(got), wanted)
