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
) -> tuple[np.ndarray, ...]:
    """`first` is positive in the first step, in which the velocity is the gradient."""
    attributes = kernel.attributes
    gradient = wide(gradient) + attributes.get("weight_decay", 0.0) * weights
    damped = (1 - attributes.get("dampening", 0.0)) * gradient
    velocity = np.where(first > 0, gradient, momentum * velocity + damped)
    direction = gradient + momentum * velocity if attributes.get("nesterov") else velocity
    return weights - rate * direction, velocity, np.zeros_like(first)


TABLE: dict[str, Callable[..., Any]] = {
    "apply_adam": _adam,
    "apply_adam_d": _adam,
    "apply_gradient_descent": lambda _kernel, weights, rate, gradient: weights - rate * wide(gradient),
    "apply_momentum": _momentum,
    "apply_momentum_d": _momentum,
    "sgd": _sgd,
}
