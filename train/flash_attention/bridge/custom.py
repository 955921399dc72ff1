"""Custom primitives that several threads may call in PYNATIVE, and Python functions as such.

MindSpore keeps what it compiled for an operation and its shapes, and hands each call's tensors over in that one object.
It guards neither against a second thread. Without a lock, two threads that call one operation with equal shapes read
each other's results without a word, mostly at its first call (MindSpore 2.10, also with its own operators that it
compiles so).
"""

from __future__ import annotations

import inspect
import math
import os
import threading

import numpy as np
from mindspore import dtype as mstype
from mindspore import nn, ops

# Held while an operation is handed over, not while it runs: MindSpore runs it later, in a thread of its own. A thread
# may come here again from inside, by an object that is destroyed meanwhile.
ONE_THREAD = threading.RLock()
os.register_at_fork(before=ONE_THREAD.acquire, after_in_parent=ONE_THREAD.release, after_in_child=ONE_THREAD.release)


class Custom(ops.Custom):
    """Hand over a Custom operation, one thread at a time."""

    def __call__(self, *tensors):
        # PYNATIVE calls a primitive and so lands here; a compiled graph contains the operation.
        with ONE_THREAD:
            return super().__call__(*tensors)


def python_function(function, count: int, shape: tuple, dtype):
    """Return a primitive that runs a Python function of `count` NumPy arrays with one result."""

    def call(*arrays):
        return function(*arrays)

    # MindSpore counts the inputs of a primitive by the signature of its function.
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    parameters = [inspect.Parameter(f"x{index}", kind) for index in range(count)]
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return Custom(call, out_shape=[int(size) for size in shape], out_dtype=dtype, func_type="pyfunc")


class PythonResults(nn.Cell):
    """Make a Python function with several results a primitive with one result. Each result has at most 32 bits.

    In PYNATIVE with `recompute()`, MindSpore 2.10 prepares a pyfunc primitive twice. It then expects twice the outputs
    if the primitive has several.
    """

    def __init__(self, function, count: int, shapes: list, dtypes: list):
        super().__init__()
        self.shapes, self.dtypes = tuple(shapes), tuple(dtypes)
        self.ends = tuple(np.cumsum([math.prod(shape) for shape in shapes]).tolist())

        def join(*arrays):
            return np.concatenate([np.ravel(result).astype(np.float32) for result in function(*arrays)])

        self.joined = python_function(join, count, self.ends[-1:], mstype.float32)

    def construct(self, *tensors):
        joined = self.joined(*tensors)
        results, start = (), 0
        for end, shape, dtype in zip(self.ends, self.shapes, self.dtypes):
            results = results + (ops.cast(ops.reshape(joined[start:end], shape), dtype),)
            start = end
        return results
