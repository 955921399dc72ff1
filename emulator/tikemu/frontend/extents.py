"""Extents of tensors: immediates and run-time integers (core.md 2.1)."""

from __future__ import annotations

from typing import Any, Union

from ..program import ir
from ..program.location import fail
from .expr import Expr, as_int, deeper, integer_node
from .recorder import Scope

Extent = Union[int, Expr]


def lower(value: Extent) -> ir.Value:
    """Return an extent, offset or stride as the program holds it."""
    return value._node if isinstance(value, Expr) else value


def lower_shape(shape: tuple[Any, ...]) -> tuple[ir.Value, ...]:
    """Return the extents (or strides) as the program holds them."""
    for extent in shape:
        if type(extent) is not int:
            return tuple([lower(extent) for extent in shape])
    return shape


def product(shape: tuple[Extent, ...]) -> Extent:
    """Return the number of elements."""
    result: Extent = 1
    for extent in shape:
        result = result * extent
    return result


def row_major(shape: tuple[Extent, ...]) -> tuple[Extent, ...]:
    """Return the strides in elements of a contiguous tensor."""
    strides, step = [], 1
    for extent in reversed(shape):
        strides.append(step)
        step = step * extent
    return tuple(reversed(strides))


def follows(shape: tuple[Extent, ...], strides: tuple[Extent, ...]) -> bool:
    """Return whether the elements of a view are known to follow each other in memory."""
    expected = 1
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if type(extent) is not int or type(stride) is not int:
            return False
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True


def check_shape(shape: Any, what: str, scope: Scope) -> tuple[tuple[Extent, ...], Scope]:
    """Return a shape of positive and run-time integers, and the scope it depends on.

    Raises:
        TikParamError: not a list or tuple of 1 to 8 positive integers and run-time integers.
    """
    if not isinstance(shape, (list, tuple)):
        fail(f"shape of {what} must be a list or tuple, got {type(shape).__name__} {shape!r}")
    if not 1 <= len(shape) <= 8:
        fail(f"shape of {what} must have 1 to 8 dimensions, got {len(shape)}")
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
                f"every extent of {what} must be a positive integer, a Scalar or an Expr, got "
                f"{extent!r} in {tuple(shape)}"
            )
        extents.append(number)
    return tuple(extents), scope
