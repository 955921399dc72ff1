"""Operators of MindSpore on one device, to be compared with another: operator_cases DEVICE FILE.npz

The cases run in PYNATIVE, so that each operator is compiled and launched by itself. The family "fused" runs in GRAPH:
in this mode MindSpore fuses several operators into one of CANN's. The cases of CARD have no kernel for another device.
"""

import sys

import mindspore as ms
import numpy as np
from cases import CASES
from draws import a, b, half, restart
from graphs import other_difference
from mindspore import Tensor, nn, ops
from mindspore.ops import operations as P
from mindspore.ops.operations import math_ops


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
    ("SplitV", P.SplitV([10, 22], 1, 2), (Tensor(np.arange(96, dtype=np.float32).reshape(3, 32)),)),
    ("dropout", lambda x: nn.Dropout(p=0.25).set_train()(x), (Tensor(np.ones((256, 256), np.float32)),)),
]


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
    for family, cases in {**CASES, **({"card": CARD} if device == "Ascend" else {})}.items():
        ms.set_context(mode=ms.GRAPH_MODE if family == "fused" else ms.PYNATIVE_MODE)
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
