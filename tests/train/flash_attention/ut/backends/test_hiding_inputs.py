"""Test inputs that hide keys in a differentiated graph, beside query, key and value."""

import numpy as np
import pytest
from flash_attention import flash_attention
from mindspore import Tensor, ops

from tests.train.flash_attention.support.modes import in_mode

RANDOM = np.random.default_rng(0)
HIDES = {
    "attention_mask": Tensor((RANDOM.random((1, 8, 8)) < 0.3).astype(np.float32)),
    "segment_ids": Tensor(np.array([[-1, 0, 0, 0, 1, 1, 1, -1]], np.int32)),
}


def _loss(name, backend):
    """Return a function of a query and of what hides its keys."""

    def loss(query, hides):
        attended = flash_attention(query, query, query, **{name: hides}, backend=backend)
        return (attended * attended).sum()

    return loss


@pytest.mark.parametrize("name", HIDES)
def test_gradients_in_a_graph(name):
    query = Tensor(RANDOM.standard_normal((1, 2, 8, 16)).astype(np.float32))
    found = []
    for backend, mode in (("math", "graph"), ("cpu", "pynative")):
        with in_mode(mode):
            found.append(ops.grad(_loss(name, backend), 0)(query, HIDES[name]).asnumpy())
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-5)
