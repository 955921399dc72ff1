"""Cases by family, each compared with another device: its name, a function and the inputs."""

import mindspore as ms
import numpy as np
from draws import a, a16, b, b16, booleans, by_name, gradients, half, integers, mask, normal, p, q, row, step, updated
from graphs import FUSED
from mindspore import Tensor, nn, ops
from mindspore.ops import operations as P
from mindspore.ops.operations import _grad_ops as G


def alone(names, *inputs, ending=""):
    """Return a case for each of these primitives."""
    return [(f"{name}{ending}", getattr(P, name)(), inputs) for name in names.split()]


def gradients_of(names, *inputs):
    """Return a case for the gradient of each of these primitives."""
    return [
        (f"gradient of {name}", lambda *given, name=name: gradients(getattr(P, name)(), *given), inputs)
        for name in names.split()
    ]


LARGE, POSITIVE = integers(48, 32, high=99), integers(48, 32, low=1)
DIFFERENT = integers(48, 32, high=9999)
ROWS, ROW_NUMBERS = Tensor(np.int32([[1], [5]])), Tensor(np.int32([1, 5]))
PLACES = Tensor(np.int32([[1, 2], [5, 3]]))
CASES = {
    "activations": [
        *alone("ReLU GeLU", a),
        *alone("GeLU", a16, ending=" float16"),
        *gradients_of("ReLU GeLU", a),
        ("SiLU by name", lambda x: by_name(ops.silu, x), (a,)),
    ],
    "elementwise": [
        *alone("Add Sub Mul RealDiv Maximum Minimum Div Less LessEqual Greater GreaterEqual NotEqual", a, b),
        *alone("Add Sub Mul RealDiv Maximum", a16, b16, ending=" float16"),
        *alone("Add Mul Sub", a, row, ending=" broadcast"),
        *alone("Neg Abs Exp Square Sigmoid Floor Sign Sin Cos Erf Tanh ZerosLike OnesLike Identity", a),
        *alone("Sqrt Rsqrt Log Reciprocal", p),
        *alone("Pow", p, q),
        *alone("LogicalAnd LogicalOr", mask, booleans(48, 32)),
        *alone("LogicalNot", mask),
        *alone("FloorDiv FloorMod Div", LARGE, POSITIVE, ending=" of integers"),
        *alone("Equal BitwiseAnd", integers(48, 32), integers(48, 32)),
        *alone("IsFinite", Tensor(np.float32([1, np.inf, -np.inf, np.nan]))),
        *alone("Select", mask, a, b),
        *alone("MaskedFill", a, mask, Tensor(np.float32(-3))),
        *alone("AddN", (a, b, a)),
        *(
            (name, lambda x, y, name=name: updated(getattr(P, name)(), x, y), (a, b))
            for name in ("AssignAdd", "AssignSub")
        ),
        ("Cast to float16", lambda x: ops.cast(x, ms.float16), (a,)),
        ("Cast to int32", lambda x: ops.cast(x, ms.int32), (Tensor(9 * a.asnumpy()),)),
        ("Cast to bool", lambda x: ops.cast(x, ms.bool_), (integers(48, 32, high=2),)),
        ("clip_by_value", lambda x: ops.clip_by_value(x, Tensor(-0.5), Tensor(0.5)), (a,)),
        ("Div by name", lambda x, y: by_name(lambda z: P.Div()(y, z), x), (p, a)),
        *gradients_of("Tanh Sigmoid", a),
        *gradients_of("Sqrt Rsqrt Reciprocal", p),
    ],
    "indexing": [
        *alone("Gather", a, integers(7, 2, high=48), 0),
        *alone("Gather", a, integers(7, high=32), 1, ending=" of columns"),
        *alone("GatherNd", a, integers(7, 2, high=32)),
        *alone("GatherD", a, 1, integers(48, 5, high=32)),
        *alone("OneHot", integers(9), 8, Tensor(np.float32(1)), Tensor(np.float32(0))),
        *alone("TensorScatterUpdate", a, PLACES, normal(2)),
        *alone("UnsortedSegmentSum", a, integers(48, high=5), 5),
        ("ScatterNdUpdate", lambda x, y: updated(P.ScatterNdUpdate(), x, ROWS, y), (a, normal(2, 32))),
        (
            "ScatterNdUpdate of integers",
            lambda x, y: updated(P.ScatterNdUpdate(), x, ROWS, y),
            (LARGE, integers(2, 32)),
        ),
        ("ScatterUpdate", lambda x, y: updated(P.ScatterUpdate(), x, ROW_NUMBERS, y), (a, normal(2, 32))),
        ("gradient of Gather", lambda x, i: gradients(lambda y: ops.gather(y, i, 0), x), (a, integers(60, high=48))),
        (
            "gradient of GatherD",
            lambda x, i: gradients(lambda y: ops.gather_d(y, 1, i), x),
            (a, integers(48, 5, high=32)),
        ),
    ],
    "layout": [
        *alone("Transpose", normal(2, 3, 4, 5), (0, 2, 1, 3)),
        *alone("Reshape", a, (32, 48)),
        *alone("StridedSlice", a, (1, 2), (40, 30), (3, 2)),
        *alone("Slice", a, (1, 2), (7, 8)),
        *alone("Tile", a, (2, 3)),
        *alone("ExpandDims", a, 1),
        *alone("Fill", ms.float32, (3, 4), 7.0),
        ("Concat", P.Concat(1), ((a, b),)),
        ("Stack", P.Stack(1), ((a, b),)),
        ("Unstack", P.Unstack(0), (normal(3, 4),)),
        ("Split", P.Split(1, 4), (a,)),
        ("slices with one row", lambda x: x[3, 4:], (a,)),
        ("BroadcastTo", P.BroadcastTo((48, 32)), (row,)),
        ("Pad", P.Pad(((1, 2), (3, 4))), (a,)),
        *((name, lambda x, name=name: getattr(ops, name)(x, 2), (a,)) for name in ("tril", "triu")),
        ("gradient of StridedSlice", lambda x: gradients(lambda y: y[2:30:3, 1:], x), (a,)),
        ("gradient of Concat", lambda x, y: gradients(lambda u, v: ops.concat((u, v), 0), x, y), (a, b)),
    ],
    "losses": [
        *alone("SoftmaxCrossEntropyWithLogits", a, Tensor(np.eye(48, 32, dtype=np.float32))),
        (
            "sparse cross entropy",
            nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"),
            (a, integers(48, high=32)),
        ),
    ],
    "matmul": [
        *alone("MatMul", a16, normal(32, 24, dtype=half)),
        ("MatMul transposed", P.MatMul(transpose_b=True), (a16, b16)),
        ("MatMul transposed left", P.MatMul(transpose_a=True), (a16, b16)),
        *alone("MatMul", normal(17, 5, dtype=half), normal(5, 33, dtype=half), ending=" odd"),
        *alone("BatchMatMul", normal(3, 2, 20, 16, dtype=half), normal(3, 2, 16, 20, dtype=half)),
        ("BatchMatMul transposed", P.BatchMatMul(transpose_b=True), (normal(2, 20, 16, dtype=half),) * 2),
        *alone("BiasAdd", a, row),
    ],
    "normalisation": [
        *alone("Softmax LogSoftmax", a),
        *alone("Softmax", a16, ending=" float16"),
        *gradients_of("Softmax LogSoftmax", a),
        ("LayerNorm", P.LayerNorm(begin_norm_axis=1, begin_params_axis=1, epsilon=1e-5), (a, row, normal(32))),
        ("LayerNorm of three axes", nn.LayerNorm((6, 32), begin_norm_axis=1, begin_params_axis=1), (normal(8, 6, 32),)),
        (
            "gradient of LayerNorm",
            lambda x, gain, shift: gradients(lambda *t: P.LayerNorm(1, 1, 1e-12)(*t)[0], x, gain, shift),
            (a, row, normal(32)),
        ),
        ("clip_by_global_norm", lambda x, y: ops.clip_by_global_norm((x, y), 0.5), (a, b)),
    ],
    "optimizer": [
        ("Adam", lambda: step(nn.Adam, (20, 8), (5,), learning_rate=0.1, weight_decay=0.01), ()),
        ("AdamWeightDecay", lambda: step(nn.AdamWeightDecay, (20, 8), (5,), learning_rate=0.1, weight_decay=0.01), ()),
        ("SGD", lambda: step(nn.SGD, (20, 8), (5,), learning_rate=0.1, momentum=0.9, weight_decay=0.01), ()),
        ("SGD nesterov", lambda: step(nn.SGD, (20, 8), learning_rate=0.1, momentum=0.9, nesterov=True), ()),
        ("Momentum", lambda: step(nn.Momentum, (20, 8), (5,), learning_rate=0.1, momentum=0.9), ()),
    ],
    "reduce": [
        *(case for axis in (0, 1, ()) for case in alone("ReduceSum ReduceMean", a, axis, ending=f" {axis}")),
        *((name, getattr(P, name)(keep_dims=True), (a, -1)) for name in ("ReduceMax", "ReduceMin")),
        *alone("ReduceAll ReduceAny", mask, 1),
        *alone("ReduceSum", a16, 0, ending=" float16"),
        ("ArgMaxWithValue", P.ArgMaxWithValue(1), (a,)),
        ("Argmax", P.Argmax(-1), (a,)),
        ("Argmax of integers", P.Argmax(-1), (DIFFERENT,)),
        ("largest of integers", lambda x: x.max(axis=1), (DIFFERENT,)),
        *(
            (f"CumSum {how}", P.CumSum(*how), (a, 1))
            for how in ((False, False), (True, False), (False, True), (True, True))
        ),
        ("gradient of CumSum", lambda x: gradients(lambda y: P.CumSum()(y, 0), x), (a,)),
        ("BiasAddGrad", G.BiasAddGrad(), (a,)),
    ],
    "fused": FUSED,
}
