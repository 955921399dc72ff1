"""Test bfloat16 in compiled graphs on a CPU.

MindSpore lacks Reshape, ExpandDims and AddN there.
"""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import attention_backend, flash_attention, scaled_dot_product_attention
from mindspore import Tensor, ops

from tests.train.flash_attention.support.cells import Call, with_gradients
from tests.train.flash_attention.support.modes import in_mode
from tests.train.flash_attention.support.versions import dtype_named

MASKS = ((13,), (1,), (9, 13), (9, 1), (3, 9, 13), (1, 1, 13), (2, 1, 9, 13), (2, 3, 1, 13), (2, 2, 1, 9, 13))


def draw(*shape, seed=0):
    """Return normal random bfloat16 elements."""
    return Tensor(
        np.random.default_rng([seed, *shape]).standard_normal(shape).astype(np.float32), dtype_named("bfloat16")
    )


def values(tensor):
    """Convert elements to float32."""
    return tensor.astype(ms.float32).asnumpy()


def both(lead, mask=None, bias=None):
    """Return the results of scaled_dot_product_attention, and of the flash_attention that it stands for."""
    tensors = [draw(*lead, *shape, seed=seed) for seed, shape in enumerate(((9, 16), (13, 16), (13, 16), (9, 16)))]
    shapes = [(int(np.prod(lead[:-1])), lead[-1] if lead else 1, *tensor.shape[-2:]) for tensor in tensors]
    flat = [Tensor(values(tensor).reshape(shape), ms.bfloat16) for tensor, shape in zip(tensors, shapes)]
    with attention_backend("cpu"):
        found = with_gradients(Call(scaled_dot_product_attention), *tensors[:3], mask, tensors[3])
        with in_mode("pynative"):  # compiles nothing
            expected = with_gradients(Call(flash_attention), *flat[:3], None, bias, flat[3])
    return list(map(values, found)), list(map(values, expected))


@pytest.mark.spread
@pytest.mark.parametrize("lead", [(), (3,), (2, 3), (2, 2, 3)], ids=str)
def test_any_rank(lead, mode):
    for got, wanted in zip(*both(lead)):
        np.testing.assert_array_equal(got.reshape(wanted.shape), wanted)


@pytest.mark.spread
@pytest.mark.parametrize("shape", MASKS, ids=str)
def test_added_masks_that_broadcast(shape, mode):
    lead = (2, 2, 3) if len(shape) == 5 else (2, 3)
    mask = draw(*shape, seed=3)
    full = np.broadcast_to(values(mask), (*lead, 9, 13)).reshape(-1, 3, 9, 13)
    found, expected = both(lead, mask, Tensor(np.ascontiguousarray(full)))
    for got, wanted in zip(found[:4], expected):
        np.testing.assert_array_equal(got.reshape(wanted.shape), wanted)
    d_mask = expected[4].reshape(*lead, 9, 13)
    d_mask = d_mask.sum(axis=tuple(range(d_mask.ndim - len(shape))))
    d_mask = d_mask.sum(axis=tuple(i for i, size in enumerate(shape) if size == 1), keepdims=True)
    # Results are rounded to bfloat16 once. If the gradients of a row add up to zero, the rounding of float32 remains.
    np.testing.assert_allclose(found[4], d_mask, rtol=2**-8, atol=1e-5)


@pytest.mark.spread
@pytest.mark.parametrize("shape", [(13,), (9, 13), (2, 1, 9, 13)], ids=str)
def test_boolean_masks(shape, mode):
    keep = np.random.default_rng(0).random(shape) < 0.7
    full = np.where(np.broadcast_to(keep, (2, 3, 9, 13)), 0.0, -np.inf).astype(np.float32)
    found, expected = both((2, 3), Tensor(keep), Tensor(full))
    np.testing.assert_allclose(found[0], expected[0], rtol=2**-7, atol=1e-6)


@pytest.mark.spread
@pytest.mark.parametrize("layout", ["BSND", "SBH", "BSH", "TH"])
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
