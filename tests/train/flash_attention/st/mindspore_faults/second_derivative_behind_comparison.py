"""The second derivative, in a graph, of a function whose mask compares what is differentiated."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, ops

ms.set_context(device_target="CPU")
total = ops.ReduceSum()


def cubes(x):
    """Return the sum of x ** 3 over elements below 0.5."""
    return total(ops.masked_fill(x * x, x > 0.5, 0.0) * x)


gradient = ops.grad(cubes, 0)


def norm(x):
    """Return the squared length of the gradient: 9 x ** 4, whose derivative is 36 x ** 3."""
    return total(gradient(x) ** 2)


try:
    second = ms.jit(ops.grad(norm, 0))(Tensor(np.array([1.0, 0.25], np.float32))).asnumpy()
    print("right" if np.allclose(second, [0, 36 * 0.25**3]) else f"wrong: {second}")
except TypeError as error:
    print(f"wrong: {str(error).splitlines()[0]}")
