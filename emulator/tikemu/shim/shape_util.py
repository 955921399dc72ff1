"""Shape utilities: ``tbe.common.utils.shape_util`` and the older modules that hold the same functions."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from .error_manager import violation as _violation


def shape_to_list(shape: Iterable[Any]) -> list[int]:
    """Return a shape as a list of ints."""
    return [int(extent) for extent in shape]


def scalar2tensor_one(shape: Sequence[int]) -> Sequence[int]:
    """Return ``(1,)`` for the empty shape of a scalar, other shapes as they are."""
    return shape if len(shape) else (1,)


def axis_check(shape_len: int, axis: int | Sequence[int]) -> int | list[int]:
    """Return axes as non-negative numbers, without repetition, ascending. Raises RuntimeError outside the rank."""
    single = not isinstance(axis, (list, tuple))
    axes = sorted(set(wrap_axis_to_positive(axis, shape_len)))
    return axes[0] if single else axes


def wrap_axis_to_positive(axis: int | Sequence[int], rank: int) -> list[int]:
    """Count negative axes from the end; return all of them."""
    axes: list[Any] = list(axis) if isinstance(axis, (list, tuple)) else [axis]
    for value in axes:
        if not isinstance(value, int) or not -rank <= value < rank:
            _violation(f"axis must be an integer in [{-rank}, {rank}), got {value!r}")
    return [value + rank if value < 0 else value for value in axes]


def broadcast_shapes(
    shape1: Sequence[int],
    shape2: Sequence[int],
    op_name: str = "",
    param_name_input1: str = "",
    param_name_input2: str = "",
) -> tuple[list[int], list[int], list[int]]:
    """Return both shapes with equal rank, and the shape they broadcast to.

    Raises:
        RuntimeError: two extents differ and neither is 1.
    """
    rank = max(len(shape1), len(shape2))
    one = [1] * (rank - len(shape1)) + list(shape1)
    other = [1] * (rank - len(shape2)) + list(shape2)
    result = []
    for left, right in zip(one, other):
        if left != right and 1 not in (left, right):
            names = f"{op_name or 'broadcast'}: {param_name_input1 or 'first'} and {param_name_input2 or 'second'}"
            _violation(f"{names} shapes {tuple(shape1)} and {tuple(shape2)} do not broadcast")
        result.append(right if left == 1 else left)
    return one, other, result


def produce_shapes(shape1: Sequence[int], shape2: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """Call :func:`broadcast_shapes` by its older name."""
    return broadcast_shapes(shape1, shape2)


def refine_shapes_for_broadcast(shape1: Sequence[int], shape2: Sequence[int]) -> tuple[list[int], list[int]]:
    """Merge neighbouring dimensions of both shapes if both broadcast in the same way."""
    one, other, _ = broadcast_shapes(shape1, shape2)
    merged: list[tuple[int, int]] = []
    for left, right in zip(one, other):
        if left == right == 1 and merged:
            continue
        if merged and _broadcast_kind(*merged[-1]) == _broadcast_kind(left, right):
            merged[-1] = (merged[-1][0] * left, merged[-1][1] * right)
        else:
            merged.append((left, right))
    return [left for left, _ in merged], [right for _, right in merged]


def _broadcast_kind(left: int, right: int) -> int:
    return (left > right) - (left < right)


def refine_shape_axes(shape: Sequence[int], axes: int | Sequence[int]) -> tuple[list[int], list[int]]:
    """Shape and reduction axes with neighbouring dimensions of one kind (reduced or kept) merged."""
    reduced = set(wrap_axis_to_positive(axes, len(shape)))
    extents: list[int] = []
    kinds: list[bool] = []
    for axis, extent in enumerate(shape):
        kind = axis in reduced
        if kinds and (kinds[-1] == kind or extent == 1):
            extents[-1] *= extent
        else:
            extents.append(extent)
            kinds.append(kind)
    return extents, [position for position, kind in enumerate(kinds) if kind]


def compare_tensor_dict_key(dict1: dict[str, Any], dict2: dict[str, Any], dict_key: str) -> None:
    """Require that two operands agree in shape, dtype or format. Raises RuntimeError."""
    for one in (dict1, dict2):
        if not isinstance(one, dict) or dict_key not in one:
            _violation(f"both operands must be dicts with {dict_key!r}, got {one!r}")
    left, right = dict1[dict_key], dict2[dict_key]
    if isinstance(left, (list, tuple)):
        left, right = list(left), list(right)
    elif isinstance(left, str):
        left, right = left.lower(), right.lower()
    if left != right:
        _violation(f"{dict_key} of both operands must be equal, got {left!r} and {right!r}")


def get_shape_size(shape: Sequence[int]) -> int:
    """Return the number of elements."""
    return math.prod(shape)


__all__ = [
    "axis_check",
    "broadcast_shapes",
    "compare_tensor_dict_key",
    "get_shape_size",
    "produce_shapes",
    "refine_shape_axes",
    "refine_shapes_for_broadcast",
    "scalar2tensor_one",
    "shape_to_list",
    "wrap_axis_to_positive",
]
