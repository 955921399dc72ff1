"""A float32 softmax that does not write the rows behind one of -inf."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
scores = np.zeros((1, 1, 7, 8), np.float32)
scores[..., 1, :] = -np.inf
used = [(Tensor(np.full(scores.shape, 5, np.float32)) * 1).asnumpy() for _ in range(30)]  # memory that holds 5
del used
found = np.delete(ops.softmax(Tensor(scores), -1).asnumpy()[0, 0], 1, 0)
print("right" if np.allclose(found, 1 / 8) else f"wrong: rows {found[:, 0]} for 0.125")
