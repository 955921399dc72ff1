"""PYNATIVE: the gradient of cos, from the sixth call with other data on."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


def gradient(x):
    """Return the gradient of the sum of exp(x / 2) * cos(x)."""

    def total(x):
        return (ops.exp(x * 0.5) * ops.cos(x)).sum()

    return ops.grad(total)(Tensor(x)).asnumpy()


wrong = []
for call in range(20):
    given = np.random.default_rng(call).standard_normal((4, 8)).astype(np.float32)
    right = np.exp(given / 2) * (np.cos(given) / 2 - np.sin(given))
    if not np.allclose(gradient(given), right, rtol=1e-4, atol=1e-5):
        wrong.append(call)
print(f"wrong: calls {wrong}" if wrong else "right")
