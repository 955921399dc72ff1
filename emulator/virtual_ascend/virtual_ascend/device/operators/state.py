"""Operators with a state of the card: random numbers, and the overflow status.

Random streams are NumPy's, because the chip's are not documented. The status is eight numbers; the first one counts.
"""

from __future__ import annotations

import os
from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..numerics import STATUS, wide

_DRAWS = np.random.default_rng(int(os.environ.get("VIRTUAL_ASCEND_SEED", "0")))
_SIZE = 8


def _dropout_bits(kernel: OperatorCall, _shape: np.ndarray, keep: np.ndarray, *_rest: Any) -> np.ndarray:
    """Return a bit for each element, packed from the lowest one on."""
    count = int(np.prod(kernel.outputs[0]["shape"])) * 8
    return np.packbits(_DRAWS.random(count) < float(keep), bitorder="little")


def _apply_dropout(_kernel: OperatorCall, x: np.ndarray, bits: np.ndarray, keep: np.ndarray) -> np.ndarray:
    kept = np.unpackbits(bits.reshape(-1), count=x.size, bitorder="little").reshape(x.shape)
    return np.where(kept, wide(x) / float(keep), 0)


def _get(_kernel: OperatorCall, state: np.ndarray) -> np.ndarray:
    """Return the overflow status; the first version of this operator writes it into its input."""
    state[...] = STATUS.is_set
    return np.full(_SIZE, STATUS.is_set, np.float32)


def _clear(_kernel: OperatorCall, *_state: np.ndarray) -> np.ndarray:
    STATUS.is_set = False
    return np.zeros(_SIZE, np.float32)


TABLE: dict[str, Callable[..., Any]] = {
    **dict.fromkeys(("drop_out_do_mask", "dropout_do_mask"), _apply_dropout),
    "drop_out_gen_mask_v3": _dropout_bits,
    "n_p_u_alloc_float_status": lambda _kernel: np.zeros(_SIZE, np.float32),
    **dict.fromkeys(("n_p_u_clear_float_status", "n_p_u_clear_float_status_v2", "npu_clear_float_status_v2"), _clear),
    "n_p_u_get_float_status": _get,
    **dict.fromkeys(
        ("n_p_u_get_float_status_v2", "npu_get_float_status_v2"),
        lambda kernel, *_order: np.full(kernel.outputs[0]["shape"], STATUS.is_set),
    ),
}
#: MindSpore's name and CANN's.
AICPU: dict[str, Callable[..., Any]] = dict.fromkeys(("DropoutGenMask", "DropOutGenMask"), _dropout_bits)
