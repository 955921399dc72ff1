"""GRAPH: one nn.Dropout called twice in a graph."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")


class Twice(nn.Cell):
    """Drop elements of a tensor twice, each time anew."""

    def __init__(self):
        super().__init__()
        self.dropout = nn.Dropout(p=0.5) if "p" in nn.Dropout.__init__.__code__.co_varnames else nn.Dropout(0.5)

    def construct(self, x):
        return self.dropout(x), self.dropout(x + 0.0)


first, second = (one.asnumpy() for one in Twice().set_train()(Tensor(np.ones(4096, np.float32))))
print("wrong: both drop the same elements" if np.array_equal(first, second) else "right")
