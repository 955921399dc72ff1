"""Operators of MindSpore on one device, to be compared with another: operator_cases DEVICE FILE.npz

The cases run in PYNATIVE, so that each operator is compiled and launched by itself. The cases of GRAPHS run in GRAPH:
in this mode MindSpore fuses several operators into one of CANN's. The cases of CARD have no kernel for another device.
"""

import sys

import mindspore as ms
import numpy as np
from draws import a, b, half, restart, step
from elementwise import ACTIVATIONS, ELEMENTWISE, REDUCTIONS
from graphs import FUSED, other_difference
from layers import FUNCTIONS, ON_CARD
from mindspore import Tensor, nn, ops
from mindspore.ops import operations as P
from mindspore.ops.operations import math_ops
from moving import OPEN, PADDING, SCATTERING, SEQUENCES
from tensors import INDEXING, LAYOUT, MATMUL, NORMALISATION
from training import IMAGES, LOSSES, OPTIMIZERS


def status(number):
    """Return the overflow status of doubling `number`, from both kinds of operators, and clear it."""
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
    *ON_CARD,
    ("Roll", lambda x: ops.roll(x, 3, 0), (Tensor(np.arange(12, dtype=np.float32)),)),
    ("SplitV", P.SplitV([10, 22], 1, 2), (Tensor(np.arange(96, dtype=np.float32).reshape(3, 32)),)),
    ("StandardNormal", P.StandardNormal(), ((256, 256),)),
    ("UniformReal", P.UniformReal(), ((256, 256),)),
    ("dropout", lambda x: nn.Dropout(p=0.25).set_train()(x), (Tensor(np.ones((256, 256), np.float32)),)),
]
FAMILIES = {
    "activations": ACTIVATIONS,
    "elementwise": ELEMENTWISE,
    "functions": FUNCTIONS,
    "images": IMAGES,
    "indexing": INDEXING,
    "layout": LAYOUT,
    "losses": LOSSES,
    "matmul": MATMUL,
    "normalisation": NORMALISATION,
    "open shapes": OPEN,
    "optimizer": OPTIMIZERS,
    "padding": PADDING,
    "reduce": REDUCTIONS,
    "scattering": SCATTERING,
    "sequences": SEQUENCES,
    "fused": FUSED,
}
GRAPHS = ("fused",)


def arrays(result):
    """Return all tensors of a result."""
    if isinstance(result, (list, tuple)):
        return [array for part in result for array in arrays(part)]
    return [result.asnumpy()]


def main():
    """Run all cases and store the results."""
    device, path = sys.argv[1:3]
    ms.set_context(device_target=device)
    results = {}
    for family, cases in {**FAMILIES, **({"card": CARD} if device == "Ascend" else {})}.items():
        ms.set_context(mode=ms.GRAPH_MODE if family in GRAPHS else ms.PYNATIVE_MODE)
        for name, function, inputs in cases:
            restart()
            try:
                found = arrays(function(*inputs))
            except Exception as error:
                raise RuntimeError(f"{family}: {name}") from error
            for index, array in enumerate(found):
                results[f"{family}: {name}: {index}"] = array
    np.savez(path, **results)


if __name__ == "__main__":
    main()
