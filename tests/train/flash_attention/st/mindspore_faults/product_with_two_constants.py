"""GRAPH: a column that is an input times a row and a number that are constants."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

ms.set_context(mode=ms.GRAPH_MODE, device_target="CPU")
COLUMN, ROW = np.array([[1], [0], [1]], np.int32), np.array([[1, 2, 3]], np.int32)


class Network(nn.Cell):
    """Multiply by two constants, one after the other."""

    def __init__(self):
        super().__init__()
        self.row = Tensor(ROW)

    def construct(self, column):
        return column * self.row * 11


found, exact = Network()(Tensor(COLUMN)).asnumpy(), COLUMN * ROW * 11
print("right" if np.array_equal(found, exact) else f"wrong: {found.tolist()}, right is {exact.tolist()}")
