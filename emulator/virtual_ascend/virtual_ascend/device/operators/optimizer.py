"""Steps of optimizers: the updated tensors are the first results."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..by_name import both_forms
from ..numerics import wide
from .elementwise import of_arrays


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


def _adagrad(kernel: OperatorCall, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    weights, squares, rate, gradient = arrays
    gradient = wide(gradient)
    if kernel.attributes.get("update_slots", True):
        squares = squares + gradient**2
    return weights - rate * gradient / np.sqrt(squares), squares


def rms_prop(*arrays: np.ndarray, rho: float, momentum: float, epsilon: float) -> tuple[np.ndarray, ...]:
    weights, squares, velocity, rate, gradient = arrays
    squares = rho * squares + (1 - rho) * gradient**2
    velocity = momentum * velocity + rate * gradient / np.sqrt(squares + epsilon)
    return weights - velocity, squares, velocity


def _amsgrad(*arrays: np.ndarray, beta1: float, beta2: float, epsilon: float) -> tuple[np.ndarray, ...]:
    weights, mean, square, largest, beta1_power, beta2_power, rate, gradient = arrays
    mean, square = beta1 * mean + (1 - beta1) * gradient, beta2 * square + (1 - beta2) * gradient**2
    largest = np.maximum(largest, square)
    step = rate * np.sqrt(1 - beta2_power) / (1 - beta1_power)
    return weights - step * mean / (np.sqrt(largest) + epsilon), mean, square, largest


def _lamb_update(_kernel: OperatorCall, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Compute the first half of a step of Lamb: the update before it is scaled, second moment, first."""
    gradient, square, mean, weights, keep_mean, take_mean, keep_square, take_square, *rest = arrays
    epsilon, steps, decays, decay = rest
    gradient = wide(gradient)
    square = keep_square * square + take_square * gradient**2
    mean = keep_mean * mean + take_mean * gradient
    direction = mean / (1 - keep_mean**steps) / (np.sqrt(square / (1 - keep_square**steps)) + epsilon)
    return direction + decays * decay * weights, square, mean


def _lamb_weights(_kernel: OperatorCall, *arrays: np.ndarray) -> np.ndarray:
    """Compute the second half: scale the update to the length of the weights, unless either has length 0."""
    weights_norm, update_norm, rate, update, weights = arrays
    both = (weights_norm > 0) & (update_norm > 0)
    ratio = np.where(both, weights_norm / np.where(both, update_norm, 1), 1)
    return weights - rate * ratio * update


TABLE: dict[str, Callable[..., Any]] = {
    **{f"adam_apply_one{decay}{ending}": _adam_step for decay in ("", "_with_decay") for ending in ("", "_assign")},
    **both_forms(apply_adam=_adam, apply_momentum=_momentum),
    "apply_gradient_descent": lambda _kernel, weights, rate, gradient: weights - rate * wide(gradient),
    "apply_adagrad_d": _adagrad,
    "apply_adam_with_amsgrad_d": of_arrays(_amsgrad, beta1=0.9, beta2=0.999, epsilon=1e-8),
    "apply_rms_prop_d": of_arrays(rms_prop, rho=0.9, momentum=0.0, epsilon=1e-10),
    "lamb_apply_optimizer_assign": _lamb_update,
    "lamb_apply_weight_assign": _lamb_weights,
    "sgd": _sgd,
}
