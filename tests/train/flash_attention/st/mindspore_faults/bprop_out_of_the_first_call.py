"""PYNATIVE: `out` of the `bprop` of a Cell is what the Cell returned in this call, not in its first."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


class Exponential(nn.Cell):
    """exp with a bprop that uses the result."""

    def construct(self, x):
        return ops.exp(x)

    def bprop(self, x, out, dout):
        return (dout * out,)


class Network(nn.Cell):
    """A projection in front of the Cell above."""

    def __init__(self):
        super().__init__()
        self.exponential = Exponential()

    def construct(self, x):
        return self.exponential(x * 1.0)


gradient, verdict = ops.GradOperation()(Network()), "right"
for value in (0.0, 1.0, 2.0):
    found = gradient(Tensor([value], ms.float32)).asnumpy()
    if not np.allclose(found, np.exp(value)):
        verdict = f"wrong: the gradient of exp at {value} is {found}"
print(verdict)
