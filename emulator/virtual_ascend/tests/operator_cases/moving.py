"""Cases: scattering, borders, open shapes, sequences."""

import numpy as np
from draws import a, gradients, integers, normal, positive, updated
from mindspore import Tensor, nn, ops
from mindspore.ops import operations as P

ROWS, PLACES, UPDATES = Tensor(np.int32([1, 5])), Tensor(np.int32([[1], [5]])), positive(2, 32)
TWICE = Tensor(np.int32([1, 1])), Tensor(np.int32([[1], [1]]))


def both(function, *further):
    """Return a function and the gradient of its first input."""
    return lambda x: (function(x, *further), *gradients(lambda y: function(y, *further), x))


def scattered(name, index):
    """Return a function that scatters rows with Scatter, ScatterNd or TensorScatter of this ending."""
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
WIDTHS = ((0, 0), (0, 0), (1, 2), (2, 1))
PADDING = [
    *((f"Pad, {how}", both(nn.Pad(WIDTHS, how)), (normal(2, 3, 4, 5),)) for how in ("SYMMETRIC", "REFLECT")),
    *(
        (layer.__name__, both(layer((2, 1, 1, 2))), (normal(2, 3, 4, 5),))
        for layer in (nn.ReplicationPad2d, nn.ReflectionPad2d, nn.ZeroPad2d)
    ),
    ("Slice and its gradient", both(lambda x: ops.slice(x, (1, 2), (7, 8))), (a,)),
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
