"""Losses and the gradients of their first inputs."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..by_name import attribute
from ..numerics import wide
from .activations import softplus
from .elementwise import of_arrays, sigmoid
from .normalisation import log_softmax, softmax

# Probabilities are at least so large. Assumed: the number in MindSpore's documents of its loss.
_LEAST = 1e-12


def _reduced(losses: np.ndarray, reduction: str) -> np.ndarray:
    """Return the losses, their sum, or their mean over all elements or the batch."""
    if reduction == "none":
        return losses
    return losses.sum() / _count(losses, reduction)


def _count(losses: np.ndarray, reduction: str) -> int:
    """Return the divisor of a reduction."""
    return {"mean": losses.size, "batchmean": len(losses)}.get(reduction, 1)


def cross_entropy(logits: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the loss of each row, and the gradient of its logits."""
    return -(labels * log_softmax(logits, -1)).sum(-1), softmax(logits) - labels


def binary_cross_entropy(
    x: np.ndarray, labels: np.ndarray, weights: np.ndarray | None = None, reduction: str = "mean"
) -> np.ndarray:
    terms = labels * np.log(np.maximum(x, _LEAST)) + (1 - labels) * np.log(np.maximum(1 - x, _LEAST))
    return _reduced(-terms if weights is None else -terms * weights, reduction)


def binary_cross_entropy_gradient(
    x: np.ndarray, labels: np.ndarray, gradient: np.ndarray, weights: np.ndarray | None = None, reduction: str = "mean"
) -> np.ndarray:
    slopes = gradient * (x - labels) / np.maximum(x * (1 - x), _LEAST) / _count(x, reduction)
    return slopes if weights is None else slopes * weights


def sigmoid_cross_entropy(
    x: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray | None = None,
    of_positive: np.ndarray | None = None,
    reduction: str = "none",
) -> np.ndarray:
    positive = labels if of_positive is None else labels * of_positive
    losses = (1 - labels) * softplus(x) + positive * softplus(-x)
    return _reduced(losses if weights is None else losses * weights, reduction)


def divergence(x: np.ndarray, target: np.ndarray, reduction: str) -> np.ndarray:
    """Compute the Kullback-Leibler divergence of logarithms and probabilities."""
    present = target > 0
    return _reduced(np.where(present, target * (np.log(np.where(present, target, 1)) - x), 0), reduction)


def divergence_gradient(gradient: np.ndarray, x: np.ndarray, target: np.ndarray, reduction: str) -> np.ndarray:
    return np.where(target > 0, -target * gradient, 0) / _count(x, reduction)


def _distances(kernel: OperatorCall, x: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, float, str]:
    """Return the signed distances, the place where the parabola ends, and the reduction."""
    return wide(x) - wide(labels), attribute(kernel, "beta", "sigma"), kernel.attributes["reduction"]


def _smooth_l1(kernel: OperatorCall, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    distances, beta, reduction = _distances(kernel, x, labels)
    size = np.abs(distances)
    return _reduced(np.where(size < beta, size**2 / (2 * beta), size - beta / 2), reduction)


def _smooth_l1_gradient(kernel: OperatorCall, x: np.ndarray, labels: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    distances, beta, reduction = _distances(kernel, x, labels)
    return wide(gradient) * np.clip(distances / beta, -1, 1) / _count(x, reduction)


def _weights_of_rows(kernel: OperatorCall, labels: np.ndarray, weights: np.ndarray) -> np.ndarray:
    ignored = labels == kernel.attributes.get("ignore_index", -100)
    return np.where(ignored, 0, wide(weights)[np.where(ignored, 0, labels)])


def _likelihood(
    kernel: OperatorCall, x: np.ndarray, labels: np.ndarray, weights: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return the weighted negative logarithms that the labels name, and the sum of the weights."""
    of_rows = _weights_of_rows(kernel, labels, weights)
    losses = -of_rows * np.take_along_axis(wide(x), np.where(of_rows == 0, 0, labels)[:, None], 1)[:, 0]
    reduction, total = kernel.attributes["reduction"], of_rows.sum()
    if reduction == "none":
        return losses, total
    return losses.sum() / (total if reduction == "mean" else 1), total


def _likelihood_gradient(
    kernel: OperatorCall,
    x: np.ndarray,
    gradient: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    total: np.ndarray,
) -> np.ndarray:
    of_rows = _weights_of_rows(kernel, labels, weights)
    slopes = -of_rows * wide(gradient).reshape(-1) / (total if kernel.attributes["reduction"] == "mean" else 1)
    return np.where(np.arange(x.shape[1]) == labels[:, None], slopes[:, None], 0)


def _in_top(kernel: OperatorCall, x: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Return whether fewer than k elements of a row exceed the named element."""
    chosen = np.take_along_axis(x, index[:, None], 1)
    return (x > chosen).sum(1) < kernel.attributes["k"]


TABLE: dict[str, Callable[..., Any]] = {
    "binary_cross_entropy": of_arrays(binary_cross_entropy, reduction="mean"),
    "binary_cross_entropy_grad": of_arrays(binary_cross_entropy_gradient, reduction="mean"),
    "in_top_k": _in_top,
    "kl_div": of_arrays(divergence, reduction="mean"),
    "kl_div_loss_grad": of_arrays(divergence_gradient, reduction="mean"),
    "nll_loss": _likelihood,
    "nll_loss_grad": _likelihood_gradient,
    "sigmoid_cross_entropy_with_logits": of_arrays(sigmoid_cross_entropy),
    "sigmoid_cross_entropy_with_logits_grad": of_arrays(lambda x, labels, gradient: gradient * (sigmoid(x) - labels)),
    "sigmoid_cross_entropy_with_logits_v2": of_arrays(sigmoid_cross_entropy, reduction="mean"),
    "smooth_l1_loss_grad_v2": _smooth_l1_gradient,
    "smooth_l1_loss_v2": _smooth_l1,
    "soft_margin_loss": of_arrays(
        lambda x, labels, reduction: _reduced(softplus(-labels * x), reduction), reduction="mean"
    ),
    "soft_margin_loss_grad": of_arrays(
        lambda x, labels, gradient, reduction: -labels * sigmoid(-labels * x) * gradient / _count(x, reduction),
        reduction="mean",
    ),
    "softmax_cross_entropy_with_logits": of_arrays(cross_entropy),
}
AICPU: dict[str, Callable[..., Any]] = {
    "KLDiv": TABLE["kl_div"],
    "KLDivLossGrad": TABLE["kl_div_loss_grad"],
    "NLLLoss": _likelihood,
    "NLLLossGrad": _likelihood_gradient,
    "SmoothL1LossGradV2": _smooth_l1_gradient,
    "SmoothL1LossV2": _smooth_l1,
}
