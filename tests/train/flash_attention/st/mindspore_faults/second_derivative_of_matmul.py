"""PYNATIVE: the second derivative of a product of matrices."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


def cubed(x):
    return ops.matmul(ops.matmul(x, x), x).sum()


def slope(x):
    return ops.grad(cubed)(x).sum()


x = Tensor(np.array([[2.0]], np.float32))
found = float(ops.grad(slope)(x).asnumpy().item())
print("right" if found == 12.0 else f"wrong: {found}, right is 12.0")
