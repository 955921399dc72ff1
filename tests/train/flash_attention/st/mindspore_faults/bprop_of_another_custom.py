"""GRAPH: two `Custom` primitives of one function, whose `bprop` functions differ."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")


def copied(x):
    """Return a copy of an array."""
    return x.copy()


def scaled(factor):
    """Return a copy whose gradient is multiplied by a factor."""

    def bprop(x, out, dout):
        return (dout * factor,)

    return ops.Custom(copied, lambda shape: shape, lambda dtype: dtype, "pyfunc", bprop=bprop)


class Network(nn.Cell):
    """The sum of both."""

    def __init__(self):
        super().__init__()
        self.first, self.second = scaled(-1), scaled(0.5)

    def construct(self, x, y):
        return self.first(x).sum() + self.second(y).sum()


one = Tensor(np.ones(1, np.float32))
found = [float(gradient.asnumpy()[0]) for gradient in ops.grad(Network(), (0, 1))(one, one)]
print("right" if found == [-1, 0.5] else f"wrong: {found}, right is [-1, 0.5]")
