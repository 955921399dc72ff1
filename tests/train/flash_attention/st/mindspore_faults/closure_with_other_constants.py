"""PYNATIVE: the differentiated function holds another tensor at each call, and a primitive that knows its shapes."""

import mindspore as ms
import numpy as np
from _closures import verdict
from mindspore import ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


def bprop(x, out, dout):
    """Return the derivative of the primitive."""
    return (dout * out,)


exponential = ops.Custom(lambda x: np.exp(x), out_shape=[4], out_dtype=ms.float32, func_type="pyfunc", bprop=bprop)
print(verdict(lambda x: exponential(x * 1.0), np.exp))
