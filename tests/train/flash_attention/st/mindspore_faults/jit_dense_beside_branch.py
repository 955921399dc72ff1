"""PYNATIVE: the gradient of a `@jit` function with a branch behind `nn.Dense` of a tensor of rank 3."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


class Network(nn.Cell):
    """A branch that is never taken."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(16, 16)

    def construct(self, x):
        y = self.dense(x)
        if ops.reshape(y, (-1,))[0] > float("inf"):
            y = y + y
        return y


network = Network()


@ms.jit
def compiled(x):
    """Return the network as a graph."""
    return network(x).sum()


try:
    ops.grad(compiled)(Tensor(np.ones((2, 9, 16), np.float32))).asnumpy()
    print("right")
except ValueError as error:
    print("wrong:", str(error).splitlines()[0])
