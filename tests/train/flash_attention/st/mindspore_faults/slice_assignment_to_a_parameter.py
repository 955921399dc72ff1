"""GRAPH: an assignment to a range of a Parameter inside `construct`, read after the call."""

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn

ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")


class Cache(nn.Cell):
    """Write rows of a cache by an assignment to a range."""

    def __init__(self):
        super().__init__()
        self.cache = Parameter(Tensor(np.zeros((4, 3), np.float32)), name="cache")

    def construct(self, row):
        self.cache[1:2] = row
        return self.cache.sum()


cell = Cache()
inside = float(cell(Tensor(np.ones(3, np.float32))).asnumpy())
after = float(cell.cache.asnumpy().sum())
print("right" if (inside, after) == (3.0, 3.0) else f"wrong: {inside} in the call, {after} after it")
