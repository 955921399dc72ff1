"""Cases: products, layout, indexing, normalisation."""

import mindspore as ms
import numpy as np
from draws import RNG, a, a16, b, b16, gradient_of, gradients, half, integers, normal, row, updated
from mindspore import Tensor, nn, ops
from mindspore.ops import operations as P

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
    ("gradient of StridedSlice", lambda x: gradients(lambda y: y[2:30:3, 1:], x), (a,)),
    ("gradient of Concat", lambda x, y: gradients(lambda u, v: ops.concat((u, v), 0), x, y), (a, b)),
]
c, ROWS = integers(48, 32), Tensor(np.int32([[1], [5]]))
PLACES = Tensor(np.argsort(RNG.random((48, 32)), 1)[:, :2].astype(np.int32))
INDEXING = [
    ("Gather", P.Gather(), (a, integers(7, 2, high=48), 0)),
    ("Gather of columns", P.Gather(), (a, integers(7, high=32), 1)),
    ("GatherNd", P.GatherNd(), (a, integers(7, 2, high=32))),
    ("GatherD", P.GatherD(), (a, 1, integers(48, 5, high=32))),
    ("OneHot", P.OneHot(), (integers(9), 8, Tensor(np.float32(1)), Tensor(np.float32(0)))),
    *((f"Sort {down}", P.Sort(1, down), (normal(6, 10, dtype=half),)) for down in (False, True)),
    *((f"Sort of integers {down}", P.Sort(1, down), (integers(6, 10),)) for down in (False, True)),
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
