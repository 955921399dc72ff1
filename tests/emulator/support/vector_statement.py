"""Independent statement of how vector instructions address memory, mask lanes, round and saturate.

Written from the documents (vector.md 1.1, 1.3, 5.1), used by the tests to say in one line what an instruction does.
Bytes are kept in a plain array; nothing of the emulator is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

LARGEST = {"float16": 65504.0, "float32": float(np.finfo(np.float32).max)}


def enabled_lanes(mask: int | Sequence[int], width: int) -> list[int]:
    """Lanes that a mask enables: the first n, or the set bits of [high, low]."""
    if isinstance(mask, int):
        return list(range(mask))
    bits = mask[0] << 64 | mask[1]
    return [lane for lane in range(width) if bits >> lane & 1]


def addresses(base: int, repeat: int, lanes: Sequence[int], size: int, rep: int, blk: int = 1) -> np.ndarray:
    """Byte addresses of some lanes of one repeat."""
    per_block = 32 // size
    return np.array(
        [base + 32 * (repeat * rep + lane // per_block * blk) + lane % per_block * size for lane in lanes],
        dtype=np.int64,
    )


def read(data: np.ndarray, where: np.ndarray, dtype: str) -> np.ndarray:
    """Elements at byte addresses."""
    size = np.dtype(dtype).itemsize
    return data[where[:, None] + np.arange(size)].reshape(-1).view(dtype)


def write(data: np.ndarray, where: np.ndarray, values: np.ndarray, dtype: str) -> None:
    """Store elements at byte addresses."""
    size = np.dtype(dtype).itemsize
    data[where[:, None] + np.arange(size)] = np.ascontiguousarray(values, dtype).view(np.uint8).reshape(-1, size)


def saturated(values: np.ndarray, dtype: str) -> np.ndarray:
    """Round float64 (or float32) results to ``dtype``; infinities become the largest number, NaN becomes 0."""
    if not dtype.startswith("float"):
        return values.astype(dtype)
    with np.errstate(all="ignore"):
        rounded = np.asarray(values).astype(dtype)
    rounded = np.where(np.isnan(rounded), rounded.dtype.type(0), rounded)
    return np.where(np.isinf(rounded), np.copysign(LARGEST[dtype], rounded).astype(dtype), rounded).astype(dtype)


def element_wise(
    data: np.ndarray,
    function: Callable[..., np.ndarray],
    mask: int | Sequence[int],
    repeats: int,
    dst: tuple[int, str, int, int],
    *sources: tuple[int, str, int, int],
    reads_dst: bool = False,
) -> None:
    """One element-wise instruction on a copy of the memory.

    ``dst`` and ``sources``: (address, dtype, rep_stride, blk_stride). ``function`` takes the source values of a repeat
    (and those of dst last, if ``reads_dst``) and gives the values stored.
    """
    width = 256 // max(np.dtype(operand[1]).itemsize for operand in (dst, *sources))
    lanes = enabled_lanes(mask, width)
    for repeat in range(repeats):
        inputs = [
            read(data, addresses(base, repeat, lanes, np.dtype(dtype).itemsize, rep, blk), dtype)
            for base, dtype, rep, blk in (*sources, *([dst] if reads_dst else []))
        ]
        base, dtype, rep, blk = dst
        with np.errstate(all="ignore"):
            result = function(*inputs)
        write(data, addresses(base, repeat, lanes, np.dtype(dtype).itemsize, rep, blk), result, dtype)


# ------------------------------------------------------------------------------------------- inputs
def _patterns(words: str, dtype: type) -> np.ndarray:
    """Bit patterns, written in hexadecimal digits."""
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
    """Random elements: ordinary numbers, any bit pattern, and edge values."""
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
    """Full, leading lanes, or a list mask."""
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
    """Bytes from the start of an operand to the end of its last element."""
    lanes = enabled_lanes(mask, 256)
    return int(max(addresses(0, repeat, lanes, size, rep, blk).max() for repeat in range(repeats))) + size
