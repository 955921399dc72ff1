"""PYNATIVE differentiates a `@jit` function that calls one Cell with a `bprop` twice."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


class Square(nn.Cell):
    """A square with a `bprop` that uses the result."""

    def construct(self, x):
        return x * x

    def bprop(self, x, out, dout):
        return (2 * dout * out / x,)


cell = Square()


@ms.jit
def function(x):
    """Return x^2 + 9 x^2."""
    return cell(x) + cell(3 * x)


found = ops.GradOperation()(function)(Tensor(np.ones(3, np.float32))).asnumpy()
print("right" if np.array_equal(found, [20, 20, 20]) else f"wrong: {found}, the derivative is 20")
