"""Differentiate in PYNATIVE a `@jit` function whose primitive's `bprop` needs its input."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


def bprop(x, out, dout):
    """Return the derivative of the primitive."""
    return (dout * ops.exp(x),)


exponential = ops.Custom(lambda x: np.exp(x), out_shape=[3], out_dtype=ms.float32, func_type="pyfunc", bprop=bprop)


@ms.jit
def function(x):
    """Return the compiled function."""
    return exponential(x * 2)


given = np.array([0.5, 1.0, 1.5], np.float32)
found = ops.GradOperation()(function)(Tensor(given)).asnumpy()
exact = 2 * np.exp(2 * given)
print("right" if np.allclose(found, exact, rtol=1e-4) else f"wrong: {found}, right is {exact}")
