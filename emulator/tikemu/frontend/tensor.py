"""Tensors and views of them (core.md 2.1 to 2.5)."""

from __future__ import annotations

from typing import Any

from ..errors import TikUnsupportedArgumentError, TikUnsupportedError
from ..program import ir
from ..program.dtypes import BITS, INTEGERS, is_float, size_of
from ..program.location import fail
from ..program.nodes import as_number
from .expr import Expr, InputScalar, Loadable, Scalar, assignable, operation
from .extents import Extent, lower, lower_shape, product, row_major
from .recorder import Scope
from .signatures import checked_methods
from .tracebacks import short_operators
from .view_layout import ViewLayout


@short_operators
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

    __slots__ = ("dtype", "shape", "_info", "_layout", "_lowered")

    _kind = "tensor"

    def __init__(self, info: ir.TensorInfo, layout: ViewLayout) -> None:
        self.dtype, self.shape, self._scope = layout.dtype, layout.shape, layout.scope
        self._info, self._layout = info, layout
        self._lowered: ir.View | None = None

    @classmethod
    def whole(cls, info: ir.TensorInfo, scope: Scope, shape: tuple[Extent, ...]) -> Tensor:
        """Return the tensor that covers an allocation."""
        return cls(info, ViewLayout(info.name, scope, info.dtype, shape, 0, row_major(shape), True, True))

    @property
    def _node(self) -> ir.View:
        view = self._lowered
        if view is None:
            layout = self._layout
            view = self._lowered = ir.View(
                self._info, self.dtype, lower(layout.offset), lower_shape(self.shape), lower_shape(layout.strides)
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
        return self._layout.offset

    def __repr__(self) -> str:
        return f"Tensor({self.name!r}, {self.dtype}, {self.shape}, {self.scope})"

    def __eq__(self, other: Any) -> Any:
        return self._compare("==", other, self is other)

    def __ne__(self, other: Any) -> Any:
        return self._compare("!=", other, self is not other)

    __hash__ = object.__hash__
    __iter__ = None

    def _compare(self, op: str, other: Any, identity: bool) -> Any:
        """Compare elements by value; whole tensors, and other objects, as Python compares objects."""
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
        """Return the element, loaded at this point of the program into a hidden Scalar (D33b).

        Raises:
            TikParamError: the tensor has more than one element.
            TikUnsupportedArgumentError: it is not in the Unified Buffer.
        """
        self._require_alive()
        if not self._is_element:
            fail(
                f"only one element of a tensor can take part in an expression or a condition, tensor {self.name!r} has "
                f"the shape {self.shape} here; index it, or read the element into a Scalar with set_as"
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
                f"{what}: on Ascend 910 a value can be read only from a tensor in the "
                f"Unified Buffer (scope_ubuf), tensor {self.name!r} is in {self.scope}",
                TikUnsupportedArgumentError,
            )
        if BITS[self.dtype] != BITS[dtype] and (is_float(self.dtype) or is_float(dtype)):
            self._scope.recorder.questionable(
                "undocumented",
                f"{what} of {dtype} is set to an element of tensor {self.name!r} of {self.dtype}; tikemu converts "
                "the number, which no document describes (elements of equal width are copied bit by bit)",
            )
        return self._node

    # ------------------------------------------------------------------------------------------ views
    def __getitem__(self, index: Any) -> Tensor:
        self._require_alive()
        layout = self._layout
        if type(index) is list:
            index = tuple(index)
        return Tensor(self._info, layout.select(index) if type(index) is tuple else layout.flat(index))

    def _require_alive(self) -> None:
        if not self._scope.alive:
            self._scope.recorder.require_alive(self)

    def reshape(self, new_shape: Any) -> Tensor:
        """Return the same memory under another shape with the same number of elements.

        Raises:
            TikParamError: the numbers of elements differ, or the tensor is a partial view of another.
        """
        self._require_alive()
        return Tensor(self._info, self._layout.reshape(new_shape))

    def reinterpret_cast_to(self, dtype: str) -> Tensor:
        """View the same bytes as another type. The last dimension grows or shrinks with the size of an element.

        Raises:
            TikParamError: unknown dtype, or the last dimension does not hold whole elements of it.
            TikAlignError: the view starts inside an element of ``dtype``.
        """
        self._require_alive()
        return Tensor(self._info, self._layout.reinterpret_cast_to(dtype))

    def flatten(self) -> Tensor:
        """Refuse: the documents say nothing about it."""
        fail(
            "Tensor.flatten has no specification; use reshape((size,)) or index the tensor with "
            "one position, which flattens it",
            TikUnsupportedError,
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
                f"{what}: on Ascend 910 elements can be written only in the Unified "
                f"Buffer (scope_ubuf), the tensor is in {self.scope}",
                TikUnsupportedArgumentError,
            )
        if isinstance(value, (Tensor, Scalar, InputScalar)):
            if value.dtype != self.dtype:
                fail(
                    f"{what} of {self.dtype} cannot be set to {value.name!r} of {value.dtype}; the "
                    "types must be the same"
                )
        elif isinstance(value, Expr):
            integers = value.dtype in INTEGERS or value.dtype == "bool"
            if self.dtype != "float16" and is_float(self.dtype) == integers:
                fail(f"{what} of {self.dtype} cannot be set to an Expr of {value.dtype}")
        stored = assignable(recorder, value, self.dtype, what)
        recorder.record(ir.Store, target=self._node, value=stored)


checked_methods(Tensor, ("reshape", "reinterpret_cast_to", "flatten", "set_as"))
