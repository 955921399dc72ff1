"""PYNATIVE: an exception inside a Cell with `to_float`, and the next operation outside it."""

import contextlib

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


class Fails(nn.Cell):
    """Raise an error."""

    def construct(self, x):
        raise ValueError("as a user's check does")


class Doubled(nn.Cell):
    """Multiply a tensor by a matrix."""

    def construct(self, x):
        return ops.matmul(x, x)


x = Tensor(np.eye(2, dtype=np.float32))
with contextlib.suppress(ValueError):
    Fails().to_float(ms.float16)(x)
dtype = Doubled()(x).dtype
print("right" if dtype == ms.float32 else f"wrong: {dtype} of float32")
