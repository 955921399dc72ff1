"""Compute the operators that GE names or shapes differently, by type. Others are found by the entry's name."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..numerics import wide
from . import elementwise, indexing, layout, losses, random, status
from .activations import silu_gradient
from .elementwise import of_arrays
from .normalisation import softmax_gradient


def _range(kernel: OperatorCall, start: np.ndarray, limit: np.ndarray, delta: np.ndarray) -> np.ndarray:
    return np.arange(*(one.reshape(-1)[0] for one in (start, limit, delta)), dtype=kernel.outputs[0]["dtype"])


def _embedding_gradient(kernel: OperatorCall, gradient: np.ndarray, index: np.ndarray) -> np.ndarray:
    result = np.zeros(kernel.outputs[0]["ori_shape"], np.float32)
    np.add.at(result, index.reshape(-1), wide(gradient).reshape(-1, result.shape[-1]))
    return result


def _cross_entropy_of_labels(_kernel: OperatorCall, x: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return losses.cross_entropy(wide(x), np.eye(x.shape[-1], dtype=np.float32)[labels])


def _softmax_gradient(kernel: OperatorCall, y: np.ndarray, gradient: np.ndarray) -> np.ndarray:
    axes = kernel.attributes.get("axes", -1)
    return softmax_gradient(wide(gradient), wide(y), tuple(axes) if isinstance(axes, list) else axes)


def _scattered_sum(_kernel: OperatorCall, x: np.ndarray, index: np.ndarray, updates: np.ndarray) -> np.ndarray:
    result = x.copy()
    np.add.at(result, tuple(np.moveaxis(index, -1, 0)), updates)
    return result


def _split_by_sizes(kernel: OperatorCall, x: np.ndarray) -> list[np.ndarray]:
    return np.split(x, np.cumsum(kernel.attributes["size_splits"])[:-1], kernel.attributes["split_dim"])


TABLE: dict[str, Callable[..., Any]] = {
    "AccumulateNV2": elementwise.TABLE["add_n"],
    "AddV2": elementwise.TABLE["add"],
    "ArgMaxV2": lambda _kernel, x, axis: np.argmax(x, axis=int(axis)),
    "CustGatherDGradV2": indexing.AICPU["GatherDGradV2"],
    "DropOutGenMaskV3": random.AICPU["DropOutGenMask"],
    "EmbeddingDenseGrad": _embedding_gradient,
    "Expand": layout.TABLE["broadcast_to"],
    "Fill": lambda kernel, _sizes, value: np.broadcast_to(value.reshape(-1)[0], kernel.outputs[0]["ori_shape"]),
    "Flatten": layout.TABLE["reshape"],
    "Gather": indexing.TABLE["gather_v2"],
    "GatherElements": lambda kernel, x, index: np.take_along_axis(x, index, kernel.attributes["dim"]),
    "NPUAllocFloatStatus": status.TABLE["n_p_u_alloc_float_status"],
    "NPUClearFloatStatus": status.TABLE["n_p_u_clear_float_status"],
    "NPUClearFloatStatusV2": status.TABLE["n_p_u_clear_float_status_v2"],
    "NPUGetFloatStatus": status.TABLE["n_p_u_get_float_status"],
    "NPUGetFloatStatusV2": status.TABLE["n_p_u_get_float_status_v2"],
    "Range": _range,
    "SelectV2": elementwise.TABLE["select"],
    "SoftmaxGrad": _softmax_gradient,
    "SparseSoftmaxCrossEntropyWithLogits": _cross_entropy_of_labels,
    "SplitV": _split_by_sizes,
    "SplitVD": _split_by_sizes,
    "Squeeze": layout.TABLE["reshape"],
    "SwishGrad": of_arrays(lambda gradient, x, _y=None, *, scale: silu_gradient(gradient, scale * x), scale=1.0),
    "TensorScatterAdd": _scattered_sum,
    "TopKV2": indexing.TABLE["top_k"],
}
