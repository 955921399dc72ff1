"""Sums, extremes and the like over axes."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..by_name import both_forms, type_of
from ..numerics import wide


def axes_of(kernel: OperatorCall, x: np.ndarray, *names: str) -> tuple[int, ...]:
    """Return the axes that an attribute names; none means all."""
    for name in (*names, "axis", "axes"):
        if name in kernel.attributes:
            given = kernel.attributes[name]
            axes = tuple(given) if isinstance(given, (list, tuple)) else (given,)
            return axes or tuple(range(x.ndim))
    return tuple(range(x.ndim))


def of_scalar(x: np.ndarray, axes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the axes. A scalar has none, and MindSpore names its axis 0 or -1."""
    return () if x.ndim == 0 and set(axes) <= {0, -1} else axes


def _over_axes(function: Callable[..., Any]) -> Callable[..., Any]:
    def operator(kernel: OperatorCall, x: np.ndarray, axes: np.ndarray | None = None) -> np.ndarray:
        chosen = axes_of(kernel, x) if axes is None else tuple(axes.reshape(-1).tolist())
        return function(wide(x), axis=of_scalar(x, chosen), keepdims=bool(kernel.attributes.get("keep_dims", False)))

    return operator


def _deviation(kernel: OperatorCall, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the standard deviation and the mean."""
    x, axes, keep = wide(x), axes_of(kernel, x), bool(kernel.attributes.get("keep_dims", False))
    freedom = int(bool(kernel.attributes.get("unbiased", True)))
    return np.std(x, axes, ddof=freedom, keepdims=keep), np.mean(x, axes, keepdims=keep)


def _product_and_sum(
    kernel: OperatorCall, x: np.ndarray, y: np.ndarray, z: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Compute MindSpore's fusion of two Mul and a ReduceSum."""
    x, y, z = wide(x), wide(y), wide(z)
    keep = bool(kernel.attributes.get("keep_dims", False))
    return x * y, (y * z).sum(axes_of(kernel, y), keepdims=keep)


def _bias_gradient(kernel: OperatorCall, x: np.ndarray) -> np.ndarray:
    """Sum over all axes but the channels: the last axis, in images the second."""
    channels = 1 if x.ndim >= 4 else x.ndim - 1
    return wide(x).sum(tuple(axis for axis in range(x.ndim) if axis != channels))


def _arg(function: Callable[..., Any]) -> Callable[..., Any]:
    def operator(kernel: OperatorCall, x: np.ndarray, *_rest: Any) -> np.ndarray:
        axis = kernel.attributes.get("dimension", kernel.attributes.get("axis", -1))
        return function(x, axis=axis)

    return operator


def _arg_along(function: Callable[..., Any]) -> Callable[..., Any]:
    """Reduce a tensor along the axis, which is a tensor too."""
    return lambda _kernel, x, axis: function(x, axis=int(axis))


def _arg_with_value(position: Callable[..., Any], value: Callable[..., Any]) -> Callable[..., Any]:
    def operator(kernel: OperatorCall, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        axis = kernel.attributes.get("dimension", kernel.attributes.get("axis", 0))
        return position(x, axis=axis), value(x, axis=axis)

    return operator


def _running(function: np.ufunc) -> Callable[..., Any]:
    def operator(kernel: OperatorCall, x: np.ndarray, axis: np.ndarray | None = None) -> np.ndarray:
        along = kernel.attributes["axis"] if axis is None else int(axis)
        x, reverse = wide(x), kernel.attributes.get("reverse")
        if reverse:
            x = np.flip(x, along)
        if kernel.attributes.get("exclusive"):
            x = np.insert(np.delete(x, -1, along), 0, function.identity, along)
        results = function.accumulate(x, axis=along)
        return np.flip(results, along) if reverse else results

    return operator


def _running_least(kernel: OperatorCall, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the least so far, and the place of the last such."""
    axis = kernel.attributes["axis"]
    least = np.minimum.accumulate(x, axis)
    places = np.moveaxis(np.broadcast_to(np.arange(x.shape[axis]), np.moveaxis(x, axis, -1).shape), -1, axis)
    return least, np.maximum.accumulate(np.where(x == least, places, 0), axis)


_OVER_AXES: dict[str, Callable[..., Any]] = {
    "reduce_all": _over_axes(np.all),
    "reduce_any": _over_axes(np.any),
    "reduce_max": _over_axes(np.max),
    "reduce_mean": _over_axes(np.mean),
    "reduce_min": _over_axes(np.min),
    "reduce_prod": _over_axes(np.prod),
    "reduce_sum": _over_axes(np.sum),
}
TABLE: dict[str, Callable[..., Any]] = {
    **both_forms(**_OVER_AXES, cumprod=_running(np.multiply), cumsum=_running(np.add)),
    "arg_max_d": _arg(np.argmax),
    "arg_min_d": _arg(np.argmin),
    "arg_max_with_value": _arg_with_value(np.argmax, np.max),
    "arg_min_with_value": _arg_with_value(np.argmin, np.min),
    "bias_add_grad": _bias_gradient,
    "confusion_mul_grad": _product_and_sum,
    "cummin": _running_least,
    "l2_loss": lambda _kernel, x: np.square(wide(x)).sum() / 2,
    "reduce_std": _deviation,
    "square_sum_all": lambda _kernel, x, y: (np.square(wide(x)).sum(), np.square(wide(y)).sum()),
    "square_sum_v1": _over_axes(lambda x, **over: np.square(x).sum(**over)),
}
AICPU: dict[str, Callable[..., Any]] = {
    "ArgMax": _arg_along(np.argmax),
    "ArgMin": _arg_along(np.argmin),
    "ArgMaxWithValue": TABLE["arg_max_with_value"],
    "ArgMinWithValue": TABLE["arg_min_with_value"],
    **{type_of(name): function for name, function in _OVER_AXES.items()},
    "Argmax": TABLE["arg_max_d"],
    "CumProd": TABLE["cumprod_d"],
    "CumSum": TABLE["cumsum_d"],
}
