"""PYNATIVE: an array that `Tensor.from_numpy` shares, changed after an operator was called."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
wrong = 0
for _ in range(20):
    array = np.ones((512, 512), np.float32)
    product = ops.matmul(Tensor.from_numpy(array), Tensor.from_numpy(array))
    array[:] = 0  # as a buffer that is filled again
    wrong += float(product.asnumpy().max()) != 512.0
print(f"wrong: {wrong} of 20 products read the array after it had changed" if wrong else "right")
