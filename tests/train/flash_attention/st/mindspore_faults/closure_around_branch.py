"""PYNATIVE: a closure around another tensor at each call, and a `@jit` function with a branch in it."""

import mindspore as ms
import numpy as np
from _closures import verdict
from mindspore import ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


@ms.jit
def exponential(x):
    """Compute exp beside a branch that is never taken."""
    result = ops.exp(x)
    if x[0] > 1e30:
        result = result + 1
    return result


print(verdict(exponential, np.exp))
