"""Mixed precision of level O1, which rewrites classes, around a Cell that returns None."""

import os
import tempfile

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

ms.set_context(device_target="CPU")
os.chdir(tempfile.mkdtemp())  # MindSpore writes the code there


def sum_of(pair):
    """Return the sum of the elements that are not None."""
    return pair[0] if pair[1] is None else pair[0] + pair[1]


class Inner(nn.Cell):
    """The identity, by way of a pair."""

    def construct(self, x):
        return sum_of((x, None))


class Network(nn.Cell):
    """A layer before it."""

    def __init__(self):
        super().__init__()
        self.project, self.inner = nn.Dense(4, 4), Inner()

    def construct(self, x):
        return self.inner(self.project(x))


try:
    shape = ms.amp.auto_mixed_precision(Network(), "O1")(Tensor(np.ones((2, 4), np.float32))).shape
    print("right" if shape == (2, 4) else f"wrong: {shape}")
except SyntaxError as error:
    print(f"wrong: {error.text.strip()}")
