"""Compute addresses of views: indexing, reshape, other element types (core.md 2.2 to 2.5)."""

from __future__ import annotations

from typing import Any, NamedTuple

from ..errors import TikAlignError, TikIndexError
from ..program.dtypes import BITS, check_dtype
from ..program.location import fail
from ..program.nodes import difference, exact_quotient
from .expr import Expr, as_int, deeper, integer_node
from .extents import Extent, check_shape, follows, lower, product, row_major
from .recorder import Scope


class ViewLayout(NamedTuple):
    """Hold shape and strides of a tensor or view inside the tensor's memory.

    Attributes:
        name: name of the tensor, for messages.
        scope: the innermost scope of all that the view depends on.
        dtype: element type.
        shape: extents.
        offset: elements between the start of the tensor's memory and the first of the view.
        strides: elements between neighbours, by dimension.
        contiguous: the elements follow each other in row-major order.
        whole: it covers the whole allocation.
    """

    name: str
    scope: Scope
    dtype: str
    shape: tuple[Extent, ...]
    offset: Extent
    strides: tuple[Extent, ...]
    contiguous: bool
    whole: bool

    @property
    def size(self) -> Extent:
        """Return the number of elements."""
        return product(self.shape)

    def flat(self, index: Any) -> ViewLayout:
        """Return the view ``t[i]`` or ``t[a:b]`` of the tensor flattened to one dimension."""
        count = self.size if len(self.shape) > 1 else self.shape[0]
        scope = self.scope
        if type(index) is slice:
            start, extent, full, scope = self._range(index, count, 0, scope)
        else:
            start, scope = self._position(index, count, 0, scope)
            extent, full = 1, type(count) is int and count == 1
        stride: Extent
        if self.contiguous:
            stride = 1
        elif len(self.shape) == 1:
            stride = self.strides[0]
        elif type(start) is int and extent == 1 and all(type(size) is int for size in self.shape):
            # One element of a strided view: its position in row-major order.
            offset: Any = self.offset
            rest: Any = start
            for size, step in zip(reversed(self.shape), reversed(self.strides)):
                rest, position = divmod(rest, size)
                offset = offset + position * step
            return ViewLayout(self.name, scope, self.dtype, (1,), offset, (1,), True, False)
        else:
            fail(
                f"tensor {self.name!r}: a view that is not contiguous cannot be flattened; index it "
                f"with one entry per dimension ({len(self.shape)})"
            )
        offset = self.offset + (start if stride == 1 else start * stride)
        contiguous, whole = type(stride) is int and stride == 1 or extent == 1, full and self.whole
        return ViewLayout(self.name, scope, self.dtype, (extent,), offset, (stride,), contiguous, whole)

    def select(self, index: tuple[Any, ...]) -> ViewLayout:
        """Return the view ``t[i, a:b, :]``: one entry per dimension, every dimension is kept."""
        rank = len(self.shape)
        if len(index) != rank:
            fail(
                f"tensor {self.name!r} has {rank} dimensions, so an index tuple needs {rank} entries, got {len(index)}",
                TikIndexError,
            )
        offset, scope, extents = self.offset, self.scope, []
        contiguous, whole, partial = self.contiguous, self.whole, False
        for axis in range(rank - 1, -1, -1):
            entry, size, stride = index[axis], self.shape[axis], self.strides[axis]
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
        contiguous = contiguous or follows(shape, self.strides)
        return ViewLayout(self.name, scope, self.dtype, shape, offset, self.strides, contiguous, whole)

    def _position(self, index: Any, size: Extent, axis: int, scope: Scope) -> tuple[Extent, Scope]:
        """Return a single index as distance from the start."""
        if isinstance(index, Expr):
            integer_node(index, f"an index of tensor {self.name!r}")
            return index, deeper(scope, index._scope)
        number = index if type(index) is int else as_int(index)
        if number is None:
            fail(f"tensor {self.name!r}: an index must be an integer, a Scalar or Expr, or a slice, got {index!r}")
        if type(size) is int and not -size <= number < size:
            fail(
                f"tensor {self.name!r}: index {number} is out of range for dimension {axis} of size "
                f"{size}, allowed is [{-size}, {size})",
                TikIndexError,
            )
        return (size + number if number < 0 else number), scope

    def _range(self, index: slice, size: Extent, axis: int, scope: Scope) -> tuple[Extent, Extent, bool, Scope]:
        """Start, extent, whether all of ``size`` is covered, and scope of a slice."""
        if index.step is not None and as_int(index.step) != 1:
            fail(f"tensor {self.name!r}: the step of a slice must be the immediate 1, got {index.step!r}")
        start: Extent = 0
        stop = size
        if index.start is not None:
            start, scope = self._position(index.start, size, axis, scope)
        if index.stop is not None and not (type(size) is int and as_int(index.stop) == size):
            stop, scope = self._position(index.stop, size, axis, scope)
        if type(start) is int and type(stop) is int:
            extent = stop - start
        else:
            known = difference(lower(stop), lower(start))
            extent = stop - start if known is None else known
        if type(extent) is int and extent < 1:
            fail(
                f"tensor {self.name!r}: the slice [{index.start!r}:{index.stop!r}] of dimension {axis} "
                "is empty; its stop must lie behind its start",
                TikIndexError,
            )
        if type(extent) is int and type(size) is int and extent > size:
            fail(
                f"tensor {self.name!r}: the slice [{index.start!r}:{index.stop!r}] has {extent} "
                f"elements, dimension {axis} has {size}",
                TikIndexError,
            )
        full = extent is size or type(extent) is int and type(size) is int and extent == size
        return start, extent, full, scope

    def reshape(self, new_shape: Any) -> ViewLayout:
        """Return the same memory under another shape with the same number of elements.

        Raises:
            TikParamError: the numbers of elements differ, or the tensor is a partial view of another.
        """
        shape, scope = check_shape(new_shape, f"reshape of tensor {self.name!r}", self.scope)
        if not self.whole:
            fail(f"tensor {self.name!r}: a partial view of a tensor cannot be reshaped")
        size, wanted = self.size, product(shape)
        distance = difference(lower(wanted), lower(size))
        if distance:
            fail(
                f"tensor {self.name!r} with shape {self.shape} has {size} elements and cannot be "
                f"reshaped to {tuple(shape)} with {wanted}"
            )
        return ViewLayout(self.name, scope, self.dtype, shape, self.offset, row_major(shape), True, True)

    def reinterpret_cast_to(self, dtype: str) -> ViewLayout:
        """View the same bytes as another type. The last dimension grows or shrinks with the size of an element.

        Raises:
            TikParamError: unknown dtype, or the last dimension does not hold whole elements of it.
            TikAlignError: the view starts inside an element of ``dtype``.
        """
        check_dtype(dtype, "dtype of reinterpret_cast_to")
        old, new = BITS[self.dtype], BITS[dtype]
        if old == new:
            shape, offset, strides = self.shape, self.offset, self.strides
        elif old > new:
            factor = old // new
            shape = (*self.shape[:-1], self.shape[-1] * factor)
            offset = self.offset * factor
            strides = (*(stride * factor for stride in self.strides[:-1]), self.strides[-1])
        else:
            factor = new // old
            last = self.shape[-1]
            if type(last) is int and last % factor:
                fail(
                    f"Error: Last dimension can't be divided. Tensor {self.name!r} has {last} elements "
                    f"of {self.dtype} there, {dtype} needs a multiple of {factor}"
                )
            if type(self.offset) is int and self.offset % factor:
                fail(
                    f"the view of tensor {self.name!r} starts at element {self.offset} of "
                    f"{self.dtype}, which is inside an element of {dtype}",
                    TikAlignError,
                )
            shape = (*self.shape[:-1], self._quotient(last, factor))
            offset = self._quotient(self.offset, factor)
            strides = (*(self._quotient(stride, factor) for stride in self.strides[:-1]), self.strides[-1])
        return ViewLayout(self.name, self.scope, dtype, shape, offset, strides, self.contiguous, self.whole)

    def _quotient(self, value: Extent, factor: int) -> Extent:
        if not isinstance(value, Expr):
            if value % factor:
                fail(f"rows of this view of tensor {self.name!r} start inside an element of the new dtype")
            return value // factor
        node = exact_quotient(value._node, factor)
        return node if type(node) is int else Expr(node, self.scope)
