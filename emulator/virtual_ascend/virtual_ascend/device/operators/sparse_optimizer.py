"""Steps of optimizers on the rows that an index names, each of them once, with gradients of these rows alone."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...kernel import Kernel
from ..numerics import wide
from .optimizer import adadelta, ftrl, proximal_adagrad, rms_prop


def _in_rows(count: int, function: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """Of `count` tensors rows are updated; the function takes these, numbers, the gradient, and attributes by name."""

    def operator(kernel: Kernel, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        *given, gradient, index = arrays
        states, numbers = given[:count], given[count:]
        attributes = {name: kernel.attributes[name] for name in names if name in kernel.attributes}
        rows = function(*(state[index] for state in states), *numbers, wide(gradient), **attributes)
        results = tuple(state.copy() for state in states)
        for result, row in zip(results, rows):
            result[index] = row
        return results

    return operator


def _adagrad(
    weights: np.ndarray,
    squares: np.ndarray,
    gradient: np.ndarray,
    lr: float,
    epsilon: float = 0.0,
    update_slots: bool = True,
) -> tuple[np.ndarray, ...]:
    if update_slots:
        squares = squares + gradient**2
    return weights - lr * gradient / (np.sqrt(squares) + epsilon), squares


def _ftrl(
    weights: np.ndarray,
    squares: np.ndarray,
    linear: np.ndarray,
    gradient: np.ndarray,
    lr: float,
    l1: float,
    l2: float,
    lr_power: float,
    l2_shrinkage: float = 0.0,
) -> tuple[np.ndarray, ...]:
    """What shrinks the weights counts in the sum of gradients and not in that of their squares."""
    return ftrl(weights, squares, linear, gradient, lr, l1, l2, lr_power, 2 * l2_shrinkage * weights)


def _adadelta(*arrays: np.ndarray, epsilon: float) -> tuple[np.ndarray, ...]:
    *numbers, gradient = arrays
    return adadelta(*numbers, np.array(epsilon, np.float32), gradient)


_NUMBERS = "lr", "l1", "l2", "lr_power"
TABLE: dict[str, Callable[..., Any]] = {
    "sparse_apply_adadelta_d": _in_rows(3, _adadelta, "epsilon"),
    "sparse_apply_adagrad_d": _in_rows(2, _adagrad, "lr", "update_slots"),
    "sparse_apply_adagrad_v2_d": _in_rows(2, _adagrad, "lr", "epsilon", "update_slots"),
    "sparse_apply_ftrl_d": _in_rows(3, _ftrl, *_NUMBERS),
    "sparse_apply_ftrl_v2_d": _in_rows(3, _ftrl, *_NUMBERS, "l2_shrinkage"),
    "sparse_apply_proximal_adagrad_d": _in_rows(2, proximal_adagrad),
    "sparse_apply_rms_prop_d": _in_rows(3, rms_prop, "rho", "momentum", "epsilon"),
}
