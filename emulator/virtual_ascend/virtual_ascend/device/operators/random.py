"""Random numbers and dropout. The streams are NumPy's, because the chip's streams are not documented."""

from __future__ import annotations

import os
from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..numerics import wide

_DRAWS = np.random.default_rng(int(os.environ.get("VIRTUAL_ASCEND_SEED", "0")))


def _dropout_bits(kernel: OperatorCall, _shape: np.ndarray, keep: np.ndarray, *_rest: Any) -> np.ndarray:
    """Return a bit for each element, packed from the lowest one on."""
    count = int(np.prod(kernel.outputs[0]["shape"])) * 8
    return np.packbits(_DRAWS.random(count) < float(keep), bitorder="little")


def _apply_dropout(_kernel: OperatorCall, x: np.ndarray, bits: np.ndarray, keep: np.ndarray) -> np.ndarray:
    kept = np.unpackbits(bits.reshape(-1), count=x.size, bitorder="little").reshape(x.shape)
    return np.where(kept, wide(x) / float(keep), 0)


TABLE: dict[str, Callable[..., Any]] = dict.fromkeys(("drop_out_do_mask", "dropout_do_mask"), _apply_dropout)
AICPU: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("DropoutGenMask", "DropOutGenMask"), _dropout_bits),  # MindSpore's name and CANN's
    "StandardNormal": lambda kernel, *_: _DRAWS.standard_normal(kernel.outputs[0]["shape"], np.float32),
    "UniformReal": lambda kernel, *_: _DRAWS.random(kernel.outputs[0]["shape"], np.float32),
}
