"""Steps of optimizers: what is updated comes back first."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...kernel import Kernel
from ..numerics import wide


def _adam(
    kernel: Kernel,
    weights: np.ndarray,
    mean: np.ndarray,
    square: np.ndarray,
    beta1_power: np.ndarray,
    beta2_power: np.ndarray,
    rate: np.ndarray,
    beta1: np.ndarray,
    beta2: np.ndarray,
    epsilon: np.ndarray,
    gradient: np.ndarray,
) -> tuple[np.ndarray, ...]:
    gradient = wide(gradient)
    mean = beta1 * mean + (1 - beta1) * gradient
    square = beta2 * square + (1 - beta2) * gradient**2
    step = rate * np.sqrt(1 - beta2_power) / (1 - beta1_power)
    direction = beta1 * mean + (1 - beta1) * gradient if kernel.attributes.get("use_nesterov") else mean
    return weights - step * direction / (np.sqrt(square) + epsilon), mean, square


def _momentum(
    kernel: Kernel,
    weights: np.ndarray,
    velocity: np.ndarray,
    rate: np.ndarray,
    gradient: np.ndarray,
    momentum: np.ndarray,
) -> tuple[np.ndarray, ...]:
    gradient = wide(gradient)
    velocity = velocity * momentum + gradient
    direction = gradient + momentum * velocity if kernel.attributes.get("use_nesterov") else velocity
    return weights - rate * direction, velocity


def _sgd(
    kernel: Kernel,
    weights: np.ndarray,
    gradient: np.ndarray,
    rate: np.ndarray,
    velocity: np.ndarray,
    momentum: np.ndarray,
    first: np.ndarray,
) -> np.ndarray:
    """`first` is positive in the first step, in which the velocity is the gradient.

    Both are updated where they lie: only the weights are an output.
    """
    attributes = kernel.attributes
    gradient = wide(gradient) + attributes.get("weight_decay", 0.0) * weights
    damped = (1 - attributes.get("dampening", 0.0)) * gradient
    velocity[...] = np.where(first > 0, gradient, momentum * velocity + damped)
    first[...] = 0
    direction = gradient + momentum * velocity if attributes.get("nesterov") else velocity
    return weights - rate * direction


def _adam_step(
    _kernel: Kernel,
    gradient: np.ndarray,
    square: np.ndarray,
    mean: np.ndarray,
    weights: np.ndarray,
    rate: np.ndarray,
    keep_mean: np.ndarray,
    take_mean: np.ndarray,
    keep_square: np.ndarray,
    take_square: np.ndarray,
    *rest: np.ndarray,
) -> tuple[np.ndarray, ...]:
    """MindSpore's fusions of a composed Adam, with and without weight decay: second moment, first, weights."""
    *decay, epsilon = rest
    gradient = wide(gradient)
    square = keep_square * square + take_square * gradient**2
    mean = keep_mean * mean + take_mean * gradient
    step = mean / (np.sqrt(square) + epsilon)
    if decay:
        step = step + decay[0] * weights
    return square, mean, weights - rate * step


TABLE: dict[str, Callable[..., Any]] = {
    "adam_apply_one": _adam_step,
    "adam_apply_one_assign": _adam_step,
    "adam_apply_one_with_decay": _adam_step,
    "adam_apply_one_with_decay_assign": _adam_step,
    "apply_adam": _adam,
    "apply_adam_d": _adam,
    "apply_gradient_descent": lambda _kernel, weights, rate, gradient: weights - rate * wide(gradient),
    "apply_momentum": _momentum,
    "apply_momentum_d": _momentum,
    "sgd": _sgd,
}
