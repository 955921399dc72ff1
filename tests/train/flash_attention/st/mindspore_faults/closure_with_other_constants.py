"""PYNATIVE: the differentiated function holds another tensor at each call; a primitive in it knows its shapes."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
RANDOM = np.random.default_rng(0)


def bprop(x, out, dout):
    """The derivative of the primitive."""
    return (dout * out,)


exponential = ops.Custom(lambda x: np.exp(x), out_shape=[4], out_dtype=ms.float32, func_type="pyfunc", bprop=bprop)
verdict = "right"
for _ in range(4):
    given, wanted = (RANDOM.random(4).astype(np.float32) for _ in range(2))
    label = Tensor(wanted)

    def loss(x):
        return (exponential(x * 1.0) * label).sum()  # noqa: B023

    try:
        found = ops.GradOperation()(loss)(Tensor(given)).asnumpy()
    except (RuntimeError, TypeError) as error:
        verdict = f"wrong: {' '.join(str(error).split())[:300]}"
        break
    if not np.allclose(found, np.exp(given) * wanted, rtol=1e-4):
        verdict = f"wrong: {found}"
print(verdict)
