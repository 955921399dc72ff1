"""PYNATIVE: the gradient of a Cell with a `bprop`, after the gradient of a function raised an exception."""

import subprocess
import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


class Pair(nn.Cell):
    """Hand on two tensors."""

    def construct(self, a, b):
        return a, b

    def bprop(self, a, b, out, dout):
        return ops.reshape(ops.reshape(dout[0], (-1,)), dout[0].shape), dout[1]


class Network(nn.Cell):
    """A product behind it."""

    def __init__(self):
        super().__init__()
        self.pair = Pair()

    def construct(self, x, y):
        a, b = self.pair(x * 1.0, y * 1.0)
        return ops.reshape(a, a.shape) * b


def refused(x):
    """Raise an exception."""
    raise TypeError("no")


if len(sys.argv) > 1:
    x = Tensor(np.ones((2, 3), np.float32))
    try:
        ops.grad(refused)(x)
    except TypeError:
        network = Network()
        for _ in range(6):
            ops.GradOperation(get_all=True, sens_param=True)(network)(x, x, x)[0].asnumpy()
            ops.GradOperation(get_all=True, sens_param=True)(lambda x, y: network(x, y))(x, x, x)[0].asnumpy()
else:
    status = subprocess.run([sys.executable, __file__, "inner"], capture_output=True).returncode
    print("right" if status == 0 else f"wrong: the process ends with {status}")
