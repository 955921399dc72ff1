"""Operators of MindSpore on one device, to be compared with another: operator_cases.py DEVICE FILE.npz

Every case runs in PYNATIVE, so that each operator is compiled and launched by itself.
"""

import sys

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops import operations as P
from mindspore.ops.operations import _grad_ops as G

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


half = np.float16
a, b = normal(48, 32), normal(48, 32)
a16, b16 = normal(48, 32, dtype=half), normal(48, 32, dtype=half)
row = normal(32)
p, q = positive(48, 32), positive(48, 32)
mask = booleans(48, 32)
# By family: name of the case, function, inputs.
ELEMENTWISE = [
    *((name, getattr(P, name)(), (a, b)) for name in ("Add", "Sub", "Mul", "RealDiv", "Maximum", "Minimum")),
    *((f"{name} float16", getattr(P, name)(), (a16, b16)) for name in ("Add", "Sub", "Mul", "RealDiv", "Maximum")),
    *((f"{name} broadcast", getattr(P, name)(), (a, row)) for name in ("Add", "Mul", "Sub")),
    *((name, getattr(P, name)(), (a,)) for name in ("Neg", "Abs", "Exp", "Square", "Sigmoid", "Floor", "Sign")),
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
    ("IsFinite", P.IsFinite(), (Tensor(np.float32([1, np.inf, -np.inf, np.nan])),)),
    ("Select", P.Select(), (mask, a, b)),
    ("MaskedFill", P.MaskedFill(), (a, mask, Tensor(np.float32(-3)))),
    ("AddN", P.AddN(), ((a, b, a),)),
    ("Cast to float16", lambda x: ops.cast(x, ms.float16), (a,)),
    ("Cast to int32", lambda x: ops.cast(x, ms.int32), (Tensor(9 * a.asnumpy()),)),
    ("Cast to bool", lambda x: ops.cast(x, ms.bool_), (integers(48, 32, high=2),)),
    ("clip_by_value", lambda x: ops.clip_by_value(x, Tensor(-0.5), Tensor(0.5)), (a,)),
    ("ReLU", P.ReLU(), (a,)),
    ("GeLU", P.GeLU(), (a,)),
    ("GeLU float16", P.GeLU(), (a16,)),
    ("Tanh", P.Tanh(), (a,)),
    ("SiLU", nn.SiLU(), (a,)),
    ("ZerosLike", P.ZerosLike(), (a,)),
    ("OnesLike", P.OnesLike(), (a,)),
    *((f"gradient of {name}", gradient_of(getattr(P, name)()), (a,)) for name in ("ReLU", "GeLU")),
    *((f"gradient of {name}", gradient_of(getattr(P, name)()), (a,)) for name in ("Tanh", "Sigmoid")),
    *((f"gradient of {name}", gradient_of(getattr(P, name)()), (p,)) for name in ("Sqrt", "Rsqrt")),
    # MindSpore 2.0.0 has no adapter for SiLUGrad, so x * sigmoid(x) is what can be trained.
    ("gradient of x sigmoid(x)", lambda x: gradients(lambda y: y * ops.sigmoid(y), x), (a,)),
    ("gradient of RealDiv", lambda x, y: gradients(P.RealDiv(), x, y), (a, p)),
    ("gradient of Pow", lambda x: gradients(lambda y: ops.pow(y, 3.0), x), (p,)),
]
REDUCTIONS = [
    *((f"{name} {axis}", getattr(P, name)(), (a, axis)) for name in ("ReduceSum", "ReduceMean") for axis in (0, 1, ())),
    *((name, getattr(P, name)(keep_dims=True), (a, -1)) for name in ("ReduceMax", "ReduceMin", "ReduceProd")),
    *((name, getattr(P, name)(), (mask, 1)) for name in ("ReduceAll", "ReduceAny")),
    ("ReduceSum float16", P.ReduceSum(), (a16, 0)),
    ("ArgMaxWithValue", P.ArgMaxWithValue(1), (a,)),
    ("Argmax", P.Argmax(-1), (a,)),
    ("CumSum", P.CumSum(), (a, 1)),
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
    ("gradient of StridedSlice", lambda x: gradients(lambda y: y[2:30:3, 1:], x), (a,)),
    ("gradient of Concat", lambda x, y: gradients(lambda u, v: ops.concat((u, v), 0), x, y), (a, b)),
]
INDEXING = [
    ("Gather", P.Gather(), (a, integers(7, 2, high=48), 0)),
    ("Gather of columns", P.Gather(), (a, integers(7, high=32), 1)),
    ("GatherNd", P.GatherNd(), (a, integers(7, 2, high=32))),
    ("GatherD", P.GatherD(), (a, 1, integers(48, 5, high=32))),
    ("OneHot", P.OneHot(), (integers(9), 8, Tensor(np.float32(1)), Tensor(np.float32(0)))),
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
    ("cross entropy", P.SoftmaxCrossEntropyWithLogits(), (a, Tensor(np.eye(48, 32, dtype=np.float32)))),
    (
        "sparse cross entropy",
        nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
        (a, integers(48, high=32)),
    ),
    ("gradient of Softmax", lambda x: gradients(P.Softmax(), x), (a,)),
    ("gradient of LogSoftmax", lambda x: gradients(P.LogSoftmax(), x), (a,)),
    (
        "gradient of LayerNorm",
        lambda x, gain, shift: gradients(lambda *t: P.LayerNorm(1, 1, 1e-12)(*t)[0], x, gain, shift),
        (a, row, normal(32)),
    ),
    ("clip_by_global_norm", lambda x, y: ops.clip_by_global_norm((x, y), 0.5), (a, b)),
    ("clip_by_norm", nn.ClipByNorm(), (a, Tensor(np.float32(0.5)))),
]
OPTIMIZERS = [
    ("Adam", lambda: step(nn.Adam, (20, 8), (5,), learning_rate=0.1, weight_decay=0.01), ()),
    ("AdamWeightDecay", lambda: step(nn.AdamWeightDecay, (20, 8), (5,), learning_rate=0.1, weight_decay=0.01), ()),
    ("SGD", lambda: step(nn.SGD, (20, 8), (5,), learning_rate=0.1, momentum=0.9, weight_decay=0.01), ()),
    ("SGD nesterov", lambda: step(nn.SGD, (20, 8), learning_rate=0.1, momentum=0.9, nesterov=True), ()),
    ("Momentum", lambda: step(nn.Momentum, (20, 8), (5,), learning_rate=0.1, momentum=0.9), ()),
]
FAMILIES = {
    "elementwise": ELEMENTWISE,
    "indexing": INDEXING,
    "layout": LAYOUT,
    "matmul": MATMUL,
    "normalisation": NORMALISATION,
    "optimizer": OPTIMIZERS,
    "reduce": REDUCTIONS,
}


def arrays(result):
    """All tensors of a result."""
    if isinstance(result, (list, tuple)):
        return [array for part in result for array in arrays(part)]
    return [result.asnumpy()]


def main():
    """Runs all cases and stores the results."""
    device, path = sys.argv[1:3]
    ms.set_context(mode=ms.PYNATIVE_MODE, device_target=device)
    global RNG
    results = {}
    for family, cases in FAMILIES.items():
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
