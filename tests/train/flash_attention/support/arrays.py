"""NumPy arrays that many tests make."""

from __future__ import annotations

import numpy as np


def ends(lengths, zero: bool = True) -> tuple:
    """Return the cumulative lengths."""
    return tuple(np.cumsum((0, *lengths) if zero else lengths).tolist())


def random(*shape: int, seed: int | list[int] = 0, dtype: type = np.float32) -> np.ndarray:
    """Return normal random elements."""
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def draw(*shape: int, seed: int = 0, dtype: type = np.float32) -> np.ndarray:
    """Return normal random elements, different for each shape."""
    return random(*shape, seed=[seed, *shape], dtype=dtype)
