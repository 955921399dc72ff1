"""The gradient of masked_fill for a masked element whose incoming gradient is NaN: 0 * NaN instead of 0."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ms.set_context(device_target="CPU")
MASK = Tensor(np.array([True, False]))


def filled(x):
    """Return x with 0 in the place of its first element."""
    return ops.masked_fill(x, MASK, 0.0)


x, sens = Tensor(np.ones(2, np.float32)), Tensor(np.array([np.nan, 1], np.float32))
gradient = ops.GradOperation(sens_param=True)(filled)(x, sens).asnumpy()
print("right" if np.array_equal(gradient, [0, 1]) else f"wrong: {gradient}")
