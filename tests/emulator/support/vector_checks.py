"""A bench for calls of vector instructions that are refused."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.emulator.support.bench import Bench


def bench(dtype: str = "float16", strict: bool = False, count: int = 1024) -> tuple[Bench, Any, Any, Any]:
    """A bench with three tensors of ones in the Unified Buffer."""
    b = Bench(strict=strict)
    return (b, *(b.tensor(np.ones(count, dtype), name) for name in ("x", "y", "z")))
