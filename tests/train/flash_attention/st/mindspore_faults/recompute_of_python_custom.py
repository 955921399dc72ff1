"""GRAPH: recompute() of a network with a Custom of a Python function in it ends in "Graph cycle exists"."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")


def double(array):
    """Compute the Custom in NumPy."""
    return array * 2


def bprop(x, out, dout):
    """Return the gradient of the operator."""
    return (dout * 2,)


class Doubled(nn.Cell):
    """A projection of twice the input."""

    def __init__(self):
        super().__init__()
        self.double = ops.Custom(double, lambda shape: shape, lambda dtype: dtype, func_type="pyfunc", bprop=bprop)
        self.join = nn.Dense(4, 4)

    def construct(self, x):
        return self.join(self.double(x))


class Sum(nn.Cell):
    """A loss."""

    def __init__(self, network):
        super().__init__()
        self.network = network

    def construct(self, x):
        return (self.network(x) ** 2).sum()


network = nn.SequentialCell([nn.Dense(4, 4), Doubled()])
network.recompute()
step = nn.TrainOneStepCell(Sum(network), nn.SGD(network.trainable_params(), 1e-3)).set_train()
try:
    loss = step(Tensor(np.ones((2, 3, 4), np.float32))).asnumpy()
except RuntimeError as error:
    print(f"wrong: {str(error)[:18]}")
else:
    print("right" if np.isfinite(loss) else f"wrong: {loss}")
