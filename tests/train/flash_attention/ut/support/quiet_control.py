"""Run the MindSpore features under the package, without the package. test_quiet.py reads the output."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops


def double(x):
    """Compute the operator."""
    return x * 2


def doubled_gradient(x, out, dout):
    """Return the gradient of the doubled input."""
    return (dout * 2,)


class Custom(nn.Cell):
    """An operator of somebody else with a gradient."""

    def __init__(self):
        super().__init__()
        self.double = ops.Custom(double, lambda x: x, lambda x: x, "pyfunc", bprop=doubled_gradient)

    def construct(self, x):
        return self.double(x).sum()


class Dynamic(nn.Cell):
    """An operation on unknown extents."""

    def construct(self, x):
        return x + 1


x = Tensor(np.ones((2, 3), np.float32))
for mode in (ms.GRAPH_MODE, ms.PYNATIVE_MODE):
    ms.set_context(mode=mode)
    Custom()(x).asnumpy()
    ops.grad(Custom())(x).asnumpy()
ms.set_context(mode=ms.GRAPH_MODE)
dynamic = Dynamic()
dynamic.set_inputs(Tensor(shape=(None, 3), dtype=ms.float32))
dynamic(x).asnumpy()
