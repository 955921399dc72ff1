"""Cases: distances, recurrent layers, optimizers on rows, and what else single functions of layers compute."""

import numpy as np
from draws import a, b, fraction, gradients, integers, normal, positive, row
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops import operations as P
from moving import both

DISTANCES = [
    *(
        (f"cdist, {power}", lambda x, y, power=power: ops.cdist(x, y, power), (normal(2, 4, 3), normal(2, 5, 3)))
        for power in (0.0, 1.0, 2.0, 3.0, float("inf"))
    ),
    *(
        (
            f"gradients of cdist, {power}",
            lambda x, y, power=power: gradients(lambda *t: ops.cdist(*t, power), x, y),
            (normal(2, 4, 3), normal(2, 5, 3)),
        )
        for power in (1.0, 2.0, 3.0)
    ),
    ("LpNorm", ops.LpNorm(axis=1, p=2), (a,)),
    ("LpNorm of all", ops.LpNorm(axis=[0, 1], p=1, keep_dims=True), (a,)),
    ("renorm", lambda x: ops.renorm(x, 2, 0, 5.0), (a,)),
]
FUNCTIONS = [
    ("PReLU", lambda x, w: (P.PReLU()(x, w), *gradients(P.PReLU(), x, w)), (normal(2, 5, 4, 3), positive(5))),
    ("PReLU of one weight", lambda x, w: (P.PReLU()(x, w), *gradients(P.PReLU(), x, w)), (a, positive(1))),
    ("LRN", both(P.LRN(depth_radius=2, bias=1.5, alpha=0.3, beta=0.7)), (normal(2, 7, 4, 3),)),
    ("ReduceStd", P.ReduceStd(axis=1), (a,)),
    ("ReduceStd of all", P.ReduceStd(unbiased=False, keep_dims=True), (a,)),
    ("erfinv", both(ops.erfinv), (fraction,)),
    ("ger", ops.ger, (row, normal(7))),
    ("cummin", lambda x: ops.cummin(x, 0), (a,)),
    ("InTopK", P.InTopK(5), (a, integers(48, high=32))),
    *((name, getattr(P, name)(), (integers(20), integers(20, high=4))) for name in ("LeftShift", "RightShift")),
]


class Squared(nn.Cell):
    """The sum of the squares of all outputs of a recurrent layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def construct(self, x):
        output, _ = self.layer(x)
        return ops.square(output).sum()


def layer_and_gradients(kind, **options):
    """Output of a recurrent layer, and the gradients of its input and weights."""

    def run(x):
        layer = kind(x.shape[-1], 32, **options)
        for index, parameter in enumerate(layer.get_parameters()):
            drawn = np.random.default_rng(index).standard_normal(parameter.shape)
            parameter.set_data(Tensor((0.2 * drawn).astype(np.float32)))
        of_input, of_weights = ops.grad(Squared(layer), 0, layer.trainable_params())(x)
        return (layer(x)[0], of_input, *of_weights)

    return run


RECURRENT = [
    ("LSTM", layer_and_gradients(nn.LSTM), (normal(3, 5, 16),)),
    ("LSTM in both directions", layer_and_gradients(nn.LSTM, num_layers=2, bidirectional=True), (normal(3, 5, 16),)),
    ("GRU", layer_and_gradients(nn.GRU), (normal(3, 5, 9),)),
]


p2, p3, order = positive(48, 32), positive(48, 32), Tensor(np.argsort(b.asnumpy()[:, 0]).astype(np.int32))


def on_rows(primitive, states, *further, count=2):
    """What an optimizer makes of its states, for gradients of so many rows."""
    parameters = [Parameter(value, name=f"state{index}") for index, value in enumerate(states)]
    primitive(*parameters, *further, b[:count], order[:count])
    return tuple(parameters)


ON_ROWS = [
    ("SparseApplyAdagrad", lambda: on_rows(P.SparseApplyAdagrad(0.1), (a, p2)), ()),
    ("SparseApplyFtrl", lambda: on_rows(P.SparseApplyFtrl(0.1, 0.0, 0.01, -0.5), (a, p2, p3)), ()),
    ("SparseApplyRMSProp", lambda: on_rows(P.SparseApplyRMSProp(0.9, 0.8, 1e-3), (a, p2, p3), 0.1, count=48), ()),
]


def steps_on_rows():
    """States, gradient and rows of steps for which MindSpore has nothing on a CPU, or, of AdagradV2, something else."""
    return (
        *(a, p2, p3, b, order),
        *on_rows(P.SparseApplyAdagradV2(0.1, 0.5), (a, p2)),
        *on_rows(P.SparseApplyProximalAdagrad(), (a, p2), 0.1, 0.02, 0.01),
        *on_rows(P.SparseApplyFtrlV2(0.1, 0.02, 0.01, 0.03, -0.5), (a, p2, p3)),
        *on_rows(P.SparseApplyAdadelta(1e-3), (a, p2, p3), 0.1, 0.9, count=48),
    )


x, y = normal(2, 4, 5), normal(2, 4)
ON_CARD = [
    ("steps on rows", steps_on_rows, ()),
    ("diagonals", lambda: (x, y, nn.MatrixDiag()(y), nn.MatrixDiagPart()(x), nn.MatrixSetDiag()(x, y)), ()),
    (
        "soft margin",
        lambda: (
            a,
            b,
            *(part for how in ("none", "mean", "sum") for part in both(P.SoftMarginLoss(how), ops.sign(b))(a)),
        ),
        (),
    ),
]
