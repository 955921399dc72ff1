"""Operators of MindSpore on one device, to be compared with another: operator_cases.py DEVICE FILE.npz

The cases run in PYNATIVE, so that each operator is compiled and launched by itself; those of GRAPHS in GRAPH, where
MindSpore makes one of CANN's operators of several. Those of CARD have no kernel for another device.
"""

import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops import operations as P
from mindspore.ops.operations import _grad_ops as G
from mindspore.ops.operations import math_ops

RNG = np.random.default_rng(0)


def normal(*shape, dtype=np.float32):
    """Normal numbers."""
    return Tensor(RNG.standard_normal(shape).astype(dtype))


def positive(*shape, dtype=np.float32):
    """Numbers from 0.5 to 1.5."""
    return Tensor((RNG.random(shape) + 0.5).astype(dtype))


def integers(*shape, low=0, high=8):
    """int32 below `high`."""
    return Tensor(RNG.integers(low, high, shape).astype(np.int32))


def booleans(*shape):
    """True or False."""
    return Tensor(RNG.random(shape) < 0.5)


def gradients(function, *inputs):
    """Of all inputs, for a gradient of the output that is not constant."""
    output = function(*inputs)
    sens = Tensor(np.linspace(-1, 1, output.size).reshape(output.shape).astype(output.asnumpy().dtype))
    return ops.GradOperation(get_all=True, sens_param=True)(lambda *tensors: function(*tensors))(*inputs, sens)


def gradient_of(primitive):
    """The gradient of an operator with one input, as a function."""
    return lambda x: gradients(primitive, x)


def step(optimizer, *shapes, **options):
    """Parameters after two steps."""
    parameters = [Parameter(normal(*shape), name=f"weight{index}") for index, shape in enumerate(shapes)]
    update = optimizer(parameters, **options)
    for _ in range(2):
        update(tuple(normal(*shape) for shape in shapes))
    return tuple(parameters)


def by_name(function, x):
    """The gradient of x times a function of x that has none, of a graph whose constant changes.

    From the third one on MindSpore 2.0 takes all shapes for unknown, and reaches most operators by their names.
    """
    for constant in (Tensor(np.float32(number)) for number in (2, 3, 4)):
        result = ops.GradOperation()(lambda y, constant=constant: y * constant * ops.stop_gradient(function(y)))(x)
    return result


def updated(primitive, target, *rest):
    """What an operator makes of a parameter."""
    parameter = Parameter(target, name="target")
    primitive(parameter, *rest)
    return parameter


half = np.float16
a, b = normal(48, 32), normal(48, 32)
a16, b16 = normal(48, 32, dtype=half), normal(48, 32, dtype=half)
row = normal(32)
p, q = positive(48, 32), positive(48, 32)
mask = booleans(48, 32)
EXTREMES = Tensor(np.float32([1, np.inf, -np.inf, np.nan]))
wide = Tensor(4 * a.asnumpy())
fraction = Tensor((np.float32(1.8) * RNG.random((48, 32)) - 0.9).astype(np.float32))
WITH_ZEROS = Tensor(np.where(mask.asnumpy(), a.asnumpy(), np.float32(0)))
# By family: name of the case, function, inputs.
ELEMENTWISE = [
    *((name, getattr(P, name)(), (a, b)) for name in ("Add", "Sub", "Mul", "RealDiv", "Maximum", "Minimum")),
    *((f"{name} float16", getattr(P, name)(), (a16, b16)) for name in ("Add", "Sub", "Mul", "RealDiv", "Maximum")),
    *((f"{name} broadcast", getattr(P, name)(), (a, row)) for name in ("Add", "Mul", "Sub")),
    *((name, getattr(P, name)(), (a,)) for name in ("Neg", "Abs", "Exp", "Square", "Sigmoid", "Floor", "Sign")),
    *((name, getattr(P, name)(), (a,)) for name in ("Ceil", "Erfc", "Identity", "Rint", "Round", "Tan")),
    *((name, getattr(P, name)(), (a, b)) for name in ("Div", "DivNoNan", "Mod", "SquaredDifference")),
    *((name, getattr(P, name)(), (EXTREMES,)) for name in ("IsFinite", "IsInf", "IsNan")),
    ("AssignAdd", lambda x, y: updated(P.AssignAdd(), x, y), (a, b)),
    ("AssignSub", lambda x, y: updated(P.AssignSub(), x, y), (a, b)),
    ("DivNoNan by zero", P.DivNoNan(), (a, Tensor(np.zeros(32, np.float32)))),
    ("Div of integers", P.Div(), (integers(48, 32, high=99), integers(48, 32, low=1))),
    ("Invert", P.Invert(), (Tensor(RNG.integers(-99, 99, (48, 32)).astype(np.int16)),)),
    ("Xlogy", P.Xlogy(), (p, q)),
    *((name, getattr(P, name)(), (p,)) for name in ("Sqrt", "Rsqrt", "Log", "Reciprocal", "Log1p", "Expm1")),
    *((name, getattr(P, name)(), (a, b)) for name in ("Less", "LessEqual", "Greater", "GreaterEqual", "NotEqual")),
    *((name, getattr(P, name)(), (mask, booleans(48, 32))) for name in ("LogicalAnd", "LogicalOr")),
    ("Pow", P.Pow(), (p, q)),
    ("Sin", P.Sin(), (a,)),
    ("Cos", P.Cos(), (a,)),
    ("Erf", P.Erf(), (a,)),
    ("FloorDiv", P.FloorDiv(), (integers(48, 32, high=99), integers(48, 32, low=1))),
    ("FloorMod", P.FloorMod(), (integers(48, 32, high=99), integers(48, 32, low=1))),
    ("Equal", P.Equal(), (integers(48, 32), integers(48, 32))),
    ("LogicalNot", P.LogicalNot(), (mask,)),
    ("Select", P.Select(), (mask, a, b)),
    ("MaskedFill", P.MaskedFill(), (a, mask, Tensor(np.float32(-3)))),
    ("AddN", P.AddN(), ((a, b, a),)),
    ("Cast to float16", lambda x: ops.cast(x, ms.float16), (a,)),
    ("Cast to int32", lambda x: ops.cast(x, ms.int32), (Tensor(9 * a.asnumpy()),)),
    ("Cast to bool", lambda x: ops.cast(x, ms.bool_), (integers(48, 32, high=2),)),
    ("clip_by_value", lambda x: ops.clip_by_value(x, Tensor(-0.5), Tensor(0.5)), (a,)),
    ("Tanh", P.Tanh(), (a,)),
    ("Div by name", lambda x, y: by_name(lambda z: P.Div()(y, z), x), (p, a)),
    ("ZerosLike", P.ZerosLike(), (a,)),
    ("OnesLike", P.OnesLike(), (a,)),
    *((f"gradient of {name}", gradient_of(getattr(P, name)()), (a,)) for name in ("Tanh", "Sigmoid")),
    *((f"gradient of {name}", gradient_of(getattr(P, name)()), (p,)) for name in ("Sqrt", "Rsqrt", "Reciprocal")),
    *((name, getattr(P, name)(), (a,)) for name in ("Sinh", "Cosh", "Atan", "Asinh", "Trunc")),
    *((name, getattr(P, name)(), (fraction,)) for name in ("ACos", "Asin", "Atanh")),
    ("Acosh", P.Acosh(), (Tensor(1 + p.asnumpy()),)),
    ("Inv", P.Inv(), (p,)),
    ("Atan2", P.Atan2(), (a, b)),
    ("TruncateMod", P.TruncateMod(), (a, p)),
    *((name, getattr(P, name)(), (integers(48, 32), integers(48, 32))) for name in ("BitwiseAnd", "BitwiseOr")),
    ("BitwiseXor", P.BitwiseXor(), (integers(48, 32), integers(48, 32))),
    ("LogicalXor", P.LogicalXor(), (mask, booleans(48, 32))),
    *((name, getattr(P, name)(), (WITH_ZEROS, p)) for name in ("MulNoNan", "Xdivy")),
    ("MulNoNan of nothing", P.MulNoNan(), (Tensor(np.full((48, 32), np.nan, np.float32)), Tensor(np.float32(0)))),
    ("Lerp", P.Lerp(), (a, b, Tensor(np.float32(0.3)))),
    *((name, getattr(P, name)(), (a, b, p, Tensor(np.float32([0.5])))) for name in ("Addcdiv", "Addcmul")),
    *((f"gradient of {name}", gradient_of(getattr(P, name)()), (a,)) for name in ("Abs", "Atan", "Asinh", "Sinh")),
    *((f"gradient of {name}", gradient_of(getattr(P, name)()), (fraction,)) for name in ("ACos", "Asin")),
    ("gradient of Acosh", gradient_of(P.Acosh()), (Tensor(1 + p.asnumpy()),)),
    ("gradient of Inv", gradient_of(P.Inv()), (p,)),
    *(
        (f"gradient of {name} of {what}", lambda x, y, name=name: gradients(getattr(P, name)(), x, y), (WITH_ZEROS, y))
        for name in ("Maximum", "Minimum")
        for what, y in (("rows", row), ("equal numbers", Tensor(np.zeros((48, 32), np.float32))))
    ),
    ("gradient of RealDiv", lambda x, y: gradients(P.RealDiv(), x, y), (a, p)),
    ("gradient of Pow", lambda x: gradients(lambda y: ops.pow(y, 3.0), x), (p,)),
]
ACTIVATIONS = [
    *((name, getattr(P, name)(), (a,)) for name in ("ReLU", "GeLU", "FastGeLU", "Softplus", "Elu", "SeLU", "Mish")),
    *((name, getattr(P, name)(), (wide,)) for name in ("HSigmoid", "HSwish", "ReLU6", "Softsign")),
    ("GeLU float16", P.GeLU(), (a16,)),
    ("CeLU", P.CeLU(0.5), (a,)),
    ("HShrink", P.HShrink(0.3), (a,)),
    ("SoftShrink", P.SoftShrink(0.3), (a,)),
    ("SiLU", nn.SiLU(), (a,)),
    ("SiLU by name", lambda x: by_name(ops.silu, x), (a,)),
    *((f"gradient of {name}", gradient_of(getattr(P, name)()), (a,)) for name in ("ReLU", "GeLU", "FastGeLU", "Elu")),
    *((f"gradient of {name}", gradient_of(getattr(P, name)()), (wide,)) for name in ("HSigmoid", "HSwish", "ReLU6")),
    ("gradient of Softplus", gradient_of(P.Softplus()), (a,)),
    ("gradient of HShrink", gradient_of(P.HShrink(0.3)), (a,)),
    ("gradient of SoftShrink", gradient_of(P.SoftShrink(0.3)), (a,)),
    # MindSpore 2.0.0 has no adapter for SiLUGrad, so x * sigmoid(x) is what can be trained.
    ("gradient of x sigmoid(x)", lambda x: gradients(lambda y: y * ops.sigmoid(y), x), (a,)),
]
REDUCTIONS = [
    *((f"{name} {axis}", getattr(P, name)(), (a, axis)) for name in ("ReduceSum", "ReduceMean") for axis in (0, 1, ())),
    *((name, getattr(P, name)(keep_dims=True), (a, -1)) for name in ("ReduceMax", "ReduceMin", "ReduceProd")),
    *((name, getattr(P, name)(), (mask, 1)) for name in ("ReduceAll", "ReduceAny")),
    ("ReduceSum float16", P.ReduceSum(), (a16, 0)),
    ("ArgMaxWithValue", P.ArgMaxWithValue(1), (a,)),
    ("Argmax", P.Argmax(-1), (a,)),
    ("Argmax of integers", P.Argmax(-1), (integers(48, 32, high=9999),)),
    ("Argmin", P.Argmin(), (a,)),
    ("ArgMinWithValue", P.ArgMinWithValue(1), (a,)),
    ("largest of integers", lambda x: x.max(axis=1), (integers(48, 32, high=9999),)),
    ("L2Loss", P.L2Loss(), (a,)),
    ("SquareSumAll", P.SquareSumAll(), (a, b)),
    *(
        (f"CumSum {how}", P.CumSum(*how), (a, 1))
        for how in ((False, False), (True, False), (False, True), (True, True))
    ),
    ("gradient of CumSum", gradient_of(lambda x: P.CumSum()(x, 0)), (a,)),
    *((f"CumProd {how}", P.CumProd(*how), (p, 1)) for how in ((False, False), (True, False), (False, True))),
    ("BiasAddGrad", G.BiasAddGrad(), (a,)),
]
MATMUL = [
    ("MatMul", P.MatMul(), (a16, normal(32, 24, dtype=half))),
    ("MatMul transposed", P.MatMul(transpose_b=True), (a16, b16)),
    ("MatMul transposed left", P.MatMul(transpose_a=True), (a16, b16)),
    ("MatMul odd", P.MatMul(), (normal(17, 5, dtype=half), normal(5, 33, dtype=half))),
    ("BatchMatMul", P.BatchMatMul(), (normal(3, 2, 20, 16, dtype=half), normal(3, 2, 16, 20, dtype=half))),
    ("BatchMatMul transposed", P.BatchMatMul(transpose_b=True), (normal(2, 20, 16, dtype=half),) * 2),
    ("BiasAdd", P.BiasAdd(), (a, row)),
]
LAYOUT = [
    ("Transpose", P.Transpose(), (normal(2, 3, 4, 5), (0, 2, 1, 3))),
    ("Reshape", P.Reshape(), (a, (32, 48))),
    ("Concat", P.Concat(1), ((a, b),)),
    ("Stack", P.Stack(1), ((a, b),)),
    ("Unstack", P.Unstack(0), (normal(3, 4),)),
    ("Split", P.Split(1, 4), (a,)),
    ("StridedSlice", P.StridedSlice(), (a, (1, 2), (40, 30), (3, 2))),
    ("Slice", P.Slice(), (a, (1, 2), (7, 8))),
    ("slices with one row", lambda x: x[3, 4:], (a,)),
    ("Tile", P.Tile(), (a, (2, 3))),
    ("BroadcastTo", P.BroadcastTo((48, 32)), (row,)),
    ("ExpandDims", P.ExpandDims(), (a, 1)),
    ("Pad", P.Pad(((1, 2), (3, 4))), (a,)),
    ("Fill", P.Fill(), (ms.float32, (3, 4), 7.0)),
    ("ReverseV2", P.ReverseV2([1]), (a,)),
    *((name, lambda x, name=name: getattr(ops, name)(x, 2), (a,)) for name in ("tril", "triu")),
    ("LinSpace", lambda: P.LinSpace()(Tensor(np.float32(-1)), Tensor(np.float32(3)), 7), ()),
    ("Diag", P.Diag(), (row,)),
    ("DiagPart", P.DiagPart(), (normal(9, 9),)),
    ("Trace", P.Trace(), (normal(5, 7),)),
    ("gradient of StridedSlice", lambda x: gradients(lambda y: y[2:30:3, 1:], x), (a,)),
    ("gradient of Concat", lambda x, y: gradients(lambda u, v: ops.concat((u, v), 0), x, y), (a, b)),
]
shares, labels = (
    Tensor(np.clip(RNG.random((48, 32)), 0.05, 0.95).astype(np.float32)),
    Tensor(RNG.random((48, 32)).astype(np.float32)),
)
ROWS_AND_WEIGHTS = a, integers(48, high=32), positive(32)
c, ROWS = integers(48, 32), Tensor(np.int32([[1], [5]]))
PLACES = Tensor(np.argsort(RNG.random((48, 32)), 1)[:, :2].astype(np.int32))
INDEXING = [
    ("Gather", P.Gather(), (a, integers(7, 2, high=48), 0)),
    ("Gather of columns", P.Gather(), (a, integers(7, high=32), 1)),
    ("GatherNd", P.GatherNd(), (a, integers(7, 2, high=32))),
    ("GatherD", P.GatherD(), (a, 1, integers(48, 5, high=32))),
    ("OneHot", P.OneHot(), (integers(9), 8, Tensor(np.float32(1)), Tensor(np.float32(0)))),
    *((f"Sort {down}", P.Sort(1, down), (normal(6, 10, dtype=half),)) for down in (False, True)),
    ("TopK", P.TopK(), (a16, 5)),  # of float32 MindSpore makes float16 for an Ascend
    ("ScatterNdUpdate", lambda x, y: updated(P.ScatterNdUpdate(), x, ROWS, y), (a, normal(2, 32))),
    ("ScatterNdUpdate of integers", lambda x, y: updated(P.ScatterNdUpdate(), x, ROWS, y), (c, integers(2, 32))),
    ("TensorScatterUpdate", P.TensorScatterUpdate(), (a, Tensor(np.int32([[1, 2], [5, 3]])), normal(2))),
    ("TensorScatterAdd", P.TensorScatterAdd(), (a, Tensor(np.int32([[1, 2], [1, 2]])), normal(2))),
    ("ScatterNd", P.ScatterNd(), (Tensor(np.int32([[3], [3], [0]])), normal(3, 5), (6, 5))),
    *(
        (name, lambda x, y, name=name: updated(getattr(P, name)(), x, ROWS, y), (a, normal(2, 32)))
        for name in ("ScatterNdAdd", "ScatterNdSub")
    ),
    ("ScatterAdd", lambda x, y: updated(P.ScatterAdd(), x, Tensor(np.int32([1, 1])), y), (a, normal(2, 32))),
    ("ScatterElements", lambda x, i, y: ops.tensor_scatter_elements(x, i, y, 1), (a, PLACES, normal(48, 2))),
    ("gradient of TopK", lambda x: gradients(lambda y: ops.topk(y, 5)[0], x), (a16,)),
    ("UnsortedSegmentSum", P.UnsortedSegmentSum(), (a, integers(48, high=5), 5)),
    ("gradient of Gather", lambda x, i: gradients(lambda y: ops.gather(y, i, 0), x), (a, integers(60, high=48))),
    ("gradient of GatherD", lambda x, i: gradients(lambda y: ops.gather_d(y, 1, i), x), (a, integers(48, 5, high=32))),
]
NORMALISATION = [
    ("Softmax", P.Softmax(), (a,)),
    ("Softmax float16", P.Softmax(), (a16,)),
    ("LogSoftmax", P.LogSoftmax(), (a,)),
    ("LayerNorm", P.LayerNorm(begin_norm_axis=1, begin_params_axis=1, epsilon=1e-5), (a, row, normal(32))),
    ("LayerNorm of three axes", nn.LayerNorm((6, 32), begin_norm_axis=1, begin_params_axis=1), (normal(8, 6, 32),)),
    ("gradient of Softmax", lambda x: gradients(P.Softmax(), x), (a,)),
    ("gradient of LogSoftmax", lambda x: gradients(P.LogSoftmax(), x), (a,)),
    (
        "gradient of LayerNorm",
        lambda x, gain, shift: gradients(lambda *t: P.LayerNorm(1, 1, 1e-12)(*t)[0], x, gain, shift),
        (a, row, normal(32)),
    ),
    ("L2Normalize", P.L2Normalize(1), (a,)),
    ("gradient of L2Normalize", gradient_of(P.L2Normalize(1)), (a,)),
    ("clip_by_global_norm", lambda x, y: ops.clip_by_global_norm((x, y), 0.5), (a, b)),
    ("clip_by_norm", nn.ClipByNorm(), (a, Tensor(np.float32(0.5)))),
]
LOSSES = [
    ("cross entropy", P.SoftmaxCrossEntropyWithLogits(), (a, Tensor(np.eye(48, 32, dtype=np.float32)))),
    (
        "sparse cross entropy",
        nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
        (a, integers(48, high=32)),
    ),
    *(
        (f"binary cross entropy, {how}", P.BinaryCrossEntropy(how), (shares, labels, p))
        for how in ("none", "mean", "sum")
    ),
    ("sigmoid cross entropy", P.SigmoidCrossEntropyWithLogits(), (a, labels)),
    ("BCEWithLogitsLoss", P.BCEWithLogitsLoss("mean"), (a, labels, p, q)),
    *((f"KLDivLoss, {how}", P.KLDivLoss(how), (a, labels)) for how in ("none", "sum", "batchmean")),
    *((f"SmoothL1Loss, {how}", P.SmoothL1Loss(0.5, how), (a, b)) for how in ("none", "mean", "sum")),
    *((f"NLLLoss, {how}", P.NLLLoss(how), (a, integers(48, high=32), positive(32))) for how in ("none", "mean", "sum")),
    (
        "gradient of binary cross entropy",
        lambda x: gradients(lambda y: P.BinaryCrossEntropy()(y, labels, p), x),
        (shares,),
    ),
    (
        "gradient of sigmoid cross entropy",
        lambda x: gradients(lambda y: P.SigmoidCrossEntropyWithLogits()(y, labels), x),
        (a,),
    ),
    *(
        (f"gradient of KLDivLoss, {how}", lambda x, how=how: gradients(lambda y: P.KLDivLoss(how)(y, labels), x), (a,))
        for how in ("none", "batchmean")
    ),
    *(
        (
            f"gradient of SmoothL1Loss, {how}",
            lambda x, how=how: gradients(lambda y: P.SmoothL1Loss(0.5, how)(y, b), x),
            (a,),
        )
        for how in ("none", "mean")
    ),
    *(
        (
            f"gradient of NLLLoss, {how}",
            lambda x, i, w, how=how: gradients(lambda y: P.NLLLoss(how)(y, i, w)[0], x),
            ROWS_AND_WEIGHTS,
        )
        for how in ("none", "mean")
    ),
]
pixels, small = normal(2, 5, 9, 8), normal(2, 16, 6, 6)


def convolution(filters, **options):
    """Convolution and its gradients, of images and filters."""

    def run(x):
        primitive = P.Conv2D(filters.shape[0], filters.shape[2:], **options)
        return (primitive(x, filters), *gradients(primitive, x, filters))

    return run


def both(function, *further):
    """A function and its gradients."""
    return lambda x: (function(x, *further), *gradients(lambda y: function(y, *further), x))


def batch_norm(training):
    """Of images, with gain, shift and running numbers: result and gradients of the first three."""

    def run(x, gain, shift, mean, variance):
        kept = [Parameter(value, name=name) for name, value in (("mean", mean), ("variance", variance))]
        norm = P.BatchNorm(training, 1e-5, 0.1)

        def result(*tensors):
            return norm(*tensors, *kept)[0]

        return (result(x, gain, shift), *gradients(result, x, gain, shift))

    return run


IMAGES = [
    ("Conv2D", convolution(normal(7, 5, 3, 2)), (pixels,)),
    ("Conv2D same", convolution(normal(7, 5, 3, 3), pad_mode="same", stride=2), (pixels,)),
    ("Conv2D padded", convolution(normal(20, 5, 3, 3), pad_mode="pad", pad=(1, 2, 0, 3), dilation=2), (pixels,)),
    ("Conv2D of two groups", convolution(normal(8, 8, 3, 3), group=2), (small,)),
    ("Conv2D of each channel", convolution(normal(16, 1, 3, 3), group=16, pad_mode="same"), (small,)),
    *((f"MaxPool {how}", both(P.MaxPool(3, 2, how)), (pixels,)) for how in ("valid", "same")),
    *((f"AvgPool {how}", both(P.AvgPool(3, 2, how)), (pixels,)) for how in ("valid", "same")),
    *(
        (f"BatchNorm {name}", batch_norm(training), (small, positive(16), normal(16), normal(16), positive(16)))
        for name, training in (("in training", True), ("in use", False))
    ),
    (
        "ResizeBilinear",
        both(lambda x: ops.interpolate(x, size=(12, 5), mode="bilinear", align_corners=True)),
        (pixels,),
    ),
    *(
        (f"ResizeNearestNeighbor {how}", both(P.ResizeNearestNeighbor((12, 5), how)), (pixels,))
        for how in (False, True)
    ),
]
OPTIMIZERS = [
    ("Adam", lambda: step(nn.Adam, (20, 8), (5,), learning_rate=0.1, weight_decay=0.01), ()),
    ("AdamWeightDecay", lambda: step(nn.AdamWeightDecay, (20, 8), (5,), learning_rate=0.1, weight_decay=0.01), ()),
    ("SGD", lambda: step(nn.SGD, (20, 8), (5,), learning_rate=0.1, momentum=0.9, weight_decay=0.01), ()),
    ("SGD nesterov", lambda: step(nn.SGD, (20, 8), learning_rate=0.1, momentum=0.9, nesterov=True), ()),
    ("ApplyGradientDescent", lambda: updated(P.ApplyGradientDescent(), a, 0.1, b), ()),
    ("Adagrad", lambda: step(nn.Adagrad, (20, 8), (5,), learning_rate=0.1), ()),
    # Without l1, of which MindSpore's kernel for the CPU makes something else than its documents say.
    ("FTRL", lambda: step(nn.FTRL, (20, 8), (5,), learning_rate=0.1, l2=0.01), ()),
    ("Momentum", lambda: step(nn.Momentum, (20, 8), (5,), learning_rate=0.1, momentum=0.9), ()),
]

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
    """Of a softmax with a scale before it."""
    return mul(scale, mul(y, ops.sub(gradient, kept_sum(mul(y, gradient), -1))))


def difference(y, gradient):
    """Of a gradient and its sum, weighted with y."""
    return ops.sub(gradient, kept_sum(mul(y, gradient), -1))


def other_difference(y, gradient):
    """The same with the factors the other way round."""
    return ops.sub(gradient, kept_sum(mul(gradient, y), -1))


def product_and_sum(x, y, z):
    """A sum of two gradients, for an input and for a gain; fused where it is 768 wide."""
    both = ops.addn((x, y))
    return mul(z, both), total(mul(y, both), 0)


def norm(x, zero, one, least):
    """What clipping by norm makes of a sum of squares."""
    larger = ops.greater(x, zero)
    return ops.maximum(ops.select(larger, ops.sqrt(ops.select(larger, x, one)), x), least)


def split_heads(x, weight):
    """A projection, in heads."""
    return transpose(reshape(product(x, weight), (2, 32, 2, 16)), (0, 2, 1, 3))


def join_heads(x, weight):
    """A projection of heads."""
    return product(reshape(transpose(x, (0, 2, 1, 3)), (64, 32)), weight)


def clipped(x, low, high):
    """Between two numbers."""
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


def weights(*shape):
    """Of a convolution."""
    return Tensor(0.1 * normal(*shape).asnumpy())


class Images(nn.Cell):
    """Loss of a network for images, as large in both directions."""

    def __init__(self):
        super().__init__()
        self.stem = nn.Conv2d(3, 16, 3, stride=2, weight_init=weights(16, 3, 3, 3))
        self.norm, self.pool = nn.BatchNorm2d(16), nn.MaxPool2d(2, 2)
        self.channels = nn.Conv2d(16, 16, 3, group=16, weight_init=weights(16, 1, 3, 3))
        self.groups = nn.Conv2d(16, 32, 1, group=2, weight_init=weights(32, 8, 1, 1))
        self.average, self.parts = nn.AvgPool2d(2, 2), P.AdaptiveAvgPool2D((3, 2))
        self.patches = nn.Conv2d(32, 24, 2, 2, "valid", has_bias=True, weight_init=weights(24, 32, 2, 2))

    def construct(self, images):
        x = ops.relu(self.norm(self.stem(images)))
        x = self.pool(x + self.channels(x))
        x = ops.relu(self.groups(x))
        larger = ops.interpolate(x, size=(7, 9), mode="bilinear")  # with half_pixel_centers
        results = self.patches(x), self.average(x), self.parts(x), larger
        return sum([ops.square(result).mean() for result in results])


def trained(network, *inputs):
    """Losses of three steps, and the parameters behind them."""
    optimizer = nn.Momentum(network.trainable_params(), 0.01, 0.9)
    step = nn.TrainOneStepCell(network, optimizer).set_train()
    return (*(step(*inputs) for _ in range(3)), *network.get_parameters())


def squared_trace(x):
    """Of a matrix."""
    return ops.square(P.Trace()(x))


NETWORKS = [
    ("images", lambda x: trained(Images(), x), (normal(4, 3, 16, 16),)),
    ("gradient of Trace", ops.GradOperation()(Function(squared_trace)), (normal(5, 7),)),
]
FUSED = [
    ("gradient of a scaled softmax", Function(softmax_gradient), (a, b, row)),
    ("difference", Function(difference), (a, b)),
    ("product and sum", Function(product_and_sum), tuple(normal(16, 768) for _ in range(3))),
    ("norm", Function(norm), (p, Tensor(np.zeros((48, 32), np.float32)), Tensor(np.ones((48, 32), np.float32)), q)),
    ("heads", Function(split_heads), (normal(64, 32, dtype=half), normal(32, 32, dtype=half))),
    ("heads joined", Function(join_heads), (normal(2, 2, 32, 16, dtype=half), normal(32, 32, dtype=half))),
    ("clipped", Function(clipped), (a, Tensor(np.float32(-0.5)), Tensor(np.float32(0.5)))),
    ("gradients of LayerNorm", LayerNormGradients(), (a, row, normal(32), b)),
]


def status(number):
    """The overflow status after `number` was doubled, as the operators of both kinds tell it, and cleared."""
    state, order = P.NPUAllocFloatStatus()(), Tensor(np.zeros(8, np.int32))
    P.NPUClearFloatStatus()(state)
    ops.add(number, number).asnumpy()
    P.NPUGetFloatStatus()(state)
    told = state.asnumpy(), math_ops.NPUGetFloatStatusV2()(order).asnumpy()
    math_ops.NPUClearFloatStatusV2()(order)
    return tuple(map(Tensor, (*told, math_ops.NPUGetFloatStatusV2()(order).asnumpy())))


CARD = [
    ("other difference", ms.ms_function(other_difference), (a, b)),
    ("overflow", status, (Tensor(np.full(4, 60000, half)),)),
    ("no overflow", status, (Tensor(np.full(4, 100, half)),)),
    ("Lamb", lambda: step(nn.Lamb, (20, 8), learning_rate=0.1, weight_decay=0.01), ()),
    ("Roll", lambda x: ops.roll(x, 3, 0), (Tensor(np.arange(12, dtype=np.float32)),)),
    ("SplitV", P.SplitV([10, 22], 1, 2), (Tensor(np.arange(96, dtype=np.float32).reshape(3, 32)),)),
    ("StandardNormal", P.StandardNormal(), ((256, 256),)),
    ("UniformReal", P.UniformReal(), ((256, 256),)),
    ("dropout", lambda x: nn.Dropout(p=0.25).set_train()(x), (Tensor(np.ones((256, 256), np.float32)),)),
]
FAMILIES = {
    "activations": ACTIVATIONS,
    "elementwise": ELEMENTWISE,
    "images": IMAGES,
    "indexing": INDEXING,
    "layout": LAYOUT,
    "losses": LOSSES,
    "matmul": MATMUL,
    "normalisation": NORMALISATION,
    "optimizer": OPTIMIZERS,
    "reduce": REDUCTIONS,
    "fused": FUSED,
    "networks": NETWORKS,
}
GRAPHS = "fused", "networks"


def arrays(result):
    """All tensors of a result."""
    if isinstance(result, (list, tuple)):
        return [array for part in result for array in arrays(part)]
    return [result.asnumpy()]


def main():
    """Runs all cases and stores the results."""
    device, path = sys.argv[1:3]
    ms.set_context(device_target=device)
    global RNG
    results = {}
    for family, cases in {**FAMILIES, **({"card": CARD} if device == "Ascend" else {})}.items():
        ms.set_context(mode=ms.GRAPH_MODE if family in GRAPHS else ms.PYNATIVE_MODE)
        for name, function, inputs in cases:
            RNG = np.random.default_rng(1)
            try:
                found = arrays(function(*inputs))
            except Exception as error:
                raise RuntimeError(f"{family}: {name}") from error
            for index, array in enumerate(found):
                results[f"{family}: {name}: {index}"] = array
    np.savez(path, **results)


if __name__ == "__main__":
    main()
