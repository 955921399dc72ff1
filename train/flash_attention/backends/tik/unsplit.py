"""Integer arithmetic that MindSpore 2.0 does not split over the devices of a graph.

There MindSpore splits every operation by the strategy of its primitive, and by the first axis without one. Operators of
Python and primitives of modules have none. So the arithmetic is recorded, and each operation gets a primitive of its
own that splits nothing. To MindSpore all devices compute the same; in truth each takes its own part at the start.
"""

from __future__ import annotations

import functools
import linecache
import operator
import types
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
    """Run arithmetic on tensors of which every device has its own.

        results = cell(*tensors)  # a tuple, if there are several

    Args:
        make: make(xp) -> the arithmetic, a function of arrays of `xp`, see `kernels.tik.varlen`.
        shapes: of the tensors, which are int32.
        shard: of the call.
    """

    def __init__(self, make: Callable[[Any], Callable], shapes: tuple, shard: Shard):
        super().__init__()
        record = _Record(shard, shapes)
        # A Reshape takes an input of the Cell around it for a tensor that is split.
        results = make(record)(*[record.minimum(tensor, NO_LIMIT) for tensor in record.tensors])
        _give_construct(self, record, results if isinstance(results, tuple) else (results,))


def _give_construct(cell: nn.Cell, record: _Record, results: tuple) -> None:
    """Give a Cell the recorded arithmetic as its `construct`, with a line for each step.

    MindSpore reads the text of a `construct`. A loop over steps would be a graph of its own for each of them, and the
    time to join these graphs grows faster than the square of their number.
    """
    names = {id(one): f"tensor_{place}" for place, one in enumerate(record.tensors)}
    for place, one in enumerate(record.constants):
        names[id(one)] = f"self.constant_{place}"
        setattr(cell, f"constant_{place}", Tensor(one.array))
    lines = ["def construct(self, " + ", ".join(names[id(one)] for one in record.tensors) + "):"]
    for place, (result, primitive, inputs, more, together) in enumerate(record.steps):
        given = ", ".join(names[id(one)] for one in inputs)
        for number, one in enumerate(more):
            setattr(cell, f"more_{place}_{number}", one)
            given += f", self.more_{place}_{number}"
        setattr(cell, f"primitive_{place}", primitive)
        names[id(result)] = f"result_{place}"
        lines.append(f"    result_{place} = self.primitive_{place}({f'({given},)' if together else given})")
    lines.append("    return " + ", ".join(names[id(one)] for one in results))
    text = "\n".join(lines) + "\n"
    file = f"<unsplit {hash(text)}>"
    linecache.cache[file] = len(text), None, text.splitlines(True), file
    space: dict = {"__name__": __name__}
    exec(compile(text, file, "exec"), space)
    cell.construct = types.MethodType(space["construct"], cell)


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
        tensors: numbers that the cell is called with.
        constants: numbers without an operation.
        steps: (result, primitive, its inputs, further arguments, whether it takes a tuple).
    """

    minimum: Callable

    def __init__(self, shard: Shard, shapes: tuple):
        self._shard = shard
        self.tensors = tuple(_Number(self, np.zeros(shape, np.int32)) for shape in shapes)
        self.constants: list[_Number] = []
        self.steps: list[tuple] = []
        for name, primitive in _FUNCTIONS.items():
            setattr(self, name, functools.partial(self._call, name, primitive))

    def array(self, values: Any) -> _Number:
        self.constants.append(_Number(self, np.array(values, np.int32)))
        return self.constants[-1]

    def array_of(self, one: Any) -> Any:
        return one.array if isinstance(one, _Number) else np.int32(one)

    def step(self, primitive, inputs, array: np.ndarray, more: tuple = (), together: bool = False) -> _Number:
        """Add a step, with an array as its result shows it. Its primitive splits nothing."""
        inputs = tuple(one if isinstance(one, _Number) else self.array(one) for one in inputs)
        if not isinstance(primitive, ops.Reshape):
            self._shard.glue(primitive, *((None,) * one.array.ndim for one in inputs))
        result = _Number(self, array)
        self.steps.append((result, primitive, inputs, more, together))
        return result

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

    def smallest(self, one: _Number) -> _Number:
        return self._of_rows(ops.ReduceMin(), one, host_integers.smallest(one.array))

    def largest(self, one: _Number) -> _Number:
        return self._of_rows(ops.ReduceMax(), one, host_integers.largest(one.array))

    def _of_rows(self, primitive: ops.Primitive, one: _Number, array: np.ndarray) -> _Number:
        return self.step(primitive, (self._cast(one, mstype.float32, np.float32),), array, (1,))

    def count_true(self, one: _Number) -> _Number:
        return self.as_int(self._of_rows(ops.ReduceSum(), one, host_integers.count_true(one.array).astype(np.float32)))

    def first_true(self, one: _Number) -> _Number:
        wide = self._cast(one, mstype.float32, np.float32)
        return self.step(ops.Argmax(1, mstype.int32), (wide,), host_integers.first_true(one.array))

    def stack(self, numbers: tuple) -> _Number:
        return self.step(ops.Stack(1), numbers, np.stack([one.array for one in numbers], 1), together=True)

    def concatenate(self, numbers: tuple) -> _Number:
        return self.step(ops.Concat(0), numbers, np.concatenate([one.array for one in numbers]), together=True)


class Redistributed(nn.Cell):
    """Hand on a tensor of a sharded graph in the layout of the kernels.

    MindSpore redistributes a tensor directly before the primitive that needs another layout. The kernels stand inside a
    Cell with a `bprop`, which gets the inputs of the Cell from before the redistribution. So these two primitives stand
    outside. On a device they only name another shape.
    """

    def __init__(self, shard: Shard, axes: tuple):
        super().__init__()
        self.expand, self.squeeze = shard.glue(ops.ExpandDims(), axes), shard.glue(ops.Squeeze(0), (None, *axes))

    def construct(self, tensor):
        return self.squeeze(self.expand(tensor, 0))


class OwnParts(nn.Cell):
    """Take a device's parts of tensors, as int32 without gradient.

    Args:
        shapes: of the parts.
        axes: of each tensor, see `strategy.axes_of`.
        shard: of the call.
    """

    def __init__(self, shapes: tuple, axes: tuple, shard: Shard):
        super().__init__()
        self.shapes, self.shard = shapes, shard
        self.parts = nn.CellList([_OwnPart(*one, shard) for one in zip(shapes, axes)])

    def construct(self, *tensors):
        result = ()
        for part, tensor in zip(self.parts, tensors):
            result = result + (part(tensor),)
        return result


class _OwnPart(nn.Cell):
    def __init__(self, shape: tuple, axes: tuple, shard: Shard):
        super().__init__()
        self.cast, self.arriving = shard.glue(ops.Cast(), axes), Redistributed(shard, axes)
        self.take: tuple = ()
        for axis, (size, whole) in enumerate(zip(shape, shard.whole(shape, axes))):
            if whole > size:
                numbers = shard.part(np.arange(whole, dtype=np.int32), axes[axis : axis + 1])
                take = shard.glue(ops.Gather(), (None,) * len(shape), (None,))
                self.take = (*self.take, (take, Tensor(numbers), axis))

    def construct(self, tensor):
        tensor = self.arriving(self.cast(tensor, mstype.int32))  # a Cast from int32 goes away
        for take, numbers, axis in self.take:
            tensor = take(tensor, numbers, axis)
        return ops.stop_gradient(tensor)
