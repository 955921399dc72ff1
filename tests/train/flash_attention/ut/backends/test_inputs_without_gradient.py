"""Inputs without a gradient in two calls. They are given, or computed from an input that has a gradient."""

import functools

import mindspore as ms
import numpy as np
import pytest
from flash_attention import attention_backend
from flash_attention.bridge.versions import OLD
from mindspore import Tensor, ops

from tests.train.flash_attention.support.arrays import draw
from tests.train.flash_attention.support.modes import in_mode
from tests.train.flash_attention.support.without_gradient import (
    BATCH,
    HEAD_DIM,
    HEADS,
    INPUTS,
    SEQ,
    Twice,
    masked_in_bytes,
    turned,
    with_ids,
    with_seed,
)


def compiled(network):
    @ms.jit
    def run(*inputs):
        return network(*inputs)

    return run


def gradients(function, backend, mode, computed):
    """Return the gradients of all inputs, as arrays, and the tolerance of the first."""
    half = backend == "emulator" or function is masked_in_bytes
    x = Tensor(draw(BATCH, HEADS, SEQ, HEAD_DIM).astype(np.float16 if half else np.float32))
    with in_mode("graph" if mode == "graph" else "pynative"), attention_backend(backend):
        network = Twice(function, computed)
        if mode == "jit":
            network = compiled(network)
        found = ops.GradOperation(get_all=True)(network)(x, *map(Tensor, INPUTS[function]))
        return [one.asnumpy().astype(np.float64) for one in found], 1e-2 if half else 1e-4


expected = functools.lru_cache(lambda function: gradients(function, "math", "pynative", False)[0][0])


@pytest.mark.spread(since=(2, 7))
@pytest.mark.parametrize("backend", ("cpu", "math", "emulator"))
@pytest.mark.parametrize("function", INPUTS, ids=lambda function: function.__name__)
@pytest.mark.parametrize("mode", ("pynative", "graph", "jit"))
@pytest.mark.parametrize("computed", (False, True), ids=("given", "computed"))
def test_they_take_part_in_no_gradient(function, backend, mode, computed):
    dropping = function in (with_ids, with_seed)
    if OLD and mode == "jit" and function is not turned and (backend != "math" or dropping):
        with pytest.raises(RuntimeError, match="in a function that PYNATIVE differentiates"):
            gradients(function, backend, mode, computed)
        return
    (found, *others), tolerance = gradients(function, backend, mode, computed)
    right = expected(function)
    assert np.abs(right).max() > 0.1
    np.testing.assert_allclose(found, right, atol=tolerance * np.abs(right).max())
    assert not any(one.any() for one in others)
