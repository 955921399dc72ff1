"""Random operands and masks of vector instructions."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from tests.emulator.support.naive_instructions import lanes


def _patterns(words: str, dtype: type) -> np.ndarray:
    """Return the bit patterns, written in hexadecimal digits."""
    return np.array([int(word, 16) for word in words.split()], dtype)


EDGES16 = _patterns(
    "0000 8000 0001 8001 03FF 0400 3C00 BC00 3C01 7BFF FBFF 7C00 FC00 7E00 FE01 7C01 3555 5640 6400 7800",
    np.uint16,
)
EDGES32 = _patterns(
    "00000000 80000000 00000001 80000001 007FFFFF 00800000 3F800000 BF800000 3F800001 7F7FFFFF FF7FFFFF 7F800000 "
    "FF800000 7FC00000 FFC00001 7F800001 3EAAAAAB 42C80000 4B000001 33000000",
    np.uint32,
)


def sample(rng: np.random.Generator, dtype: str, count: int) -> np.ndarray:
    """Return random elements: ordinary numbers, any bit pattern, and edge values."""
    kind = np.dtype(dtype)
    patterns = rng.integers(0, 256, count * kind.itemsize, dtype=np.uint8).view(kind).copy()
    if kind.kind != "f":
        small = rng.integers(-100 if kind.kind == "i" else 0, 100, count).astype(kind)
        return np.where(rng.random(count) < 0.5, patterns, small)
    edges = (EDGES16 if dtype == "float16" else EDGES32).view(kind)
    ordinary = (rng.standard_normal(count) * 10.0 ** rng.integers(-3, 4, count)).astype(kind)
    choice = rng.random(count)
    bits = f"uint{8 * kind.itemsize}"
    result = np.where(choice < 0.6, ordinary.view(bits), patterns.view(bits))
    return np.where(choice > 0.8, rng.choice(edges.view(bits), count), result).view(kind)


def random_mask(rng: np.random.Generator, width: int) -> int | list[int]:
    """Return a mask: full, leading lanes, or a list."""
    kind = rng.integers(4)
    if kind == 0:
        return width
    if kind == 1:
        return int(rng.integers(1, width + 1))
    bits = 0
    while not bits:
        bits = int.from_bytes(rng.bytes(width // 8), "little")
        if kind == 3:
            bits &= (1 << int(rng.integers(1, width + 1))) - 1
    return [bits >> 64, bits & (1 << 64) - 1]


def extent(mask: int | Sequence[int], size: int, repeats: int, rep: int, blk: int = 1) -> int:
    """Return the bytes from an operand's start to the end of its last element."""
    per_block = 32 // size
    last = max(lane // per_block * blk * 32 + lane % per_block * size for lane in lanes(mask, 256))
    return 32 * (repeats - 1) * rep + last + size
