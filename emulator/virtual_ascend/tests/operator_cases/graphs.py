"""Cases that run in GRAPH: operators that MindSpore fuses."""

import numpy as np
from draws import a, b, half, normal, row
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


def difference(y, gradient):
    """Return the difference of a gradient and its sum, weighted with y."""
    return ops.sub(gradient, kept_sum(mul(y, gradient), -1))


def other_difference(y, gradient):
    """Return the difference with the factors the other way round."""
    return ops.sub(gradient, kept_sum(mul(gradient, y), -1))


def sum_of_squares(x):
    """Return the sum of all squares, as clipping of gradients takes it."""
    return total(ops.square(x), ())


def split_heads(x, weight):
    """Project x, and split the result into heads."""
    return transpose(reshape(product(x, weight), (2, 32, 2, 16)), (0, 2, 1, 3))


def join_heads(x, weight):
    """Join the heads of a tensor, and project them."""
    return product(reshape(transpose(x, (0, 2, 1, 3)), (64, 32)), weight)


def clipped(x, low, high):
    """Clip between two numbers."""
    return ops.maximum(ops.minimum(x, high), low)


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
    ("difference", Function(difference), (a, b)),
    ("sum of squares", Function(sum_of_squares), (a,)),
    ("heads", Function(split_heads), (normal(64, 32, dtype=half), normal(32, 32, dtype=half))),
    ("heads joined", Function(join_heads), (normal(2, 2, 32, 16, dtype=half), normal(32, 32, dtype=half))),
    ("clipped", Function(clipped), (a, Tensor(np.float32(-0.5)), Tensor(np.float32(0.5)))),
    ("gradients of LayerNorm", LayerNormGradients(), (a, row, normal(32), b)),
]
