"""PYNATIVE: Softmax of 65,520 equal float16 scores."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
result = ops.Softmax()(Tensor(np.zeros((1, 65520), np.float16))).asnumpy().astype(np.float64)
print("right" if abs(result.sum() - 1) < 0.05 else f"wrong: the probabilities add up to {result.sum():.3f}")
