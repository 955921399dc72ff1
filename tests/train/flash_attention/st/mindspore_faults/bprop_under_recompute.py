"""PYNATIVE: a Cell with a `bprop` of its own that is recomputed."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


class Own(nn.Cell):
    """Square, with a gradient that is 100 everywhere."""

    def construct(self, x):
        return x * x

    def bprop(self, x, out, dout):
        return (dout * 0 + 100,)


def gradient(cell):
    return float(ops.grad(lambda x: cell(x).sum())(Tensor(np.array([3.0], np.float32))).asnumpy().item())


recomputed = Own()
try:
    recomputed.recompute()
    found = gradient(recomputed)
    print("right" if found == 100.0 else f"wrong: {found} where the bprop gives {gradient(Own())}")
except TypeError:  # 2.0 recomputes in graphs only
    print("right: refused")
