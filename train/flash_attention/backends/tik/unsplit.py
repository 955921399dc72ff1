"""Integer arithmetic that MindSpore 2.0 does not split over the devices of a graph.

There MindSpore splits every operation by the strategy of its primitive, and by the first axis without one. Operators of
Python and primitives of modules have none. So the arithmetic is recorded, and each operation gets a primitive of its
own that splits nothing. To MindSpore all devices compute the same; in truth each takes its own part at the start.
"""

from __future__ import annotations

import functools
import operator
from typing import Any, Callable

import numpy as np
from mindspore import Tensor, nn, ops
from mindspore import dtype as mstype

from flash_attention.kernels.tik import host_integers
from flash_attention.sharding.shard import Shard

NO_LIMIT = 2**31 - 1

_OPERATORS = {
    "add": ops.Add,
    "sub": ops.Sub,
    "mul": ops.Mul,
    "floordiv": ops.FloorDiv,
    "eq": ops.Equal,
    "ne": ops.NotEqual,
    "lt": ops.Less,
    "le": ops.LessEqual,
    "gt": ops.Greater,
    "ge": ops.GreaterEqual,
}
_FUNCTIONS = {
    "minimum": ops.Minimum,
    "maximum": ops.Maximum,
    "where": ops.Select,
    "logical_and": ops.LogicalAnd,
    "logical_or": ops.LogicalOr,
}


class Unsplit(nn.Cell):
    """Run arithmetic on a tensor of which every device has its own.

        result = cell(tensor)

    Args:
        make: make(xp) -> the arithmetic, a function of an array of `xp`, see `kernels.tik.varlen`.
        shape: of the tensor, which is int32.
        shard: of the call.
    """

    def __init__(self, make: Callable[[Any], Callable], shape: tuple, shard: Shard):
        super().__init__()
        record = _Record(shard, np.zeros(shape, np.int32))
        # A Reshape takes an input of the Cell around it for a tensor that is split.
        make(record)(record.minimum(record.tensor, NO_LIMIT))
        self.constants = tuple(Tensor(one.array) for one in record.constants)
        self.steps = nn.CellList(
            [_Step(primitive, record.places(inputs), *more) for primitive, inputs, *more in record.steps]
        )

    def construct(self, tensor):
        values = (tensor,) + self.constants
        for step in self.steps:
            values = values + (step(values),)
        return values[len(values) - 1]


class _Step(nn.Cell):
    """Run a primitive on values: one by one with further arguments, or as a tuple."""

    def __init__(self, primitive: ops.Primitive, places: tuple[int, ...], more: tuple, together: bool):
        super().__init__()
        self.primitive, self.places, self.more, self.together = primitive, places, more, together

    def construct(self, values):
        given = ()
        for place in self.places:
            given = given + (values[place],)
        if self.together:
            return self.primitive(given)
        return self.primitive(*(given + self.more))


class _Number:
    """An array of a record. It has the values for a tensor of zeros; operators add a step."""

    __array_ufunc__ = None  # NumPy's arrays leave operators to this class

    def __init__(self, record: _Record, array: np.ndarray):
        self.record, self.array = record, array


def _operator(primitive: Callable, function: Callable, swapped: bool) -> Callable:
    def run(self: _Number, other: Any) -> _Number:
        pair = (other, self) if swapped else (self, other)
        return self.record.step(primitive(), pair, function(*map(self.record.array_of, pair)))

    return run


for _name, _primitive in _OPERATORS.items():
    setattr(_Number, f"__{_name}__", _operator(_primitive, getattr(operator, _name), False))
    if _name in ("add", "sub", "mul"):
        setattr(_Number, f"__r{_name}__", _operator(_primitive, getattr(operator, _name), True))


class _Record:
    """An `xp` that records operations, with the names of `host_integers`.

    Attributes:
        tensor: number that the cell is called with.
        constants: numbers without an operation.
        steps: (primitive, its inputs, further arguments, whether it takes a tuple).
    """

    minimum: Callable

    def __init__(self, shard: Shard, tensor: np.ndarray):
        self._shard, self.tensor = shard, _Number(self, tensor)
        self.constants: list[_Number] = []
        self.steps: list[tuple] = []
        self._results: list[_Number] = []
        for name, primitive in _FUNCTIONS.items():
            setattr(self, name, functools.partial(self._call, name, primitive))

    def array(self, values: Any) -> _Number:
        self.constants.append(_Number(self, np.array(values, np.int32)))
        return self.constants[-1]

    def array_of(self, one: Any) -> Any:
        return one.array if isinstance(one, _Number) else np.int32(one)

    def places(self, numbers: tuple) -> tuple[int, ...]:
        """Return the places of numbers among the tensor, constants and results of steps."""
        order = {id(one): place for place, one in enumerate((self.tensor, *self.constants, *self._results))}
        return tuple(order[id(one)] for one in numbers)

    def step(self, primitive, inputs, array: np.ndarray, more: tuple = (), together: bool = False) -> _Number:
        """Add a step, with an array as its result shows it. Its primitive splits nothing."""
        inputs = tuple(one if isinstance(one, _Number) else self.array(one) for one in inputs)
        if not isinstance(primitive, ops.Reshape):
            self._shard.glue(primitive, *((None,) * one.array.ndim for one in inputs))
        self.steps.append((primitive, inputs, more, together))
        self._results.append(_Number(self, array))
        return self._results[-1]

    def _call(self, name: str, primitive: Callable, *inputs: _Number) -> _Number:
        return self.step(primitive(), inputs, getattr(host_integers, name)(*map(self.array_of, inputs)))

    def _cast(self, one: _Number, dtype: Any, kind: type) -> _Number:
        return self.step(ops.Cast(), (one,), one.array.astype(kind), (dtype,))

    def as_int(self, one: _Number) -> _Number:
        return self._cast(one, mstype.int32, np.int32)

    def reshape(self, one: _Number, shape: tuple) -> _Number:
        return self.step(ops.Reshape(), (one,), np.reshape(one.array, shape), (shape,))

    def take(self, one: _Number, numbers: _Number, axis: int) -> _Number:
        return self.step(ops.Gather(), (one, numbers), np.take(one.array, numbers.array, axis), (axis,))

    def cumsum(self, one: _Number, axis: int) -> _Number:
        return self.step(ops.CumSum(), (one,), host_integers.cumsum(one.array, axis), (axis,))

    def scatter(self, places: _Number, values: _Number, count: int) -> _Number:
        array = host_integers.scatter(places.array, values.array, count)
        return self.step(ops.UnsortedSegmentSum(), (values, places), array, (count,))

    def count_true(self, one: _Number) -> _Number:
        wide = self._cast(one, mstype.float32, np.float32)
        return self.as_int(self.step(ops.ReduceSum(), (wide,), wide.array.sum(1), (1,)))

    def first_true(self, one: _Number) -> _Number:
        wide = self._cast(one, mstype.float32, np.float32)
        return self.step(ops.Argmax(1, mstype.int32), (wide,), host_integers.first_true(one.array))

    def stack(self, numbers: tuple) -> _Number:
        return self.step(ops.Stack(1), numbers, np.stack([one.array for one in numbers], 1), together=True)

    def concatenate(self, numbers: tuple) -> _Number:
        return self.step(ops.Concat(0), numbers, np.concatenate([one.array for one in numbers]), together=True)


class OwnPart(nn.Cell):
    """Take a device's part of a tensor: a tuple of int32 without gradient.

    Args:
        shape: of the part.
        axes: of the tensor, see `strategy.axes_of`.
        shard: of the call.
    """

    def __init__(self, shape: tuple, axes: tuple, shard: Shard):
        super().__init__()
        self.cast = shard.glue(ops.Cast(), axes)
        self.take: tuple = ()
        for axis, (size, whole) in enumerate(zip(shape, shard.whole(shape, axes))):
            if whole > size:
                numbers = shard.part(np.arange(whole, dtype=np.int32), axes[axis : axis + 1])
                take = shard.glue(ops.Gather(), (None,) * len(shape), (None,))
                self.take = (*self.take, (take, Tensor(numbers), axis))

    def construct(self, tensor):
        tensor = self.cast(tensor, mstype.int32)
        for take, numbers, axis in self.take:
            tensor = take(tensor, numbers, axis)
        return (ops.stop_gradient(tensor),)
