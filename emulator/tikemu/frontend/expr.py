"""Run-time values: Scalar, ScalarArray, InputScalar, loop variables and expressions over them (core.md 2.6, 2.7).

An :class:`Expr` wraps a node of the program (:mod:`tikemu.program.ir`). Python's operators on it build further nodes.
Operators between plain numbers give plain numbers. Constants fold if the result is the same for all run-time values.
"""

from __future__ import annotations

import math
from typing import Any, NoReturn

from ..errors import TikIndexError, TikUnsupportedArgumentError
from ..program import ir
from ..program.dtypes import INTEGERS, is_float, limits
from ..program.location import fail
from ..program.nodes import as_integer, as_number, combine, describe, within_64_bits
from .recorder import PublicObject, Recorder, Scope, ScopedValue, scope_error
from .signatures import checked_methods
from .tracebacks import short_operators, short_traceback


def forward(op: str) -> Any:
    """Return the method of a binary operator."""
    return lambda self, other: operation(op, self, other)


def reflected(op: str) -> Any:
    """Return the method of a binary operator with a left side of another class."""
    return lambda self, other: operation(op, other, self)


@short_operators
class Operand(ScopedValue):
    """Represent an operand of arithmetic and comparisons: a run-time value or a tensor element."""

    __slots__ = ()

    __add__, __radd__ = forward("+"), reflected("+")
    __sub__, __rsub__ = forward("-"), reflected("-")
    __mul__, __rmul__ = forward("*"), reflected("*")
    __truediv__, __rtruediv__ = forward("/"), reflected("/")
    __floordiv__, __rfloordiv__ = forward("//"), reflected("//")
    __mod__, __rmod__ = forward("%"), reflected("%")
    __and__, __rand__ = forward("&"), reflected("&")
    __or__, __ror__ = forward("|"), reflected("|")
    __lshift__, __rlshift__ = forward("<<"), reflected("<<")
    __rshift__, __rrshift__ = forward(">>"), reflected(">>")
    __lt__, __le__, __gt__, __ge__ = forward("<"), forward("<="), forward(">"), forward(">=")

    def __neg__(self) -> Any:
        return operation("-", 0, self)


@short_operators
class Expr(Operand):
    """A value known only when the kernel runs. Made by operators, not by hand.

    Attributes:
        dtype: type in which it is evaluated; "bool" for conditions.
    """

    __slots__ = ("_node", "_half")

    _kind = "value"

    def __init__(self, node: ir.Value, scope: Scope, half: bool = False) -> None:
        self._node, self._scope = node, scope
        self._half = half  # a float16 value takes part

    @property
    def dtype(self) -> str:
        return self._node.dtype

    __eq__, __ne__ = forward("=="), forward("!=")
    __hash__ = object.__hash__

    def __pos__(self) -> Expr:
        return self

    def __bool__(self) -> bool:
        fail(
            f"the condition {describe(self._node)} is known only at run time, so Python's if, while, "
            "and, or, not and chained comparisons (1 < n < 4) cannot decide it; use if_scope, tik.all, "
            "tik.any and tik.negate"
        )

    def _no_number(self, what: str) -> NoReturn:
        fail(
            f"{what} needs a number that is known when the program is built, got the run-time value "
            f"{describe(self._node)}"
        )

    def __int__(self) -> int:
        self._no_number("int()")

    def __float__(self) -> float:
        self._no_number("float()")

    def __index__(self) -> int:
        self._no_number("a Python index, range() or repetition")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({describe(self._node)}: {self.dtype})"

    @property
    def _label(self) -> str:
        return describe(self._node)

    def _as_source(self, dtype: str, what: str) -> ir.Value:
        if dtype == "float16" and not isinstance(self, (Scalar, InputScalar)):
            fail(
                f"{what}: on Ascend 910 an Expr cannot be assigned to float16; "
                "compute it in float32 and convert it with scalar_conv",
                TikUnsupportedArgumentError,
            )
        return self._node


class Loadable(Operand):
    """Represent a tensor element, which is a number once it is loaded."""

    __slots__ = ()

    def _load(self) -> Scalar:
        """Return a hidden Scalar that is loaded at this point of the program."""
        raise NotImplementedError


class InputScalar(Expr):
    """A kernel argument passed at launch; belongs into ``BuildCCE(inputs=...)`` and ``feed_dict``.

    Attributes:
        name: name in the feed.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        return self._node.name


class Scalar(Expr):
    """A run-time variable.

    Attributes:
        name: name given at its definition.
    """

    __slots__ = ()

    @property
    def name(self) -> str:
        return self._node.name

    def set_as(self, value: Any, src_offset: Any = None) -> None:
        """Assign a number, Scalar, Expr or the first element of a Unified Buffer tensor.

        Integers wrap to the declared width, floats convert as C does (tik/README.md D5). The bits of an element of
        equal width are copied, whatever the types. So a uint16 Scalar reads the index that ``vcmax`` leaves in a
        float16 tensor. ``src_offset`` is reserved.

        Raises:
            TikUnsupportedArgumentError: an Expr for a float16 Scalar; a Tensor outside the Unified Buffer.
            TikScopeError: the Scalar or the value is used after its scope has ended.
        """
        recorder = self._scope.recorder
        recorder.require_alive(self)
        value = assignable(recorder, value, self.dtype, f"Scalar {self.name!r}")
        recorder.record(ir.Assign, target=self._node, value=value)


class ScalarElement(Scalar):
    """The element of a ScalarArray that a run-time index chooses."""

    __slots__ = ("_variables", "_index")

    def __init__(self, variables: tuple[ir.Variable, ...], index: ir.Value, scope: Scope, half: bool) -> None:
        dtype = variables[0].dtype
        super().__init__(ir.Operation("index", (index, *variables), dtype), scope, half)
        self._variables, self._index = variables, index

    @property
    def name(self) -> str:
        return self._variables[0].name

    def set_as(self, value: Any, src_offset: Any = None) -> None:
        recorder = self._scope.recorder
        recorder.require_alive(self)
        value = assignable(recorder, value, self.dtype, f"ScalarArray element {self.name!r}")
        recorder.record(ir.AssignElement, targets=self._variables, index=self._index, value=value)


checked_methods(Scalar, ("set_as",))
checked_methods(ScalarElement, ("set_as",))


@short_operators
class ScalarArray(PublicObject):
    """Hold ``length`` Scalars under one name. ``array[i]`` is a Scalar, ``i`` an immediate or a run-time value.

    Attributes:
        dtype, length, name: as defined.
    """

    __slots__ = ("dtype", "length", "name", "_variables", "_scope")

    def __init__(self, name: str, variables: tuple[ir.Variable, ...], scope: Scope) -> None:
        self.dtype, self.length, self.name = variables[0].dtype, len(variables), name
        self._variables, self._scope = variables, scope

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: Any) -> Scalar:
        half = self.dtype == "float16"
        if isinstance(index, Expr):
            scope = deeper(self._scope, index._scope)
            return ScalarElement(self._variables, integer_node(index, "a ScalarArray index"), scope, half)
        number = as_int(index)
        if number is None:
            fail(f"a ScalarArray index must be an integer or a run-time integer, got {index!r}")
        if not -self.length <= number < self.length:
            fail(f"index {number} is out of range for ScalarArray {self.name!r} of length {self.length}", TikIndexError)
        return Scalar(self._variables[number], self._scope, half)

    def __setitem__(self, index: Any, value: Any) -> None:
        self[index].set_as(value)


# ------------------------------------------------------------------------------------------------ conditions
@short_traceback
def all_of(*conditions: Any) -> Any:
    """Implement ``tik.all``: true if every condition is true."""
    return _logical("all", conditions, False)


@short_traceback
def any_of(*conditions: Any) -> Any:
    """Implement ``tik.any``: true if at least one condition is true."""
    return _logical("any", conditions, True)


@short_traceback
def negate(condition: Any) -> Any:
    """Implement ``tik.negate``: logical not."""
    value = condition_of(condition, "tik.negate")
    if isinstance(value, bool):
        return not value
    return Expr(ir.Operation("not", (value._node,), "bool"), value._scope, value._half)


def _logical(op: str, conditions: tuple[Any, ...], decisive: bool) -> Any:
    if not conditions:
        fail(f"tik.{op} needs at least one condition")
    values = [condition_of(condition, f"tik.{op}") for condition in conditions]
    open_values = [value for value in values if not isinstance(value, bool)]
    if decisive in [value for value in values if isinstance(value, bool)]:
        return decisive
    if not open_values:
        return not decisive
    scope, half = open_values[0]._scope, False
    for value in open_values:
        scope, half = deeper(scope, value._scope), half or value._half
    if len(open_values) == 1:
        return open_values[0]
    return Expr(ir.Operation(op, tuple(value._node for value in open_values), "bool"), scope, half)


def condition_of(value: Any, what: str) -> bool | Expr:
    """Return a condition as a bool if it is known, else as an Expr.

    Raises:
        TikParamError: it is neither a number nor a run-time value.
        TikUnsupportedArgumentError: a float16 Scalar takes part.
    """
    if isinstance(value, Loadable):
        value = value._load()
    if not isinstance(value, Expr):
        number = as_number(value)
        if number is None:
            fail(f"{what} takes an InputScalar, Scalar, Expr, number or bool, got {type(value).__name__} {value!r}")
        return bool(number)
    if value._half:
        fail(f"{what}: a float16 Scalar cannot take part in a condition on Ascend 910", TikUnsupportedArgumentError)
    if value.dtype == "bool":
        return value
    return Expr(ir.Operation("!=", (value._node, 0), "bool"), value._scope)


# ------------------------------------------------------------------------------------------------ helpers
def as_int(value: Any) -> int | None:
    """Return an immediate integer as int, else None (a bool is none)."""
    return None if isinstance(value, Expr) else as_integer(value)


def integer_node(value: Expr, what: str) -> ir.Value:
    """Return the node of a living run-time integer. Raises TikParamError for other types."""
    value._scope.recorder.require_alive(value)
    if value.dtype not in INTEGERS:
        fail(f"{what} must be an integer, got a run-time {value.dtype} value")
    return value._node


def deeper(one: Scope, other: Scope) -> Scope:
    """Return the inner of two scopes that are open at the same time.

    A value that depends on both scopes lives as long as the inner scope.
    """
    if one.recorder is not other.recorder:
        fail("values of two different Tik instances cannot be combined")
    return one if one.depth >= other.depth else other


def assignable(recorder: Recorder, value: Any, dtype: str, what: str) -> ir.Value | ir.View:
    """Return the node that assigns ``value`` to a Scalar or tensor element of type ``dtype``."""
    if isinstance(value, ScopedValue):
        recorder.require_alive(value)
        return value._as_source(dtype, what)
    number = as_number(value)
    if number is None:
        fail(f"{what} can be set to a number, Scalar, Expr or Tensor, got {type(value).__name__}")
    within_64_bits(number, f"the value of {what}")
    if is_float(dtype):
        return float(number)
    if isinstance(number, float):
        if not math.isfinite(number):
            fail(f"{what} of type {dtype} cannot hold {number!r}")
        if not number.is_integer():
            recorder.questionable("value", f"{what} of type {dtype} is set to {number!r}, which becomes {int(number)}")
        number = int(number)
    low, high = limits(dtype)
    number = int(number)
    if not low <= number <= high:
        wrapped = (number - low) % (high - low + 1) + low
        recorder.questionable("value", f"{what} of type {dtype} is set to {number}, which wraps to {wrapped}")
        return wrapped
    return number


# ------------------------------------------------------------------------------------------------ building nodes
def operation(op: str, left: Any, right: Any) -> Any:
    """Return the value of a binary operator on an Expr or tensor element."""
    scope, half, operands = None, False, []
    for side in (left, right):
        if isinstance(side, Loadable):
            side = side._load()
        if isinstance(side, Expr):
            if not side._scope.alive:
                scope_error(describe(side._node), "value")
            scope = side._scope if scope is None else deeper(scope, side._scope)
            half = half or side._half
            operands.append(side._node)
        else:
            value = as_number(side)
            if value is None:
                return NotImplemented
            within_64_bits(value, f"an operand of {op!r}")
            operands.append(int(value) if isinstance(value, bool) else value)
    node = combine(op, *operands)
    if ir.is_immediate(node):
        return node
    if any(isinstance(operand, float) for operand in operands):
        scope.recorder.warn(
            f"the Expr {describe(node)} holds a float immediate, which the compiler for Ascend 910 is "
            "documented to reject; put it into a Scalar"
        )
    return Expr(node, scope, half)
