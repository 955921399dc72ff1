"""Products of matrices: factors as they are, sums in float32, the result rounded once (as the Cube does)."""

from __future__ import annotations

from typing import Any, Callable

import numpy as np

from ...operator_call import OperatorCall
from ..numerics import wide


def _transposed(kernel: OperatorCall, *names: str) -> bool:
    return any(kernel.attributes.get(name) for name in names)


def matmul(kernel: OperatorCall, a: np.ndarray, b: np.ndarray, bias: np.ndarray | None = None, *_: Any) -> np.ndarray:
    """Multiply matrices, also over a batch."""
    a, b = wide(a), wide(b)
    if _transposed(kernel, "transpose_x1", "adj_x1", "transpose_a"):
        a = np.swapaxes(a, -1, -2)
    if _transposed(kernel, "transpose_x2", "adj_x2", "transpose_b"):
        b = np.swapaxes(b, -1, -2)
    product = a @ b
    return product if bias is None else product + wide(bias)


# CANN's entries, and the types MatMulV2 and BatchMatMulV2 in the form of an entry's name.
_NAMES = "batch_matmul", "batch_matmul_v2", "batch_mat_mul", "batch_mat_mul_v2", "mat_mul", "mat_mul_v2", "matmul"
TABLE: dict[str, Callable[..., Any]] = dict.fromkeys(_NAMES, matmul)
