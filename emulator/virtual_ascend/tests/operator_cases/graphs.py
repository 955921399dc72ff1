"""Cases that run in GRAPH: operators that MindSpore fuses."""

import numpy as np
from draws import a, b, half, normal, p, q, row
from mindspore import Tensor, nn, ops
from mindspore.ops import operations as P

mul, transpose, reshape, product = P.Mul(), P.Transpose(), P.Reshape(), P.MatMul(transpose_b=True)
kept_sum, total = P.ReduceSum(keep_dims=True), P.ReduceSum()


class Function(nn.Cell):
    """A function as a network."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def construct(self, *tensors):
        return self.function(*tensors)


def softmax_gradient(y, gradient, scale):
    """Return the gradient of a softmax with a scale before it."""
    return mul(scale, mul(y, ops.sub(gradient, kept_sum(mul(y, gradient), -1))))


def difference(y, gradient):
    """Return the difference of a gradient and its sum, weighted with y."""
    return ops.sub(gradient, kept_sum(mul(y, gradient), -1))


def other_difference(y, gradient):
    """Return the difference with the factors the other way round."""
    return ops.sub(gradient, kept_sum(mul(gradient, y), -1))


def product_and_sum(x, y, z):
    """Sum two gradients, for an input and for a gain. The graph is fused if it is 768 wide."""
    both = ops.addn((x, y))
    return mul(z, both), total(mul(y, both), 0)


def product_plus(x, y, z):
    """Return the sum of a product and another tensor."""
    return ops.add(mul(x, y), z)


def norm(x, zero, one, least):
    """Return the norm from a sum of squares, as clipping by norm does."""
    larger = ops.greater(x, zero)
    return ops.maximum(ops.select(larger, ops.sqrt(ops.select(larger, x, one)), x), least)


def split_heads(x, weight):
    """Project x, and split the result into heads."""
    return transpose(reshape(product(x, weight), (2, 32, 2, 16)), (0, 2, 1, 3))


def join_heads(x, weight):
    """Join the heads of a tensor, and project them."""
    return product(reshape(transpose(x, (0, 2, 1, 3)), (64, 32)), weight)


def clipped(x, low, high):
    """Clip between two numbers."""
    return ops.maximum(ops.minimum(x, high), low)


class Bert(nn.Cell):
    """A function in a scope of this name: MindSpore 2.0 fuses a product and a sum nowhere else."""

    def __init__(self, function):
        super().__init__()
        self.bert = Function(function)

    def construct(self, *tensors):
        return self.bert(*tensors)


class LayerNormGradients(nn.Cell):
    """Gradients of input, gain and shift."""

    def __init__(self):
        super().__init__()
        self.norm, self.gradients = Function(P.LayerNorm(1, 1, 1e-12)), ops.GradOperation(get_all=True, sens_param=True)

    def construct(self, x, gain, shift, sens):
        def output(*tensors):
            return self.norm(*tensors)[0]

        return self.gradients(output)(x, gain, shift, sens)


FUSED = [
    ("gradient of a scaled softmax", Function(softmax_gradient), (a, b, row)),
    ("difference", Function(difference), (a, b)),
    ("product and sum", Function(product_and_sum), tuple(normal(16, 768) for _ in range(3))),
    ("norm", Function(norm), (p, Tensor(np.zeros((48, 32), np.float32)), Tensor(np.ones((48, 32), np.float32)), q)),
    ("heads", Function(split_heads), (normal(64, 32, dtype=half), normal(32, 32, dtype=half))),
    ("heads joined", Function(join_heads), (normal(2, 2, 32, 16, dtype=half), normal(32, 32, dtype=half))),
    ("clipped", Function(clipped), (a, Tensor(np.float32(-0.5)), Tensor(np.float32(0.5)))),
    ("product plus", Bert(product_plus), (a, b, row)),
    ("gradients of LayerNorm", LayerNormGradients(), (a, row, normal(32), b)),
]
