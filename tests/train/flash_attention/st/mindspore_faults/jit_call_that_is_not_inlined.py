"""PYNATIVE differentiates a `@jit` function in which a Cell is called and not inlined: at every call with new data."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
RANDOM = np.random.default_rng(0)


class Product(nn.Cell):
    """exp(x) * y, as a call."""

    def __init__(self):
        super().__init__()
        self.add_flags(no_inline=True)

    def construct(self, x, y):
        return ops.exp(x) * y


product = Product()


@ms.jit
def function(x, y):
    """Return the compiled function."""
    return product(x, y)


def network(x):
    """Call the function with operations of PYNATIVE around it."""
    return function(x * 2, x * 3) * 2


verdict = "right"
for _ in range(3):
    given = RANDOM.random(4)
    found = ops.grad(network)(Tensor(given.astype(np.float32))).asnumpy()
    if not np.allclose(found, np.exp(2 * given) * (12 * given + 6), rtol=1e-4):
        verdict = f"wrong: {found}"
print(verdict)
