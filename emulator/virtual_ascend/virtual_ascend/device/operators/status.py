"""The overflow status of the card: eight numbers of which the first counts."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..numerics import STATUS

_SIZE = 8


def _get(_kernel: OperatorCall, state: np.ndarray) -> np.ndarray:
    """Return the overflow status; the first version of this operator writes it into its input."""
    state[...] = STATUS.is_set
    return np.full(_SIZE, STATUS.is_set, np.float32)


def _clear(_kernel: OperatorCall, _state: np.ndarray) -> np.ndarray:
    STATUS.is_set = False
    return np.zeros(_SIZE, np.float32)


def _clear_v2(_kernel: OperatorCall, *_order: Any) -> tuple[()]:
    STATUS.is_set = False
    return ()


TABLE: dict[str, Callable[..., Any]] = {
    "n_p_u_alloc_float_status": lambda _kernel: np.zeros(_SIZE, np.float32),
    "n_p_u_clear_float_status": _clear,
    "n_p_u_clear_float_status_v2": _clear_v2,
    "n_p_u_get_float_status": _get,
    "n_p_u_get_float_status_v2": lambda kernel, *_order: np.full(kernel.outputs[0]["shape"], STATUS.is_set),
}
