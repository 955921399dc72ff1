"""Arrays of the tests of the high-level vector APIs."""

from __future__ import annotations

import numpy as np

RNG = np.random.default_rng(3)


def values(dtype, shape, low=-50.0, high=50.0):
    """Uniform random elements."""
    return RNG.uniform(low, high, shape).astype(dtype)


def once(x, dtype):
    """A float64 result rounded once, saturated."""
    if np.dtype(dtype).kind != "f":
        return x.astype(dtype)
    limit = float(np.finfo(dtype).max)
    return np.clip(np.nan_to_num(x, nan=0.0, posinf=limit, neginf=-limit), -limit, limit).astype(dtype)
