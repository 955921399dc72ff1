"""The same around a `@jit` function with a branch."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
RANDOM = np.random.default_rng(0)




@ms.jit
def exponential(x):
    result = ops.exp(x)
    if x[0] > 1e30:
        result = result + 1
    return result


verdict = "right"
for _ in range(4):
    given, wanted = (RANDOM.random(4).astype(np.float32) for _ in range(2))
    label = Tensor(wanted)

    def loss(x):
        return (exponential(x) * label).sum()  # noqa: B023

    try:
        found = ops.GradOperation()(loss)(Tensor(given)).asnumpy()
    except (RuntimeError, TypeError) as error:
        verdict = f"wrong: {' '.join(str(error).split())[:300]}"
        break
    if not np.allclose(found, np.exp(given) * wanted, rtol=1e-4):
        verdict = f"wrong: {found}"
print(verdict)
