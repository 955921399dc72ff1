"""Arrays for whole-tensor APIs and moves, and the paths of moves."""

from __future__ import annotations

import numpy as np

RNG = np.random.default_rng(7)

PLAIN_PATHS = [
    ("GM", "UB", "MTE2"),
    ("UB", "GM", "MTE3"),
    ("UB", "UB", "V"),
    ("GM", "L1", "MTE2"),
    ("UB", "L1", "MTE3"),
    ("L1", "UB", "MTE1"),
]


def bytes_of(dtype: str, count: int) -> np.ndarray:
    """Return arbitrary bit patterns, NaNs and infinities among them."""
    return RNG.integers(0, 256, count * np.dtype(dtype).itemsize, np.uint8).view(dtype)


def values(dtype, shape, low=-50.0, high=50.0):
    """Return uniform random elements."""
    return RNG.uniform(low, high, shape).astype(dtype)


def once(x, dtype):
    """Return a float64 result rounded once, saturated."""
    if np.dtype(dtype).kind != "f":
        return x.astype(dtype)
    limit = float(np.finfo(dtype).max)
    return np.clip(np.nan_to_num(x, nan=0.0, posinf=limit, neginf=-limit), -limit, limit).astype(dtype)
