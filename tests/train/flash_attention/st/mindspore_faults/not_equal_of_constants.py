"""GRAPH: NotEqual of Tensors that are constants of the graph."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
MASK, IDS = (np.arange(24) % 5 < 2).astype(np.float32).reshape(4, 6), (np.arange(6) // 3).astype(np.int32)


class Network(nn.Cell):
    """Compare constants of the graph, and an input, by NotEqual."""

    def __init__(self):
        super().__init__()
        self.mask, self.ids, self.not_equal = Tensor(MASK), Tensor(IDS), ops.NotEqual()

    def construct(self, x):
        apart = self.not_equal(ops.expand_dims(self.ids, 1), ops.expand_dims(self.ids, 0))
        hidden, same = self.not_equal(self.mask, 0.0), self.not_equal(x, 0.0)
        return ops.cast(hidden, ms.float32), ops.cast(apart, ms.float32), ops.cast(same, ms.float32)


hidden, apart, same = (one.asnumpy() for one in Network()(Tensor(MASK)))
exact = IDS[:, None] != IDS
if not np.array_equal(same, MASK):
    print("wrong: of an input")
elif np.array_equal(hidden, MASK) and np.array_equal(apart, exact):
    print("right")
else:
    shares = f"{hidden.mean():.2f} and {apart.mean():.2f} of the elements differ"
    print(f"wrong: {shares}, right is {MASK.mean():.2f} and {exact.mean():.2f}")
