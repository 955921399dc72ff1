"""Borders of tensors that repeat what stands inside, and their derivatives."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..numerics import wide

Pairs = Sequence[Sequence[int]]
#: NumPy's names of the modes of MirrorPad and PadV3.
_MODES: dict[str, Any] = {
    "REFLECT": "reflect",
    "SYMMETRIC": "symmetric",
    "reflect": "reflect",
    "edge": "edge",
    "circular": "wrap",
}


def _bordered(x: np.ndarray, widths: Pairs, mode: str, value: float = 0.0) -> np.ndarray:
    if mode == "constant":
        return np.pad(x, widths, constant_values=value)
    return np.pad(x, widths, _MODES[mode])


def _inner(gradient: np.ndarray, widths: Pairs, mode: str) -> np.ndarray:
    """Return the gradient of a bordered tensor: for each element the sum over all its copies."""
    shape = [length - low - high for length, (low, high) in zip(gradient.shape, widths)]
    count = int(np.prod(shape))
    sources = _bordered(np.arange(count).reshape(shape), widths, mode, -1)
    result, kept = np.zeros(count, np.float32), sources >= 0
    np.add.at(result, sources[kept], wide(gradient)[kept])
    return result.reshape(shape)


def _mirror_pad(kernel: OperatorCall, x: np.ndarray, widths: np.ndarray) -> np.ndarray:
    return _bordered(x, widths.reshape(-1, 2).tolist(), kernel.attributes["mode"])


def _mirror_pad_gradient(kernel: OperatorCall, gradient: np.ndarray, widths: np.ndarray) -> np.ndarray:
    return _inner(gradient, widths.reshape(-1, 2).tolist(), kernel.attributes["mode"])


def _pairs(kernel: OperatorCall, axes: int, widths: np.ndarray) -> list[list[int]]:
    """Return the widths of PadV3, which begin at the last axis. With `contiguous` both widths of an axis stand side by
    side.
    """
    flat = widths.reshape(-1)
    contiguous = kernel.attributes.get("paddings_contiguous", True)
    pairs = (flat.reshape(-1, 2) if contiguous else flat.reshape(2, -1).T).tolist()
    return [[0, 0]] * (axes - len(pairs)) + pairs[::-1]


def _pad(kernel: OperatorCall, x: np.ndarray, widths: np.ndarray, value: np.ndarray | None = None) -> np.ndarray:
    filling = 0.0 if value is None else value.reshape(-1)[0]
    return _bordered(x, _pairs(kernel, x.ndim, widths), kernel.attributes["mode"], filling)


def _pad_gradient(kernel: OperatorCall, gradient: np.ndarray, widths: np.ndarray) -> np.ndarray:
    return _inner(gradient, _pairs(kernel, gradient.ndim, widths), kernel.attributes["mode"])


TABLE: dict[str, Callable[..., Any]] = {
    "mirror_pad": _mirror_pad,
    "mirror_pad_grad": _mirror_pad_gradient,
    "pad_v3": _pad,
    "pad_v3_grad": _pad_gradient,
}
AICPU: dict[str, Callable[..., Any]] = {
    "MirrorPad": _mirror_pad,
    "MirrorPadGrad": _mirror_pad_gradient,
    "PadV3": _pad,
    "PadV3Grad": _pad_gradient,
}
