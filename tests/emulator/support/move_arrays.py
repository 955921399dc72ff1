"""Arrays of bytes for moves."""

from __future__ import annotations

import numpy as np

from tests.emulator.support.bench import recorded

RNG = np.random.default_rng(7)


def bytes_of(dtype: str, count: int) -> np.ndarray:
    """Arbitrary bit patterns, NaNs and infinities among them."""
    return RNG.integers(0, 256, count * np.dtype(dtype).itemsize, np.uint8).view(dtype)


def documented_move(dst: np.ndarray, src: np.ndarray, nburst, burst, src_stride, dst_stride) -> None:
    """core.md 4.1: bytes, gaps end to start."""
    for b in range(nburst):
        for k in range(burst * 32):
            dst[b * (burst + dst_stride) * 32 + k] = src[b * (burst + src_stride) * 32 + k]


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
