"""Cases: scattering, segments, blocks of images, borders, diagonals."""

import numpy as np
from draws import a, gradients, integers, normal, positive, updated
from mindspore import Tensor, nn, ops
from mindspore.ops import operations as P

ROWS, PLACES, UPDATES = Tensor(np.int32([1, 5])), Tensor(np.int32([[1], [5]])), positive(2, 32)
TWICE = Tensor(np.int32([1, 1])), Tensor(np.int32([[1], [1]]))


def both(function, *further):
    """A function and the gradient of its first input."""
    return lambda x: (function(x, *further), *gradients(lambda y: function(y, *further), x))


def scattered(name, index):
    """What Scatter, ScatterNd or TensorScatter with such an ending makes of rows."""
    primitive = getattr(P, name)()
    if name.startswith("Tensor"):
        return lambda x, updates: primitive(x, index, updates)
    return lambda x, updates: updated(primitive, x, index, updates)


SCATTERING = [
    *(
        (f"Scatter{name}, rows {index.asnumpy().tolist()}", scattered(f"Scatter{name}", index), (a, UPDATES))
        for name in ("Add", "Div", "Max", "Min", "Mul", "Sub")
        for index in (ROWS, TWICE[0])
    ),
    ("ScatterUpdate", scattered("ScatterUpdate", ROWS), (a, UPDATES)),
    *((f"ScatterNd{name}", scattered(f"ScatterNd{name}", TWICE[1]), (a, UPDATES)) for name in ("Max", "Min")),
    *(
        (f"TensorScatter{name}", scattered(f"TensorScatter{name}", PLACES), (a, UPDATES))
        for name in ("Add", "Max", "Min", "Sub", "Update")
    ),
    *(
        (name, lambda x, v, name=name: getattr(ops, name)(x, v, (4, 0)), (a, UPDATES))
        for name in ("inplace_add", "inplace_sub")
    ),
]
NUMBERS = Tensor(np.int32([0, 1, 1, -1, 3, 3, 0]))
SEGMENTS = [
    *(
        (
            f"unsorted_segment_{name}",
            lambda x, name=name: (getattr(ops, f"unsorted_segment_{name}")(x, NUMBERS, 5),),
            (normal(7, 6),),
        )
        for name in ("max", "min", "prod", "sum")
    ),
    *(
        (
            f"gradient of unsorted_segment_{name}",
            lambda x, name=name: gradients(lambda y: getattr(ops, f"unsorted_segment_{name}")(y, NUMBERS, 5), x),
            (normal(7, 6),),
        )
        for name in ("max", "min", "sum")
    ),
]
BLOCKS = [
    ("SpaceToDepth", both(P.SpaceToDepth(2)), (normal(2, 3, 4, 6),)),
    ("DepthToSpace", both(P.DepthToSpace(2)), (normal(2, 8, 3, 5),)),
    ("SpaceToBatchND", both(P.SpaceToBatchND([2, 3], [[0, 1], [2, 1]])), (normal(2, 3, 5, 6),)),
    ("BatchToSpaceND", both(P.BatchToSpaceND([2, 2], [[0, 1], [1, 0]])), (normal(8, 3, 4, 3),)),
]
WIDTHS = ((0, 0), (0, 0), (1, 2), (2, 1))
PADDING = [
    *((f"Pad, {how}", both(nn.Pad(WIDTHS, how)), (normal(2, 3, 4, 5),)) for how in ("SYMMETRIC", "REFLECT")),
    *(
        (layer.__name__, both(layer((2, 1, 1, 2))), (normal(2, 3, 4, 5),))
        for layer in (nn.ReplicationPad2d, nn.ReflectionPad2d, nn.ZeroPad2d)
    ),
    ("Slice and its gradient", both(lambda x: ops.slice(x, (1, 2), (7, 8))), (a,)),
]
DIAGONALS = [
    ("matrix_diag", ops.matrix_diag, (normal(3, 5),)),
    ("matrix_diag of a band", lambda x: ops.matrix_diag(x, Tensor(np.int32([-1, 1]))), (normal(2, 3, 4),)),
    ("matrix_band_part", lambda x: ops.matrix_band_part(x, 1, 2), (normal(2, 5, 6),)),
]
CHOSEN = Tensor(np.arange(48 * 32).reshape(48, 32) % 3 == 0)
#: Shapes that only the contents tell.
OPEN = [
    ("masked_select", lambda x: ops.masked_select(x, CHOSEN), (a,)),
    ("nonzero", lambda x: ops.nonzero(x > 0), (a,)),
    ("unique", ops.unique, (integers(40, high=9),)),
]
SEQUENCES = [
    ("reverse_sequence", lambda x: ops.reverse_sequence(x, Tensor(np.int32([2, 3, 1, 4])), 1, 0), (normal(4, 5, 3),)),
    ("searchsorted", ops.searchsorted, (Tensor(np.sort(a.asnumpy(), 1)), normal(48, 5))),
    ("searchsorted in one", ops.searchsorted, (Tensor(np.sort(a.asnumpy()[0])), a)),
    ("meshgrid", ops.meshgrid, (normal(3), normal(4))),
]
