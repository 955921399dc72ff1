"""PYNATIVE: the gradient of a function that indexes a tensor, after a Cell's gradient raised an exception."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


class Refused(nn.Cell):
    """A Cell that raises an exception."""

    def construct(self, x):
        raise TypeError("no")


x = Tensor(np.ones((2, 2), np.float32))
try:
    ops.grad(Refused())(x)
except TypeError:
    try:
        gradient = ops.grad(lambda x: x[0].sum())(x).asnumpy()
        print("right" if (gradient == [[1, 1], [0, 0]]).all() else f"wrong: {gradient.tolist()}")
    except TypeError as error:
        print("wrong:", str(error).splitlines()[0])
