"""PYNATIVE: tensors of operations that had not run when a Cell raised an exception."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


class Refused(nn.Cell):
    """A Cell that raises an exception."""

    def construct(self, x):
        raise TypeError("no")


x = Tensor(np.ones((256, 256), np.float32))
lost = 0
for _ in range(20):
    parts = [x[:1] for _ in range(20)]
    try:
        Refused()(x)
    except TypeError:
        try:
            parts[-1].asnumpy()
        except RuntimeError as error:
            lost, message = lost + 1, str(error).splitlines()[0]
print(f"wrong: {lost} of 20: {message}" if lost else "right")
