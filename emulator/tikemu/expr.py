"""Run-time values: Scalar, ScalarArray, InputScalar, loop variables and expressions over them (core.md 2.6, 2.7).

An :class:`Expr` wraps a node of the program (:mod:`tikemu.ir`). Python's operators on it build further nodes; operators
between plain numbers stay plain numbers, and constants fold where the result is the same for all run-time values.
"""

from __future__ import annotations

import math
import numbers
import operator
from typing import TYPE_CHECKING, Any, Union

from . import ir
from .dtypes import BITS, INTEGERS, is_float, limits, of_immediate, promote
from .errors import TikIndexError, TikParamError, TikScopeError, TikUnsupportedArgumentError
from .location import fail

if TYPE_CHECKING:
    from .recorder import Recorder, Scope

Number = Union[int, float]

_COMPARISONS = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
}
_INTEGER_ONLY = ("//", "%", "&", "|", "<<", ">>")


class Expr:
    """A value known only when the kernel runs. Made by operators, not by hand.

    Attributes:
        dtype: type in which it is evaluated; "bool" for conditions.
    """

    __slots__ = ("_node", "_scope", "_half")

    def __init__(self, node: ir.Value, scope: Scope, half: bool = False) -> None:
        self._node, self._scope = node, scope
        self._half = half  # a float16 value takes part

    @property
    def dtype(self) -> str:
        return self._node.dtype

    def __add__(self, other: Any) -> Any:
        return _operation("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return _operation("+", other, self)

    def __sub__(self, other: Any) -> Any:
        return _operation("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return _operation("-", other, self)

    def __mul__(self, other: Any) -> Any:
        return _operation("*", self, other)

    def __rmul__(self, other: Any) -> Any:
        return _operation("*", other, self)

    def __truediv__(self, other: Any) -> Any:
        return _operation("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return _operation("/", other, self)

    def __floordiv__(self, other: Any) -> Any:
        return _operation("//", self, other)

    def __rfloordiv__(self, other: Any) -> Any:
        return _operation("//", other, self)

    def __mod__(self, other: Any) -> Any:
        return _operation("%", self, other)

    def __rmod__(self, other: Any) -> Any:
        return _operation("%", other, self)

    def __and__(self, other: Any) -> Any:
        return _operation("&", self, other)

    def __rand__(self, other: Any) -> Any:
        return _operation("&", other, self)

    def __or__(self, other: Any) -> Any:
        return _operation("|", self, other)

    def __ror__(self, other: Any) -> Any:
        return _operation("|", other, self)

    def __lshift__(self, other: Any) -> Any:
        return _operation("<<", self, other)

    def __rlshift__(self, other: Any) -> Any:
        return _operation("<<", other, self)

    def __rshift__(self, other: Any) -> Any:
        return _operation(">>", self, other)

    def __rrshift__(self, other: Any) -> Any:
        return _operation(">>", other, self)

    def __neg__(self) -> Any:
        return _operation("-", 0, self)

    def __pos__(self) -> Expr:
        return self

    def __lt__(self, other: Any) -> Any:
        return _operation("<", self, other)

    def __le__(self, other: Any) -> Any:
        return _operation("<=", self, other)

    def __gt__(self, other: Any) -> Any:
        return _operation(">", self, other)

    def __ge__(self, other: Any) -> Any:
        return _operation(">=", self, other)

    def __eq__(self, other: Any) -> Any:
        return _operation("==", self, other)

    def __ne__(self, other: Any) -> Any:
        return _operation("!=", self, other)

    __hash__ = object.__hash__

    def __bool__(self) -> bool:
        fail(
            TikParamError,
            f"the condition {describe(self._node)} is known only at run time, so Python's if, while, "
            "and, or, not and chained comparisons (1 < n < 4) cannot decide it; use if_scope, tik.all, "
            "tik.any and tik.negate",
        )

    def _no_number(self, what: str) -> None:
        fail(
            TikParamError,
            f"{what} needs a number that is known when the program is built, got the run-time value "
            f"{describe(self._node)}",
        )

    def __int__(self) -> int:
        self._no_number("int()")

    def __float__(self) -> float:
        self._no_number("float()")

    def __index__(self) -> int:
        self._no_number("a Python index, range() or repetition")

    def __repr__(self) -> str:
        return f"{type(self).__name__}({describe(self._node)}: {self.dtype})"


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
        """Assign a number, Scalar, Expr, or the first element of a Tensor in the Unified Buffer.

        Integers wrap to the declared width, floats convert as C does (tik/README.md D5). The bits of an element of
        equal width are copied, whatever the types: so the index that ``vcmax`` leaves in a float16 tensor is read
        through a uint16 Scalar. ``src_offset`` is reserved.

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


class ScalarArray:
    """``length`` Scalars under one name; ``array[i]`` is a Scalar, ``i`` an immediate or a run-time value.

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
            fail(TikParamError, f"a ScalarArray index must be an integer or a run-time integer, got {index!r}")
        if not -self.length <= number < self.length:
            fail(TikIndexError, f"index {number} is out of range for ScalarArray {self.name!r} of length {self.length}")
        return Scalar(self._variables[number], self._scope, half)

    def __setitem__(self, index: Any, value: Any) -> None:
        self[index].set_as(value)


# ------------------------------------------------------------------------------------------------ conditions
def all_of(*conditions: Any) -> Any:
    """``tik.all``: true where every condition is."""
    return _logical("all", conditions, False)


def any_of(*conditions: Any) -> Any:
    """``tik.any``: true where at least one condition is."""
    return _logical("any", conditions, True)


def negate(condition: Any) -> Any:
    """``tik.negate``: logical not."""
    value = condition_of(condition, "tik.negate")
    if isinstance(value, bool):
        return not value
    return Expr(ir.Operation("not", (value._node,), "bool"), value._scope, value._half)


def _logical(op: str, conditions: tuple[Any, ...], decisive: bool) -> Any:
    if not conditions:
        fail(TikParamError, f"tik.{op} needs at least one condition")
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
    """A condition as a bool where it is known, else as an Expr of type "bool".

    Raises:
        TikParamError: it is neither a number nor a run-time value.
        TikUnsupportedArgumentError: a float16 Scalar takes part.
    """
    if not isinstance(value, Expr):
        number = as_number(value)
        if number is None:
            fail(
                TikParamError,
                f"{what} takes an InputScalar, Scalar, Expr, number or bool, got {type(value).__name__} {value!r}",
            )
        return bool(number)
    if value._half:
        fail(TikUnsupportedArgumentError, f"{what}: a float16 Scalar cannot take part in a condition on Ascend 910")
    if value.dtype == "bool":
        return value
    return Expr(ir.Operation("!=", (value._node, 0), "bool"), value._scope)


# ------------------------------------------------------------------------------------------------ helpers
def as_int(value: Any) -> int | None:
    """An immediate integer as int, else None (a bool is none)."""
    if type(value) is int:
        return value
    if isinstance(value, (bool, Expr)) or type(value).__name__ == "bool_":
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def as_number(value: Any) -> Number | None:
    """An immediate as int or float, else None."""
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) or type(value).__name__ in ("float16", "bool_"):
        return value.item() if hasattr(value, "item") else float(value)
    return None


def integer_node(value: Expr, what: str) -> ir.Value:
    """The node of a living run-time integer. Raises TikParamError for other types."""
    value._scope.recorder.require_alive(value)
    if value.dtype not in INTEGERS:
        fail(TikParamError, f"{what} must be an integer, got a run-time {value.dtype} value")
    return value._node


def deeper(one: Scope, other: Scope) -> Scope:
    """The inner of two scopes that are open at the same time: what depends on both lives as long as it."""
    if one.recorder is not other.recorder:
        fail(TikParamError, "values of two different Tik instances cannot be combined")
    return one if one.depth >= other.depth else other


def assignable(recorder: Recorder, value: Any, dtype: str, what: str) -> ir.Value | ir.View:
    """The node for ``what = value`` where ``what`` is a Scalar (or a tensor element) of type ``dtype``."""
    from .tensor import Tensor

    if isinstance(value, Tensor):
        view = recorder.lower(value)
        if view.tensor.memory != "UB":
            fail(
                TikUnsupportedArgumentError,
                f"{what}: on Ascend 910 a value can be read only from a tensor in the "
                f"Unified Buffer (scope_ubuf), tensor {value.name!r} is in {value.scope}",
            )
        if BITS[value.dtype] != BITS[dtype] and (is_float(value.dtype) or is_float(dtype)):
            recorder.warn(
                f"{what} of {dtype} is set to an element of tensor {value.name!r} of {value.dtype}; tikemu converts "
                "the number, which no document describes (elements of equal width are copied bit by bit)"
            )
        return view
    if isinstance(value, Expr):
        recorder.require_alive(value)
        if dtype == "float16" and not isinstance(value, (Scalar, InputScalar)):
            fail(
                TikUnsupportedArgumentError,
                f"{what}: on Ascend 910 an Expr cannot be assigned to float16; "
                "compute it in float32 and convert it with scalar_conv",
            )
        return value._node
    number = as_number(value)
    if number is None:
        fail(TikParamError, f"{what} can be set to a number, Scalar, Expr or Tensor, got {type(value).__name__}")
    if is_float(dtype):
        return float(number)
    if isinstance(number, float):
        if not math.isfinite(number):
            fail(TikParamError, f"{what} of type {dtype} cannot hold {number!r}")
        if not number.is_integer():
            recorder.warn(f"{what} of type {dtype} is set to {number!r}, which becomes {int(number)}")
        number = int(number)
    low, high = limits(dtype)
    number = int(number)
    if not low <= number <= high:
        wrapped = (number - low) % (high - low + 1) + low
        recorder.warn(f"{what} of type {dtype} is set to {number}, which wraps to {wrapped}")
        return wrapped
    return number


_PRECEDENCE = {
    "index": 9,
    "*": 7,
    "/": 7,
    "%": 7,
    "+": 6,
    "-": 6,
    "<<": 5,
    ">>": 5,
    "&": 4,
    "|": 3,
    "<": 2,
    "<=": 2,
    ">": 2,
    ">=": 2,
    "==": 2,
    "!=": 2,
}


def describe(node: Any, outer: int = 0) -> str:
    """A value as text."""
    if isinstance(node, ir.Variable):
        return node.name
    if not isinstance(node, ir.Operation):
        return repr(node)
    if node.op in ("all", "any", "not"):
        return f"{node.op}({', '.join(describe(arg) for arg in node.args)})"
    if node.op == "index":
        return f"{node.args[1].name.partition('[')[0]}[{describe(node.args[0])}]"
    rank = _PRECEDENCE[node.op]
    # The right operand of - / % needs brackets at equal rank.
    text = f"{describe(node.args[0], rank)} {node.op} {describe(node.args[1], rank + 1)}"
    # C and Python rank the bit operators differently, so they always get brackets.
    return f"({text})" if rank < outer or (outer and node.op in ("<<", ">>", "&", "|")) else text


# ------------------------------------------------------------------------------------------------ building nodes
def _operation(op: str, left: Any, right: Any) -> Any:
    """The value of a binary operator, at least one side of which is an Expr."""
    scope, half, operands = None, False, []
    for side in (left, right):
        if isinstance(side, Expr):
            if not side._scope.alive:
                scope_error(describe(side._node), "value")
            scope = side._scope if scope is None else deeper(scope, side._scope)
            half = half or side._half
            operands.append(side._node)
        else:
            value = side if type(side) is int else _immediate_operand(op, side)
            if value is NotImplemented:
                return NotImplemented
            operands.append(value)
    node = combine(op, *operands)
    if ir.is_immediate(node):
        return node
    if any(isinstance(operand, float) for operand in operands):
        scope.recorder.warn(
            f"the Expr {describe(node)} holds a float immediate, which the compiler for Ascend 910 is "
            "documented to reject; put it into a Scalar",
            promote=False,
        )
    return Expr(node, scope, half)


def _immediate_operand(op: str, value: Any) -> Any:
    number = as_number(value)
    if number is None:
        from .tensor import Tensor

        if isinstance(value, Tensor):
            fail(TikParamError, f"a Tensor cannot be an operand of {op!r}; read the element into a Scalar with set_as")
        return NotImplemented
    return int(number) if isinstance(number, bool) else number


def combine(op: str, left: ir.Value, right: ir.Value) -> ir.Value:
    """The node of ``left op right``, simplified."""
    left_type = left.dtype if not ir.is_immediate(left) else of_immediate(left, right.dtype)
    right_type = right.dtype if not ir.is_immediate(right) else of_immediate(right, left.dtype)
    if op in _COMPARISONS:
        return ir.Operation(op, (left, right), "bool")
    dtype = promote(left_type, right_type)
    if is_float(dtype):
        if op in _INTEGER_ONLY:
            fail(TikParamError, f"{op!r} needs integers, got {left_type} and {right_type}")
        return ir.Operation(op, tuple(float(arg) if isinstance(arg, int) else arg for arg in (left, right)), dtype)
    if op in ("&", "|") and left_type == right_type == "bool":
        return ir.Operation(op, (left, right), "bool")
    if op in ("<<", ">>") and isinstance(right, int) and not 0 <= right < BITS[dtype]:
        fail(TikParamError, f"the shift count must be in [0, {BITS[dtype] - 1}] for {dtype}, got {right}")
    if op == "//":
        op = "/"
    if op in ("/", "%") and isinstance(right, int) and right == 0:
        fail(TikParamError, "division by zero")
    return _fold(op, left, right, dtype)


def _fold(op: str, left: ir.Value, right: ir.Value, dtype: str) -> ir.Value:
    """Integer arithmetic with neutral elements removed and neighbouring constants merged."""
    if isinstance(left, int):
        if op in ("+", "*"):
            left, right = right, left
        elif left == 0 and op in ("/", "%", "<<", ">>"):
            return 0
    if isinstance(right, int):
        if right == 0 and op in ("+", "-", "<<", ">>", "|") or right == 1 and op in ("*", "/"):
            return left
        if right == 0 and op in ("*", "&") or right == 1 and op == "%":
            return 0
        if isinstance(left, ir.Operation) and left.dtype == dtype and isinstance(left.args[1], int):
            merged = _merge(op, left, right)
            if merged is not None and _fits(merged, dtype):
                return merged
    elif op == "-" and left is right:
        return 0
    return ir.Operation(op, (left, right), dtype)


def _merge(op: str, inner: ir.Operation, constant: int) -> ir.Value | None:
    """``(x inner.op c) op constant`` with one constant, where that is exact."""
    base, known = inner.args
    if op in ("+", "-") and inner.op in ("+", "-"):
        total = (known if inner.op == "+" else -known) + (constant if op == "+" else -constant)
        if total == 0:
            return base
        return ir.Operation("+" if total > 0 else "-", (base, abs(total)), inner.dtype)
    if inner.op != "*":
        return None
    if op == "*":
        return ir.Operation("*", (base, known * constant), inner.dtype)
    if known % constant == 0:
        if op == "%":
            return 0
        if op == "/":
            return base if known == constant else ir.Operation("*", (base, known // constant), inner.dtype)
    return None


def _fits(value: ir.Value, dtype: str) -> bool:
    if not isinstance(value, ir.Operation) or not isinstance(value.args[1], int):
        return True
    low, high = limits(dtype)
    return low <= value.args[1] <= high


# ------------------------------------------------------------------------------------------------ linear forms
def _linear(value: ir.Value) -> tuple[dict[ir.Value, int], int]:
    """``value`` as integer combination of nodes that are no sums, plus a constant."""
    if isinstance(value, int):
        return {}, value
    if isinstance(value, ir.Operation) and value.op in ("+", "-"):
        terms, constant = _linear(value.args[0])
        more, other = _linear(value.args[1])
        sign = 1 if value.op == "+" else -1
        terms = dict(terms)
        for atom, factor in more.items():
            terms[atom] = terms.get(atom, 0) + sign * factor
        return {atom: factor for atom, factor in terms.items() if factor}, constant + sign * other
    if isinstance(value, ir.Operation) and value.op == "*" and isinstance(value.args[1], int):
        terms, constant = _linear(value.args[0])
        factor = value.args[1]
        return {atom: known * factor for atom, known in terms.items()}, constant * factor
    return {value: 1}, 0


def difference(left: ir.Value, right: ir.Value) -> int | None:
    """``left - right`` where it is the same for all run-time values, else None."""
    terms, constant = _linear(left)
    others, other = _linear(right)
    return constant - other if terms == others else None


def exact_quotient(value: ir.Value, divisor: int) -> ir.Value:
    """``value / divisor`` for an integer value that is a multiple of it at run time."""
    terms, constant = _linear(value)
    if constant % divisor or any(factor % divisor for factor in terms.values()):
        return combine("/", value, divisor)
    result: ir.Value = 0
    for atom, factor in terms.items():
        term = combine("*", atom, factor // divisor)
        result = term if result == 0 else combine("+", result, term)
    return combine("+", result, constant // divisor) if terms else constant // divisor


def scope_error(name: str, kind: str) -> None:
    """Report the use of something whose scope has ended."""
    fail(
        TikScopeError,
        f"{kind} {name!r} is used outside the statement scope that defined it; it was released at the "
        "end of its with block",
    )
