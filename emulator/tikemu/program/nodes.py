"""Nodes of run-time values: built and simplified, compared, shown as text.

The operators of :mod:`tikemu.frontend.expr` build them. Constants fold if the result is the same for all run-time
values.
"""

from __future__ import annotations

import numbers
import operator
from typing import Any, Union

from . import ir
from .dtypes import BITS, is_float, limits, of_immediate, promote
from .location import fail

Number = Union[int, float]

_COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")
_INTEGER_ONLY = ("//", "%", "&", "|", "<<", ">>")


def as_number(value: Any) -> Number | None:
    """Return an immediate as int or float, else None."""
    if isinstance(value, (int, float)):
        return value
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, numbers.Real) or type(value).__name__ in ("float16", "bool_"):
        return value.item() if hasattr(value, "item") else float(value)
    return None


def within_64_bits(value: Any, what: str) -> Any:
    """Return an immediate. Raises TikParamError for an integer that no type of the chip holds."""
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        fail(f"{what} must fit 64 bits if it is an integer, got one of {value.bit_length()} bits")
    return value


def as_integer(value: Any) -> int | None:
    """Return an immediate integer as int, else None (a bool is none)."""
    if type(value) is int:
        return value
    if isinstance(value, bool) or type(value).__name__ == "bool_":
        return None
    try:
        return operator.index(value)
    except TypeError:
        return None


def combine(op: str, left: Any, right: Any) -> ir.Value:
    """Return the node of ``left op right``, simplified."""
    left_type = left.dtype if not ir.is_immediate(left) else of_immediate(left, right.dtype)
    right_type = right.dtype if not ir.is_immediate(right) else of_immediate(right, left.dtype)
    if op in _COMPARISONS:
        return ir.Operation(op, (left, right), "bool")
    dtype = promote(left_type, right_type)
    if is_float(dtype):
        if op in _INTEGER_ONLY:
            fail(f"{op!r} needs integers, got {left_type} and {right_type}")
        return ir.Operation(op, tuple(float(arg) if isinstance(arg, int) else arg for arg in (left, right)), dtype)
    if op in ("&", "|") and left_type == right_type == "bool":
        return ir.Operation(op, (left, right), "bool")
    if op in ("<<", ">>") and isinstance(right, int) and not 0 <= right < BITS[dtype]:
        fail(f"the shift count must be in [0, {BITS[dtype] - 1}] for {dtype}, got {right}")
    if op == "//":
        op = "/"
    if op in ("/", "%") and isinstance(right, int) and right == 0:
        fail("division by zero")
    return _fold(op, left, right, dtype)


def _fold(op: str, left: ir.Value, right: ir.Value, dtype: str) -> ir.Value:
    """Reduce integer arithmetic: remove neutral elements, merge neighbouring constants."""
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
    """Return ``(x inner.op c) op constant`` with one constant if that is exact, else None."""
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
    """Return ``value`` as an integer combination of nodes that are no sums, plus a constant."""
    terms: dict[ir.Value, int] = {}
    constant = 0
    pending: list[tuple[ir.Value, int]] = [(value, 1)]
    while pending:
        node, factor = pending.pop()
        if isinstance(node, int):
            constant += factor * node
        elif isinstance(node, ir.Operation) and node.op in ("+", "-"):
            pending += [(node.args[1], factor if node.op == "+" else -factor), (node.args[0], factor)]
        elif isinstance(node, ir.Operation) and node.op == "*" and isinstance(node.args[1], int):
            pending.append((node.args[0], factor * node.args[1]))
        else:
            terms[node] = terms.get(node, 0) + factor
    return {atom: factor for atom, factor in terms.items() if factor}, constant


def difference(left: ir.Value, right: ir.Value) -> int | None:
    """Return ``left - right`` if it is the same for all run-time values, else None."""
    terms, constant = _linear(left)
    others, other = _linear(right)
    return constant - other if terms == others else None


def exact_quotient(value: ir.Value, divisor: int) -> ir.Value:
    """Return ``value / divisor`` for an integer value that is a multiple at run time."""
    terms, constant = _linear(value)
    if constant % divisor or any(factor % divisor for factor in terms.values()):
        return combine("/", value, divisor)
    result: ir.Value = 0
    for atom, factor in terms.items():
        term = combine("*", atom, factor // divisor)
        result = term if result == 0 else combine("+", result, term)
    return combine("+", result, constant // divisor) if terms else constant // divisor


# ------------------------------------------------------------------------------------------------ text
_RANKS = {9: ("index",), 7: ("*", "/", "%"), 6: ("+", "-"), 5: ("<<", ">>"), 4: ("&",), 3: ("|",)}
_PRECEDENCE = {op: rank for rank, ops in {**_RANKS, 2: ("<", "<=", ">", ">=", "==", "!=")}.items() for op in ops}


def describe(node: Any, outer: int = 0) -> str:
    """Return a value as text."""
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
