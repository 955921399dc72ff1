"""Steps of optimizers: what is updated comes back first."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...kernel import Kernel
from ..by_name import both_forms
from ..numerics import wide
from .elementwise import of_arrays


def _adam(kernel: Kernel, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    weights, mean, square, beta1_power, beta2_power, rate, beta1, beta2, epsilon, gradient = arrays
    gradient = wide(gradient)
    mean = beta1 * mean + (1 - beta1) * gradient
    square = beta2 * square + (1 - beta2) * gradient**2
    step = rate * np.sqrt(1 - beta2_power) / (1 - beta1_power)
    direction = beta1 * mean + (1 - beta1) * gradient if kernel.attributes.get("use_nesterov") else mean
    return weights - step * direction / (np.sqrt(square) + epsilon), mean, square


def _momentum(kernel: Kernel, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    weights, velocity, rate, gradient, momentum = arrays
    gradient = wide(gradient)
    velocity = velocity * momentum + gradient
    direction = gradient + momentum * velocity if kernel.attributes.get("use_nesterov") else velocity
    return weights - rate * direction, velocity


def _sgd(kernel: Kernel, *arrays: np.ndarray) -> np.ndarray:
    """Update weights. `first` is positive in the first step, where the velocity is the gradient.

    Both are updated where they lie: only the weights are an output.
    """
    weights, gradient, rate, velocity, momentum, first = arrays
    attributes = kernel.attributes
    gradient = wide(gradient) + attributes.get("weight_decay", 0.0) * weights
    damped = (1 - attributes.get("dampening", 0.0)) * gradient
    velocity[...] = np.where(first > 0, gradient, momentum * velocity + damped)
    first[...] = 0
    direction = gradient + momentum * velocity if attributes.get("nesterov") else velocity
    return weights - rate * direction


def _adam_step(_kernel: Kernel, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return MindSpore's fusions of a composed Adam, with and without weight decay: second moment, first, weights."""
    gradient, square, mean, weights, rate, *factors, epsilon = arrays
    keep_mean, take_mean, keep_square, take_square, *decay = factors
    gradient = wide(gradient)
    square = keep_square * square + take_square * gradient**2
    mean = keep_mean * mean + take_mean * gradient
    step = mean / (np.sqrt(square) + epsilon)
    if decay:
        step = step + decay[0] * weights
    return square, mean, weights - rate * step


def _adagrad(kernel: Kernel, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    weights, squares, rate, gradient = arrays
    gradient = wide(gradient)
    if kernel.attributes.get("update_slots", True):
        squares = squares + gradient**2
    return weights - rate * gradient / np.sqrt(squares), squares


def proximal_adagrad(
    weights: np.ndarray, squares: np.ndarray, rate: np.ndarray, l1: np.ndarray, l2: np.ndarray, gradient: np.ndarray
) -> tuple[np.ndarray, ...]:
    squares = squares + gradient**2
    rates = rate / np.sqrt(squares)
    moved = weights - rates * gradient
    return np.sign(moved) * np.maximum(np.abs(moved) - rates * l1, 0) / (1 + rates * l2), squares


def adadelta(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    weights, squares, updates, rate, kept, epsilon, gradient = arrays
    squares = kept * squares + (1 - kept) * gradient**2
    update = np.sqrt(updates + epsilon) / np.sqrt(squares + epsilon) * gradient
    return weights - rate * update, squares, kept * updates + (1 - kept) * update**2


def rms_prop(*arrays: np.ndarray, rho: float, momentum: float, epsilon: float) -> tuple[np.ndarray, ...]:
    weights, squares, velocity, rate, gradient = arrays
    squares = rho * squares + (1 - rho) * gradient**2
    velocity = momentum * velocity + rate * gradient / np.sqrt(squares + epsilon)
    return weights - velocity, squares, velocity


def _centered_rms_prop(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    weights, mean, squares, velocity, rate, rho, momentum, epsilon, gradient = arrays
    mean, squares = rho * mean + (1 - rho) * gradient, rho * squares + (1 - rho) * gradient**2
    velocity = momentum * velocity + rate * gradient / np.sqrt(squares - mean**2 + epsilon)
    return weights - velocity, mean, squares, velocity


def _ada_max(*arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    weights, mean, largest, beta1_power, rate, beta1, beta2, epsilon, gradient = arrays
    mean, largest = beta1 * mean + (1 - beta1) * gradient, np.maximum(beta2 * largest, np.abs(gradient))
    return weights - rate / (1 - beta1_power) * mean / (largest + epsilon), mean, largest


def _amsgrad(*arrays: np.ndarray, beta1: float, beta2: float, epsilon: float) -> tuple[np.ndarray, ...]:
    weights, mean, square, largest, beta1_power, beta2_power, rate, gradient = arrays
    mean, square = beta1 * mean + (1 - beta1) * gradient, beta2 * square + (1 - beta2) * gradient**2
    largest = np.maximum(largest, square)
    step = rate * np.sqrt(1 - beta2_power) / (1 - beta1_power)
    return weights - step * mean / (np.sqrt(largest) + epsilon), mean, square, largest


def _lars(*arrays: np.ndarray, hyperpara: float, epsilon: float, use_clip: bool) -> np.ndarray:
    """Scale the gradient with weight decay to the layer's weights (arXiv:1708.03888, algorithm 1)."""
    weights, gradient, weights_square, gradient_square, decay, rate = arrays
    length = np.sqrt(weights_square)
    scale = hyperpara * length / (np.sqrt(gradient_square) + decay * length + epsilon)
    return (np.clip(scale / rate, 0, 1) if use_clip else scale) * (gradient + decay * weights)


def ftrl(
    weights: np.ndarray,
    squares: np.ndarray,
    linear: np.ndarray,
    gradient: np.ndarray,
    rate: Any,
    l1: Any,
    l2: Any,
    power: Any,
    shrinking: Any = 0.0,
) -> tuple[np.ndarray, ...]:
    root, squares = squares ** (-power), squares + gradient**2
    next_root = squares ** (-power)
    linear = linear + gradient + shrinking - (next_root - root) / rate * weights
    kept = np.abs(linear) > l1
    return np.where(kept, (np.sign(linear) * l1 - linear) / (next_root / rate + 2 * l2), 0), squares, linear


def _lamb_update(_kernel: Kernel, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return the first half of a step of Lamb: the update before it is scaled, second moment, first."""
    gradient, square, mean, weights, keep_mean, take_mean, keep_square, take_square, *rest = arrays
    epsilon, steps, decays, decay = rest
    gradient = wide(gradient)
    square = keep_square * square + take_square * gradient**2
    mean = keep_mean * mean + take_mean * gradient
    direction = mean / (1 - keep_mean**steps) / (np.sqrt(square / (1 - keep_square**steps)) + epsilon)
    return direction + decays * decay * weights, square, mean


def _lamb_weights(_kernel: Kernel, *arrays: np.ndarray) -> np.ndarray:
    """Return the second half: the update takes the length of the weights, where neither is without length."""
    weights_norm, update_norm, rate, update, weights = arrays
    both = (weights_norm > 0) & (update_norm > 0)
    ratio = np.where(both, weights_norm / np.where(both, update_norm, 1), 1)
    return weights - rate * ratio * update


TABLE: dict[str, Callable[..., Any]] = {
    **{f"adam_apply_one{decay}{ending}": _adam_step for decay in ("", "_with_decay") for ending in ("", "_assign")},
    **both_forms(apply_adam=_adam, apply_momentum=_momentum),
    "apply_gradient_descent": lambda _kernel, weights, rate, gradient: weights - rate * wide(gradient),
    "apply_ada_max_d": of_arrays(_ada_max),
    "apply_adadelta_d": of_arrays(adadelta),
    "apply_adagrad_d": _adagrad,
    "apply_adam_with_amsgrad_d": of_arrays(_amsgrad, beta1=0.9, beta2=0.999, epsilon=1e-8),
    "apply_centered_rms_prop_d": of_arrays(_centered_rms_prop),
    "apply_ftrl_d": of_arrays(ftrl),
    "apply_proximal_adagrad_d": of_arrays(proximal_adagrad),
    "apply_rms_prop_d": of_arrays(rms_prop, rho=0.9, momentum=0.0, epsilon=1e-10),
    "lamb_apply_optimizer_assign": _lamb_update,
    "lamb_apply_weight_assign": _lamb_weights,
    "lars_v2_update": of_arrays(_lars, hyperpara=0.001, epsilon=1e-5, use_clip=False),
    "sgd": _sgd,
}
