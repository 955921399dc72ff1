"""Arrays of bytes for moves."""

from __future__ import annotations

import numpy as np

from tests.emulator.support.bench import recorded

RNG = np.random.default_rng(7)


def bytes_of(dtype: str, count: int) -> np.ndarray:
    """Arbitrary bit patterns, NaNs and infinities among them."""
    return RNG.integers(0, 256, count * np.dtype(dtype).itemsize, np.uint8).view(dtype)


PLAIN_PATHS = [
    ("GM", "UB", "MTE2"),
    ("UB", "GM", "MTE3"),
    ("UB", "UB", "V"),
    ("GM", "L1", "MTE2"),
    ("UB", "L1", "MTE3"),
    ("L1", "UB", "MTE1"),
]


def call_views(dst_dtype, src_dtype, target, source):
    """Destination and source of a call as recorded tensors."""
    return recorded(dst_dtype, target, "dst"), recorded(src_dtype, source, "src")
