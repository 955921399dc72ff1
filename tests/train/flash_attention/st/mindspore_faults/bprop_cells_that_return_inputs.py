"""PYNATIVE: a Cell with `bprop` hands on its inputs, in two layers of one shape; weight gradients of what follows."""

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn, ops

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
RANDOM = np.random.default_rng(0)


class Guard(nn.Cell):
    """Hand on its inputs, with a bprop."""

    def construct(self, x, y):
        return x, y

    def bprop(self, x, y, out, dout):
        return dout[0], dout[1]


class Product(nn.Cell):
    """A product and a sum, with a bprop."""

    def construct(self, x, y):
        return x * y, x + y

    def bprop(self, x, y, out, dout):
        return dout[0] * y, dout[0] * x


class Layer(nn.Cell):
    """A layer of both Cells, and a projection behind them."""

    def __init__(self):
        super().__init__()
        self.guard, self.product = Guard(), Product()
        self.dense = nn.Dense(4, 4, has_bias=False).to_float(ms.float16)

    def construct(self, x):
        x, y = self.guard(x, x)
        return x + self.dense(self.product(x, y)[0])


network = nn.SequentialCell([Layer(), Layer()])
weights = [RANDOM.normal(0, 0.3, (4, 4)).astype(np.float16).astype(np.float32) for _ in range(2)]
for parameter, weight in zip(network.trainable_params(), weights):
    parameter.set_data(Tensor(weight))
tokens = RANDOM.normal(size=(3, 4)).astype(np.float16)
gradient = ops.GradOperation(get_by_list=True, sens_param=True)(network, ms.ParameterTuple(network.trainable_params()))
found = [one.asnumpy() for one in gradient(Tensor(tokens), Tensor(np.ones_like(tokens)))]

first = tokens.astype(np.float64)
second = first + first**2 @ weights[0].T
ones = np.ones_like(first)
d_second = ones + 2 * second * (ones @ weights[1])
exact = d_second.T @ first**2, ones.T @ second**2
near = [np.allclose(one, wanted, rtol=0.02, atol=0.05) for one, wanted in zip(found, exact)]
print("right" if all(near) else f"wrong: {found[0][0]} in a weight gradient, right is {exact[0][0]}")
