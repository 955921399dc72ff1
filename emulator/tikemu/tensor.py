"""Tensors and views of them (core.md 2.1 to 2.5)."""

from __future__ import annotations

from typing import Any, Union

from . import ir
from .dtypes import BITS, INTEGERS, check_dtype, is_float, size_of
from .errors import TikAlignError, TikIndexError, TikParamError, TikUnsupportedArgumentError, TikUnsupportedError
from .expr import (
    Expr,
    InputScalar,
    Loadable,
    Scalar,
    as_int,
    assignable,
    deeper,
    integer_node,
    operation,
)
from .location import fail
from .nodes import as_number, difference, exact_quotient
from .recorder import Scope

Extent = Union[int, Expr]


class Tensor(Loadable):
    """A tensor, or a view of one: made by ``tik_instance.Tensor`` and by indexing, not by hand.

    Attributes:
        dtype: element type.
        shape: tuple of ints; run-time extents are Scalars or Exprs.
        size: number of elements.
        scope: the scope constant.
        name: name of the tensor (a view has the name of its tensor).
        buffer_size: bytes that the view spans when it is contiguous.
        offset: elements (of ``dtype``) between the start of the tensor's memory and the start of the view.
    """

    __slots__ = ("dtype", "shape", "_info", "_offset", "_strides", "_contiguous", "_whole", "_lowered")

    _kind = "tensor"

    def __init__(
        self,
        info: ir.TensorInfo,
        scope: Scope,
        dtype: str,
        shape: tuple[Extent, ...],
        offset: Extent,
        strides: tuple[Extent, ...],
        contiguous: bool,
        whole: bool,
    ) -> None:
        self.dtype, self.shape = dtype, shape
        self._info, self._scope, self._offset, self._strides = info, scope, offset, strides
        self._contiguous = contiguous  # elements follow each other in row-major order
        self._whole = whole  # covers the whole allocation
        self._lowered: ir.View | None = None

    @classmethod
    def whole(cls, info: ir.TensorInfo, scope: Scope, shape: tuple[Extent, ...]) -> Tensor:
        """The tensor that covers an allocation."""
        return cls(info, scope, info.dtype, shape, 0, row_major(shape), True, True)

    @property
    def _node(self) -> ir.View:
        view = self._lowered
        if view is None:
            view = self._lowered = ir.View(
                self._info, self.dtype, _lower(self._offset), lower_shape(self.shape), lower_shape(self._strides)
            )
        return view

    @property
    def scope(self) -> str:
        return self._info.scope

    @property
    def name(self) -> str:
        return self._info.name

    @property
    def _label(self) -> str:
        return self.name

    @property
    def size(self) -> Extent:
        return product(self.shape)

    @property
    def buffer_size(self) -> Extent:
        return self.size * size_of(self.dtype)

    @property
    def offset(self) -> Extent:
        return self._offset

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.dtype}, {self.shape}, {self.scope})"

    def __eq__(self, other: Any) -> Any:
        return self._compare("==", other, self is other)

    def __ne__(self, other: Any) -> Any:
        return self._compare("!=", other, self is not other)

    __hash__ = object.__hash__
    __iter__ = None

    def _compare(self, op: str, other: Any, identity: bool) -> Any:
        """Elements compare by value; whole tensors, and other objects, as Python compares objects."""
        if self is other:
            return identity
        elements = isinstance(other, Tensor) and self._is_element and other._is_element
        if elements or isinstance(other, Expr) or as_number(other) is not None:
            return operation(op, self, other)
        return identity

    @property
    def _is_element(self) -> bool:
        return all(type(extent) is int and extent == 1 for extent in self.shape)

    def _load(self) -> Scalar:
        """The element, loaded at this point of the program into a hidden Scalar (D33b).

        Raises:
            TikParamError: the tensor has more than one element.
            TikUnsupportedArgumentError: it is not in the Unified Buffer.
        """
        self._require_alive()
        if not self._is_element:
            fail(
                TikParamError,
                f"only one element of a tensor can take part in an expression or a condition, tensor {self.name!r} has "
                f"the shape {self.shape} here; index it, or read the element into a Scalar with set_as",
            )
        recorder = self._scope.recorder
        uid = recorder.uid()
        variable = ir.Variable(f"{self.name}_element{uid}", self.dtype, "scalar", uid)
        value: Any = assignable(recorder, self, self.dtype, f"an expression with tensor {self.name!r}")
        recorder.record_load(variable, value)
        return Scalar(variable, recorder.scope, self.dtype == "float16")

    def _as_source(self, dtype: str, what: str) -> ir.View:
        if self._info.memory != "UB":
            fail(
                TikUnsupportedArgumentError,
                f"{what}: on Ascend 910 a value can be read only from a tensor in the "
                f"Unified Buffer (scope_ubuf), tensor {self.name!r} is in {self.scope}",
            )
        if BITS[self.dtype] != BITS[dtype] and (is_float(self.dtype) or is_float(dtype)):
            self._scope.recorder.warn(
                f"{what} of {dtype} is set to an element of tensor {self.name!r} of {self.dtype}; tikemu converts "
                "the number, which no document describes (elements of equal width are copied bit by bit)"
            )
        return self._node

    # ------------------------------------------------------------------------------------------ views
    def __getitem__(self, index: Any) -> Tensor:
        self._require_alive()
        if type(index) is list:
            index = tuple(index)
        if type(index) is tuple:
            return self._select(index)
        return self._flat(index)

    def _require_alive(self) -> None:
        if not self._scope.alive:
            self._scope.recorder.require_alive(self)

    def _flat(self, index: Any) -> Tensor:
        """``t[i]`` and ``t[a:b]``: of the tensor flattened to one dimension."""
        count = self.size if len(self.shape) > 1 else self.shape[0]
        scope = self._scope
        if type(index) is slice:
            start, extent, full, scope = self._range(index, count, 0, scope)
        else:
            start, scope = self._position(index, count, 0, scope)
            extent, full = 1, type(count) is int and count == 1
        stride: Extent
        if self._contiguous:
            stride = 1
        elif len(self.shape) == 1:
            stride = self._strides[0]
        elif type(start) is int and extent == 1 and all(type(size) is int for size in self.shape):
            # One element of a strided view: its position in row-major order.
            offset: Any = self._offset
            rest: Any = start
            for size, step in zip(reversed(self.shape), reversed(self._strides)):
                rest, position = divmod(rest, size)
                offset = offset + position * step
            return Tensor(self._info, scope, self.dtype, (1,), offset, (1,), True, False)
        else:
            fail(
                TikParamError,
                f"tensor {self.name!r}: a view that is not contiguous cannot be flattened; index it "
                f"with one entry per dimension ({len(self.shape)})",
            )
        offset = self._offset + (start if stride == 1 else start * stride)
        return Tensor(
            self._info,
            scope,
            self.dtype,
            (extent,),
            offset,
            (stride,),
            type(stride) is int and stride == 1 or extent == 1,
            full and self._whole,
        )

    def _select(self, index: tuple[Any, ...]) -> Tensor:
        """``t[i, a:b, :]``: one entry per dimension, every dimension is kept."""
        rank = len(self.shape)
        if len(index) != rank:
            fail(
                TikIndexError,
                f"tensor {self.name!r} has {rank} dimensions, so an index tuple needs {rank} entries, got {len(index)}",
            )
        offset, scope, extents = self._offset, self._scope, []
        contiguous, whole, partial = self._contiguous, self._whole, False
        for axis in range(rank - 1, -1, -1):
            entry, size, stride = index[axis], self.shape[axis], self._strides[axis]
            if type(entry) is slice:
                start, extent, full, scope = self._range(entry, size, axis, scope)
            else:
                start, scope = self._position(entry, size, axis, scope)
                extent, full = 1, type(size) is int and size == 1
            if type(start) is not int or start:
                offset = offset + (start * stride if type(stride) is not int or stride != 1 else start)
            if partial and not (type(extent) is int and extent == 1):
                contiguous = False
            if not full:
                partial, whole = True, False
            extents.append(extent)
        extents.reverse()
        shape = tuple(extents)
        return Tensor(
            self._info,
            scope,
            self.dtype,
            shape,
            offset,
            self._strides,
            contiguous or _follows(shape, self._strides),
            whole,
        )

    def _position(self, index: Any, size: Extent, axis: int, scope: Scope) -> tuple[Extent, Scope]:
        """A single index as distance from the start."""
        if isinstance(index, Expr):
            integer_node(index, f"an index of tensor {self.name!r}")
            return index, deeper(scope, index._scope)
        number = index if type(index) is int else as_int(index)
        if number is None:
            fail(
                TikParamError,
                f"tensor {self.name!r}: an index must be an integer, a Scalar or Expr, or a slice, got {index!r}",
            )
        if type(size) is int and not -size <= number < size:
            fail(
                TikIndexError,
                f"tensor {self.name!r}: index {number} is out of range for dimension {axis} of size "
                f"{size}, allowed is [{-size}, {size})",
            )
        return (size + number if number < 0 else number), scope

    def _range(self, index: slice, size: Extent, axis: int, scope: Scope) -> tuple[Extent, Extent, bool, Scope]:
        """Start, extent, whether all of ``size`` is covered, and scope of a slice."""
        if index.step is not None and as_int(index.step) != 1:
            fail(
                TikParamError, f"tensor {self.name!r}: the step of a slice must be the immediate 1, got {index.step!r}"
            )
        start: Extent = 0
        stop = size
        if index.start is not None:
            start, scope = self._position(index.start, size, axis, scope)
        if index.stop is not None:
            stop, scope = self._stop(index.stop, size, axis, scope)
        if type(start) is int and type(stop) is int:
            extent = stop - start
        else:
            known = difference(_lower(stop), _lower(start))
            extent = stop - start if known is None else known
        if type(extent) is int and extent < 1:
            fail(
                TikIndexError,
                f"tensor {self.name!r}: the slice [{index.start!r}:{index.stop!r}] of dimension {axis} "
                "is empty; its stop must lie behind its start",
            )
        if type(extent) is int and type(size) is int and extent > size:
            fail(
                TikIndexError,
                f"tensor {self.name!r}: the slice [{index.start!r}:{index.stop!r}] has {extent} "
                f"elements, dimension {axis} has {size}",
            )
        full = extent is size or type(extent) is int and type(size) is int and extent == size
        return start, extent, full, scope

    def _stop(self, index: Any, size: Extent, axis: int, scope: Scope) -> tuple[Extent, Scope]:
        if type(size) is int and as_int(index) == size:
            return size, scope
        return self._position(index, size, axis, scope)

    def reshape(self, new_shape: Any) -> Tensor:
        """The same memory under another shape with the same number of elements.

        Raises:
            TikParamError: the numbers of elements differ, or the tensor is a partial view of another.
        """
        self._require_alive()
        shape, scope = check_shape(new_shape, f"reshape of tensor {self.name!r}", self._scope)
        if not self._whole:
            fail(TikParamError, f"tensor {self.name!r}: a partial view of a tensor cannot be reshaped")
        size, wanted = self.size, product(shape)
        distance = difference(_lower(wanted), _lower(size))
        if distance:
            fail(
                TikParamError,
                f"tensor {self.name!r} with shape {self.shape} has {size} elements and cannot be "
                f"reshaped to {tuple(shape)} with {wanted}",
            )
        return Tensor(self._info, scope, self.dtype, shape, self._offset, row_major(shape), True, True)

    def reinterpret_cast_to(self, dtype: str) -> Tensor:
        """The same bytes read as another type; the last dimension grows or shrinks with the size of an element.

        Raises:
            TikParamError: unknown dtype, or the last dimension does not hold whole elements of it.
            TikAlignError: the view starts inside an element of ``dtype``.
        """
        self._require_alive()
        check_dtype(dtype, "dtype of reinterpret_cast_to")
        old, new = BITS[self.dtype], BITS[dtype]
        if old == new:
            shape, offset, strides = self.shape, self._offset, self._strides
        elif old > new:
            factor = old // new
            shape = (*self.shape[:-1], self.shape[-1] * factor)
            offset = self._offset * factor
            strides = (*(stride * factor for stride in self._strides[:-1]), self._strides[-1])
        else:
            factor = new // old
            last = self.shape[-1]
            if type(last) is int and last % factor:
                fail(
                    TikParamError,
                    f"Error: Last dimension can't be divided. Tensor {self.name!r} has {last} elements "
                    f"of {self.dtype} there, {dtype} needs a multiple of {factor}",
                )
            if type(self._offset) is int and self._offset % factor:
                fail(
                    TikAlignError,
                    f"the view of tensor {self.name!r} starts at element {self._offset} of "
                    f"{self.dtype}, which is inside an element of {dtype}",
                )
            shape = (*self.shape[:-1], self._quotient(last, factor))
            offset = self._quotient(self._offset, factor)
            strides = (*(self._quotient(stride, factor) for stride in self._strides[:-1]), self._strides[-1])
        return Tensor(self._info, self._scope, dtype, shape, offset, strides, self._contiguous, self._whole)

    def _quotient(self, value: Extent, factor: int) -> Extent:
        if not isinstance(value, Expr):
            if value % factor:
                fail(
                    TikParamError, f"rows of this view of tensor {self.name!r} start inside an element of the new dtype"
                )
            return value // factor
        node = exact_quotient(value._node, factor)
        return node if type(node) is int else Expr(node, self._scope)

    def flatten(self) -> Tensor:
        """Refused: the documents say nothing about it."""
        fail(
            TikUnsupportedError,
            "Tensor.flatten has no specification; use reshape((size,)) or index the tensor with "
            "one position, which flattens it",
        )

    # ------------------------------------------------------------------------------------------ element writes
    def __setitem__(self, index: Any, value: Any) -> None:
        self[index].set_as(value)

    def set_as(self, value: Any, dst_offset: Any = 0, src_offset: Any = None) -> None:
        """Write the first element: a number, Scalar, Expr, or the first element of another tensor.

        ``dst_offset`` and ``src_offset`` are reserved.

        Raises:
            TikUnsupportedArgumentError: the tensor (or the tensor read) is not in the Unified Buffer, or an Expr for a
                float16 tensor.
            TikParamError: the types differ, or an Expr of another kind of number.
        """
        self._require_alive()
        recorder = self._scope.recorder
        what = f"tensor {self.name!r}"
        if self._info.memory != "UB":
            fail(
                TikUnsupportedArgumentError,
                f"{what}: on Ascend 910 elements can be written only in the Unified "
                f"Buffer (scope_ubuf), the tensor is in {self.scope}",
            )
        if isinstance(value, (Tensor, Scalar, InputScalar)):
            if value.dtype != self.dtype:
                fail(
                    TikParamError,
                    f"{what} of {self.dtype} cannot be set to {value.name!r} of {value.dtype}; the "
                    "types must be the same",
                )
        elif isinstance(value, Expr):
            integers = value.dtype in INTEGERS or value.dtype == "bool"
            if self.dtype != "float16" and is_float(self.dtype) == integers:
                fail(TikParamError, f"{what} of {self.dtype} cannot be set to an Expr of {value.dtype}")
        stored = assignable(recorder, value, self.dtype, what)
        recorder.record(ir.Store, target=self._node, value=stored)


def _forward(op: str) -> Any:
    return lambda self, other: operation(op, self, other)


def _reflected(op: str) -> Any:
    return lambda self, other: operation(op, other, self)


for _name, _op in {
    "add": "+",
    "sub": "-",
    "mul": "*",
    "truediv": "/",
    "floordiv": "//",
    "mod": "%",
    "and": "&",
    "or": "|",
    "lshift": "<<",
    "rshift": ">>",
}.items():
    setattr(Tensor, f"__{_name}__", _forward(_op))
    setattr(Tensor, f"__r{_name}__", _reflected(_op))
for _name, _op in {"lt": "<", "le": "<=", "gt": ">", "ge": ">="}.items():
    setattr(Tensor, f"__{_name}__", _forward(_op))
Tensor.__neg__ = lambda self: operation("-", 0, self)  # type: ignore[operator]


def _lower(value: Extent) -> ir.Value:
    return value._node if isinstance(value, Expr) else value


def lower_shape(shape: tuple[Any, ...]) -> tuple[ir.Value, ...]:
    """Extents (or strides) as the program holds them."""
    for extent in shape:
        if type(extent) is not int:
            return tuple([_lower(extent) for extent in shape])
    return shape


def product(shape: tuple[Extent, ...]) -> Extent:
    """Number of elements."""
    result: Extent = 1
    for extent in shape:
        result = result * extent
    return result


def row_major(shape: tuple[Extent, ...]) -> tuple[Extent, ...]:
    """Strides in elements of a contiguous tensor."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step = step * extent
    return tuple(reversed(strides))


def _follows(shape: tuple[Extent, ...], strides: tuple[Extent, ...]) -> bool:
    """Whether elements of a view with known extents follow each other."""
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if type(extent) is not int or type(stride) is not int:
            return False
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def check_shape(shape: Any, what: str, scope: Scope) -> tuple[tuple[Extent, ...], Scope]:
    """A shape as tuple of positive ints and run-time integers, and the scope of what depends on it.

    Raises:
        TikParamError: not a list or tuple of 1 to 8 positive integers and run-time integers.
    """
    if not isinstance(shape, (list, tuple)):
        fail(TikParamError, f"shape of {what} must be a list or tuple, got {type(shape).__name__} {shape!r}")
    if not 1 <= len(shape) <= 8:
        fail(TikParamError, f"shape of {what} must have 1 to 8 dimensions, got {len(shape)}")
    extents: list[Extent] = []
    for extent in shape:
        if isinstance(extent, Expr):
            integer_node(extent, f"an extent of {what}")
            scope = deeper(scope, extent._scope)
            extents.append(extent)
            continue
        number = int(extent) if isinstance(extent, float) and extent.is_integer() else as_int(extent)
        if number is None or number < 1:
            fail(
                TikParamError,
                f"every extent of {what} must be a positive integer, a Scalar or an Expr, got "
                f"{extent!r} in {tuple(shape)}",
            )
        extents.append(number)
    return tuple(extents), scope
