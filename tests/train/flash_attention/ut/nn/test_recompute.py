"""`recompute()` of a block with attention in it."""

import mindspore as ms
import numpy as np
import pytest
from flash_attention import FlashAttention, plan
from flash_attention.backends import math, registry
from mindspore import Tensor, nn, ops


class Repeated(nn.Cell):
    """Attention of a tensor to itself, and a projection: the recomputed operation must not be the output of a cell."""

    def __init__(self):
        super().__init__()
        self.attention, self.join = FlashAttention(32, backend="math"), nn.Dense(32, 32)

    def construct(self, hidden):
        return self.join(self.attention(hidden, hidden, hidden))


class Sum(nn.Cell):
    """A loss: the sum of the squares of the network's output."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def construct(self, hidden):
        return (self.network(hidden) ** 2).sum()


@pytest.mark.skipif(
    ms.__version__.startswith("2.0"),
    reason="MindSpore 2.0: mindspore_faults/recompute_of_python_custom.py; test_training_steps.py recomputes",
)
def test_recomputation_runs_the_attention_again(mode, monkeypatch):
    """If it did not, its inputs would stay in memory and recompute() would save nothing."""
    runs = []
    hidden = Tensor(np.random.default_rng(0).standard_normal((2, 4, 40, 32)).astype(np.float32))

    def double(array):
        runs.append(array.shape)
        return array * 2

    class Counting(nn.Cell):
        def __init__(self):
            super().__init__()

            def bprop(query, out, dout):
                return (dout * 2,)

            self.double = ops.Custom(double, lambda shape: shape, lambda dtype: dtype, func_type="pyfunc", bprop=bprop)

        def construct(self, query, key, value, inputs):
            return self.double(query), None

    monkeypatch.setattr(math.BACKEND, "build", lambda problem: Counting(), raising=False)
    registry._build.cache_clear()
    plan._dense.cache_clear()
    try:
        for recompute in (False, True):
            network = nn.SequentialCell([nn.Dense(32, 32), Repeated()])
            if recompute:
                network.recompute()
            step = nn.TrainOneStepCell(Sum(network), nn.SGD(network.trainable_params(), 1e-3)).set_train()
            step(hidden).asnumpy()
            runs.clear()
            step(hidden).asnumpy()
            assert len(runs) == 1 + recompute
    finally:
        registry._build.cache_clear()
        plan._dense.cache_clear()
