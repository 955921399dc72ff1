"""Recorded values as Python source text.

Every integer expression has the interval of its possible values. So the text wraps a value to the width of its type
only if the value can be too large or too small.
"""

from __future__ import annotations

import math
import operator
from typing import Any, NamedTuple

from ..program import ir
from ..program.dtypes import BITS, is_float, limits, of_immediate, promote
from . import values

#: Names that the generated text may use.
HELPERS = {
    "_div": values.divide,
    "_rem": values.remainder,
    "_shift": values.shift_count,
    "_pick": values.pick,
    "_f32": values.round_f32,
    "_f16": values.round_f16,
    "_fdiv": values.true_divide,
    "_i2f32": values.int_to_f32,
    "_i2f16": values.int_to_f16,
    "_f2i": values.float_to_int,
    "_inf": math.inf,
    "_nan": math.nan,
}
_EXACT_F32 = 1 << 24
_EXACT_F16 = 1 << 11


class Text(NamedTuple):
    """Source text of a value of type ``dtype``. Integers lie in [low, high], possibly beyond the type until wrapped."""

    source: str
    dtype: str
    low: int = 0
    high: int = 0
    cost: int = 0  # operations of the scalar unit
    flat: str = ""  # of a sum: its source without parentheses


def name_of(variable: ir.Variable) -> str:
    """Return the variable's name in the generated program."""
    return f"v{variable.uid}"


class Expressions:
    """Translate values. ``ranges``: known intervals of variables by uid (loop variables with immediate bounds)."""

    def __init__(self) -> None:
        self.ranges: dict[int, tuple[int, int]] = {}
        self._operations: dict[int, tuple[ir.Operation, Text]] = {}  # by id; authors use one value in many places

    def text(self, value: Any) -> Text:
        """Return the text of a value; integers may exceed their type (see :func:`wrapped`)."""
        if isinstance(value, ir.Variable):
            if is_float(value.dtype):
                return Text(name_of(value), value.dtype)
            low, high = self.ranges.get(value.uid) or limits(value.dtype)
            return Text(name_of(value), value.dtype, low, high)
        if isinstance(value, ir.Operation):
            known = self._operations.get(id(value))
            pending = [value] if known is None else []
            while pending:  # innermost first: sums of hundreds of terms are deep
                node = pending[-1]
                inner = [arg for arg in node.args if isinstance(arg, ir.Operation) and id(arg) not in self._operations]
                if inner:
                    pending += inner
                else:
                    known = self._operations[id(node)] = node, self._operation(node)
                    pending.pop()
            assert known is not None
            return known[1]
        return _immediate(value)

    def wrapped(self, value: Any) -> Text:
        """Return the text of a value inside the range of its type."""
        return wrap(self.text(value))

    def converted(self, value: Any, dtype: str) -> Text:
        """Return the text of a value converted to ``dtype`` as an assignment does (D5c)."""
        return convert(self.text(value), dtype)

    def copy_number(self, selectors: tuple[tuple[ir.Variable, int], ...]) -> str:
        """Return the source text for a tensor's copy inside multi-buffered loops; "" for one copy."""
        source = ""
        for variable, copies in selectors:
            part = f"{self.wrapped(variable).source} % {copies}"
            source = part if not source else f"({source}) * {copies} + {part}"
        return f"({source})" if source else ""

    def _operation(self, node: ir.Operation) -> Text:
        if node.op == "index":
            index, *elements = node.args
            at = self.wrapped(index)
            low, high = (0, 0) if is_float(node.dtype) else limits(node.dtype)
            names = "".join(name_of(element) + "," for element in elements)
            return Text(f"_pick(({names}), {at.source})", node.dtype, low, high, at.cost + 1)
        if node.op == "not":
            inner = self.wrapped(node.args[0])
            return Text(f"(not {inner.source})", "bool", 0, 1, inner.cost + 1)
        if node.op in ("all", "any"):
            parts = [self.wrapped(arg) for arg in node.args]
            word = " and " if node.op == "all" else " or "
            return Text(
                f"bool({word.join(part.source for part in parts)})", "bool", 0, 1, sum(part.cost + 1 for part in parts)
            )
        left, right = (self.text(arg) for arg in node.args)
        left, right = _typed(node.args[0], left, right), _typed(node.args[1], right, left)
        if node.dtype == "bool":
            return _comparison(node.op, left, right)
        return (_float_operation if is_float(node.dtype) else _integer_operation)(node.op, left, right, node.dtype)


def _immediate(value: Any) -> Text:
    if isinstance(value, bool):
        return Text(str(value), "bool", int(value), int(value))
    if isinstance(value, int):
        return Text(str(value) if value >= 0 else f"({value})", "int64" if value < 1 << 63 else "uint64", value, value)
    value = float(value)
    if math.isfinite(value):
        return Text(repr(value) if math.copysign(1.0, value) > 0 else f"({value!r})", "double")
    return Text("_nan" if value != value else "_inf" if value > 0 else "(-_inf)", "double")


def _typed(node: Any, text: Text, other: Text) -> Text:
    """Return an immediate in the type that it has beside the other operand."""
    if not ir.is_immediate(node):
        return text
    if isinstance(node, bool):
        return text
    dtype = of_immediate(node, "int32" if other.dtype in ("bool", "double") else other.dtype)
    return convert(text, dtype) if is_float(dtype) else Text(text.source, dtype, text.low, text.high)


def wrap(text: Text, dtype: str | None = None) -> Text:
    """Bring an integer into the range of ``dtype`` (default: its own type), modulo the width (D5a)."""
    if text.dtype in ("bool", "double") or is_float(text.dtype):
        return text
    dtype = dtype or text.dtype
    low, high = limits(dtype)
    if text.dtype != dtype:
        own_low, own_high = limits(text.dtype)
        if not (own_low <= text.low and text.high <= own_high):
            text = wrap(text)
    if low <= text.low and text.high <= high:
        return text if text.dtype == dtype else Text(text.source, dtype, text.low, text.high, text.cost)
    mask = (1 << BITS[dtype]) - 1
    if low == 0:
        return Text(f"({text.source} & {mask})", dtype, 0, high, text.cost)
    return Text(f"((({text.source} + {-low}) & {mask}) - {-low})", dtype, low, high, text.cost)


def convert(text: Text, dtype: str) -> Text:
    """Return the value as an assignment to ``dtype`` stores it (D5c)."""
    source_is_float = text.dtype == "double" or is_float(text.dtype)
    if not is_float(dtype):
        if source_is_float:
            low, high = limits(dtype)
            return Text(f"_f2i({text.source}, {dtype!r})", dtype, low, high, text.cost + 1)
        if text.dtype == "bool":
            return Text(f"int({text.source})", dtype, 0, 1, text.cost)
        return wrap(text, dtype)
    if not source_is_float:
        text = wrap(text)
        exact, function = (_EXACT_F32, "_i2f32") if dtype == "float32" else (_EXACT_F16, "_i2f16")
        if -exact <= text.low and text.high <= exact:
            function = "float"
        return Text(f"{function}({text.source})", dtype, cost=text.cost + 1)
    if text.dtype in (dtype, "float16"):
        return Text(text.source, dtype, cost=text.cost)
    if text.dtype == "double":
        nearest = values.round_f32 if dtype == "float32" else values.round_f16
        rounded = _immediate(nearest(_constant(text.source)))
        return Text(rounded.source, dtype)
    return Text(f"{'_f32' if dtype == 'float32' else '_f16'}({text.source})", dtype, cost=text.cost + 1)


def _constant(source: str) -> float:
    return {"_nan": math.nan, "_inf": math.inf, "(-_inf)": -math.inf}.get(source) or float(source.strip("()"))


def _comparison(op: str, left: Text, right: Text) -> Text:
    cost = left.cost + right.cost + 1
    if op in ("&", "|"):
        return Text(f"({left.source} {op} {right.source})", "bool", 0, 1, cost)
    kinds = [text.dtype for text in (left, right)]
    common = promote(*kinds)
    bring = convert if is_float(common) else wrap
    left, right = (bring(_as_integer(text), common) for text in (left, right))
    return Text(f"({left.source} {op} {right.source})", "bool", 0, 1, cost)


def _as_integer(text: Text) -> Text:
    """Return a truth value as int32, other values as they are."""
    return Text(text.source, "int32", text.low, text.high, text.cost) if text.dtype == "bool" else text


def _float_operation(op: str, left: Text, right: Text, dtype: str) -> Text:
    left, right = (text if is_float(text.dtype) else convert(_as_integer(text), dtype) for text in (left, right))
    cost = left.cost + right.cost + 1
    raw = f"_fdiv({left.source}, {right.source})" if op == "/" else f"{left.source} {op} {right.source}"
    # float64 arithmetic rounded once more is the correctly rounded float32 (or float16) result of + - * /.
    return Text(f"{'_f32' if dtype == 'float32' else '_f16'}({raw})", dtype, cost=cost)


def _integer_operation(op: str, left: Text, right: Text, dtype: str) -> Text:
    left, right = _as_integer(left), _as_integer(right)
    cost = left.cost + right.cost + 1
    if op in ("+", "-", "*"):
        # These commute with wrapping, so operands of the same type need not be wrapped first.
        left, right = (text if text.dtype == dtype else wrap(text, dtype) for text in (left, right))
        compute = {"+": operator.add, "-": operator.sub, "*": operator.mul}[op]
        corners = [compute(one, other) for one in (left.low, left.high) for other in (right.low, right.high)]
        # Python reads nested parentheses 200 deep, and sums without them.
        flat = f"{left.flat or left.source} {op} {right.source}" if op != "*" else ""
        source = f"({flat or f'{left.source} {op} {right.source}'})"
        result = Text(source, dtype, min(corners), max(corners), cost, flat)
        return wrap(result) if max(-result.low, result.high) >> 200 else result
    left, right = wrap(left, dtype), wrap(right, dtype)
    low, high = limits(dtype)
    if op in ("/", "%"):
        if left.low >= 0 and right.low > 0:
            source = f"({left.source} {'//' if op == '/' else '%'} {right.source})"
            upper = left.high // right.low if op == "/" else min(left.high, right.high - 1)
            return Text(source, dtype, 0, upper, cost)
        function = "_div" if op == "/" else "_rem"
        bound = max(-left.low, left.high)
        return Text(f"{function}({left.source}, {right.source})", dtype, -bound, bound, cost)
    if op in ("<<", ">>"):
        count = right.source if right.low == right.high else f"_shift({right.source}, {BITS[dtype]})"
        source = f"({left.source} {op} {count})"
        if op == ">>":
            return Text(source, dtype, min(left.low, 0), max(left.high, 0), cost)
        most = right.high if right.low == right.high else BITS[dtype] - 1
        return Text(source, dtype, min(left.low << most, left.low), max(left.high << most, left.high), cost)
    source = f"({left.source} {op} {right.source})"
    if left.low >= 0 and right.low >= 0:
        bits = max(left.high, right.high).bit_length()
        return Text(source, dtype, 0, min(left.high, right.high) if op == "&" else (1 << bits) - 1, cost)
    if op == "&" and max(left.low, right.low) >= 0:
        return Text(source, dtype, 0, left.high if left.low >= 0 else right.high, cost)
    return Text(source, dtype, low, high, cost)
