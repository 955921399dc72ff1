"""Sums, extremes and the like over axes, and products of matrices.

Factors are multiplied as they are, sums are in float32, and the result is rounded once, as the Cube does.
"""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..by_name import both_forms, type_of
from ..numerics import wide


def axes_of(kernel: OperatorCall, x: np.ndarray) -> tuple[int, ...]:
    """Return the axes that an attribute names; none means all."""
    given = next((kernel.attributes[name] for name in ("axis", "axes") if name in kernel.attributes), ())
    return (tuple(given) if isinstance(given, (list, tuple)) else (given,)) or tuple(range(x.ndim))


def of_scalar(x: np.ndarray, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes. A scalar has none, and MindSpore names its axis 0 or -1."""
    return () if x.ndim == 0 and set(axes) <= {0, -1} else axes


def _over_axes(function: Callable[..., Any]) -> Callable[..., Any]:
    def operator(kernel: OperatorCall, x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
        chosen = axes_of(kernel, x) if axes is None else tuple(axes.reshape(-1).tolist())
        return function(wide(x), axis=of_scalar(x, chosen), keepdims=bool(kernel.attributes.get("keep_dims", False)))

    return operator


def _largest(kernel: OperatorCall, x: np.ndarray, axis: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return the places of the largest elements along an axis, and the elements."""
    along = kernel.attributes.get("dimension", kernel.attributes.get("axis", -1)) if axis is None else int(axis)
    return np.argmax(x, axis=along), np.max(x, axis=along)


def _running_sum(kernel: OperatorCall, x: np.ndarray, axis: np.ndarray | None = None) -> np.ndarray:
    along = kernel.attributes["axis"] if axis is None else int(axis)
    x, reverse = wide(x), kernel.attributes.get("reverse")
    if reverse:
        x = np.flip(x, along)
    if kernel.attributes.get("exclusive"):
        x = np.insert(np.delete(x, -1, along), 0, 0, along)
    results = np.cumsum(x, axis=along)
    return np.flip(results, along) if reverse else results


def _product(kernel: OperatorCall, a: np.ndarray, b: np.ndarray, bias: np.ndarray | None = None, *_: Any) -> np.ndarray:
    """Multiply matrices, also over a batch."""

    def factor(array: np.ndarray, *names: str) -> np.ndarray:
        array = wide(array)
        return np.swapaxes(array, -1, -2) if any(kernel.attributes.get(name) for name in names) else array

    product = factor(a, "transpose_x1", "adj_x1", "transpose_a") @ factor(b, "transpose_x2", "adj_x2", "transpose_b")
    return product if bias is None else product + wide(bias)


_OVER_AXES: dict[str, Callable[..., Any]] = {
    "reduce_all": _over_axes(np.all),
    "reduce_any": _over_axes(np.any),
    "reduce_max": _over_axes(np.max),
    "reduce_mean": _over_axes(np.mean),
    "reduce_min": _over_axes(np.min),
    "reduce_sum": _over_axes(np.sum),
}
# CANN's entries, and the types MatMulV2 and BatchMatMulV2 in the form of an entry's name.
_PRODUCTS = "batch_matmul", "batch_matmul_v2", "batch_mat_mul", "batch_mat_mul_v2", "mat_mul", "mat_mul_v2", "matmul"
TABLE: dict[str, Callable[..., Any]] = {
    **both_forms(**_OVER_AXES, cumsum=_running_sum),
    **dict.fromkeys(("arg_max_d", "arg_max_v2", "arg_max_with_value"), _largest),
    "bias_add_grad": lambda _kernel, x: wide(x).sum(tuple(range(x.ndim - 1))),
    "square_sum_v1": _over_axes(lambda x, **over: np.square(x).sum(**over)),
    **dict.fromkeys(_PRODUCTS, _product),
}
AICPU: dict[str, Callable[..., Any]] = {
    **{type_of(name): function for name, function in _OVER_AXES.items()},
    **dict.fromkeys(("ArgMax", "Argmax", "ArgMaxWithValue"), _largest),
    "CumSum": _running_sum,
}
