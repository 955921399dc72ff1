"""Steps of optimizers: the updated tensors are the first results."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..by_name import both_forms
from ..numerics import wide


def _adam(kernel: OperatorCall, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    weights, mean, square, beta1_power, beta2_power, rate, beta1, beta2, epsilon, gradient = arrays
    gradient = wide(gradient)
    mean = beta1 * mean + (1 - beta1) * gradient
    square = beta2 * square + (1 - beta2) * gradient**2
    step = rate * np.sqrt(1 - beta2_power) / (1 - beta1_power)
    direction = beta1 * mean + (1 - beta1) * gradient if kernel.attributes.get("use_nesterov") else mean
    return weights - step * direction / (np.sqrt(square) + epsilon), mean, square


def _momentum(kernel: OperatorCall, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    weights, velocity, rate, gradient, momentum = arrays
    gradient = wide(gradient)
    velocity = velocity * momentum + gradient
    direction = gradient + momentum * velocity if kernel.attributes.get("use_nesterov") else velocity
    return weights - rate * direction, velocity


def _sgd(kernel: OperatorCall, *arrays: np.ndarray) -> np.ndarray:
    """Update weights. `first` is positive in the first step, when the velocity is the gradient.

    `velocity` and `first` are updated in place: only the weights are an output.
    """
    weights, gradient, rate, velocity, momentum, first = arrays
    attributes = kernel.attributes
    gradient = wide(gradient) + attributes.get("weight_decay", 0.0) * weights
    damped = (1 - attributes.get("dampening", 0.0)) * gradient
    velocity[...] = np.where(first > 0, gradient, momentum * velocity + damped)
    first[...] = 0
    direction = gradient + momentum * velocity if attributes.get("nesterov") else velocity
    return weights - rate * direction


def _adam_step(_kernel: OperatorCall, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Compute a step of MindSpore's fused Adam, with or without weight decay: second moment, first, weights."""
    gradient, square, mean, weights, rate, *factors, epsilon = arrays
    keep_mean, take_mean, keep_square, take_square, *decay = factors
    gradient = wide(gradient)
    square = keep_square * square + take_square * gradient**2
    mean = keep_mean * mean + take_mean * gradient
    step = mean / (np.sqrt(square) + epsilon)
    if decay:
        step = step + decay[0] * weights
    return square, mean, weights - rate * step


TABLE: dict[str, Callable[..., Any]] = {
    **{f"adam_apply_one{decay}{ending}": _adam_step for decay in ("", "_with_decay") for ending in ("", "_assign")},
    **both_forms(apply_adam=_adam, apply_momentum=_momentum),
    "sgd": _sgd,
}
