"""A graph: GradOperation with `sens_param` of a Cell that has inputs with defaults, some not given."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")


class Sum(nn.Cell):
    """A sum of what is there."""

    def construct(self, x, y=None, z=None):
        return x * 2 if y is None else x + y


cell = Sum()


@ms.jit
def gradient(x, d_output):
    """Return the gradient of the Cell."""
    return ops.GradOperation(sens_param=True)(cell)(x, d_output)


ones = np.ones(3, np.float32)
try:
    found = gradient(Tensor(ones), Tensor(ones)).asnumpy()
    print("right" if np.array_equal(found, 2 * ones) else f"wrong: {found}")
except (RuntimeError, TypeError) as error:
    print(f"wrong: {' '.join(str(error).split())[:300]}")
