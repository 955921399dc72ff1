"""PYNATIVE differentiates a `@jit` function that contains a Cell with a `bprop`."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


class Seven(nn.Cell):
    """A product with 2. Its `bprop` says 7, to tell it from the true derivative."""

    def construct(self, x):
        return x * 2

    def bprop(self, x, out, dout):
        return (dout * 7,)


cell = Seven()


@ms.jit
def function(x):
    """Return the compiled function."""
    return cell(x) * 1.0


found = ops.GradOperation()(function)(Tensor(np.ones(3, np.float32))).asnumpy()
print("right" if np.array_equal(found, [7, 7, 7]) else f"wrong: {found}, the bprop gives 7")
