"""Arithmetic of the Cube on arrays: block products and accumulation (decisions D26a, D26c, D26f).

The Cube multiplies 16 x K0 by K0 x 16 blocks and adds each block product to the accumulator. Here one K block of a
whole tile is one product. Its exact products are summed in float64 and rounded once to float32. The sum is added to the
float32 accumulator with round-to-nearest-even. Blocks are taken in ascending order of K. Callers wrap execution in
``np.errstate(all="ignore")``.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from . import numerics

with np.errstate(invalid="ignore"):  # signalling NaN patterns
    _HALF_TO_DOUBLE = numerics.widen(np.arange(1 << 16, dtype=np.uint16)).astype(np.float64)
_CHUNK_ELEMENTS = 1 << 17  # block products held at a time: 1 MiB of float64 stays in the L2 cache


def widen(bits: np.ndarray) -> np.ndarray:
    """Convert float16 bits (uint16) to float64."""
    return _HALF_TO_DOUBLE.take(bits)


def _blocks(a: np.ndarray, b: np.ndarray, k: int) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Split both operands into batches of equal depth that hold only ``k`` valid lanes."""
    k0 = a.shape[2]
    full, tail = divmod(k, k0)
    chunk = max(1, _CHUNK_ELEMENTS // (a.shape[1] * b.shape[2]))
    for first in range(0, full, chunk):
        last = min(full, first + chunk)
        yield a[first:last], b[first:last]
    if tail:
        yield a[full : full + 1, :, :tail], b[full : full + 1, :tail, :]


def accumulate_float(c: np.ndarray, a: np.ndarray, b: np.ndarray, k: int) -> np.ndarray:
    """Add a product of float16 operands to a float32 accumulator, saturating.

    Args:
        c: float32 (M, N), the accumulator before; not modified.
        a, b: float64 (K1, M, 16) and (K1, 16, N) holding float16 values.
        k: number of valid lanes along K; the lanes above are ignored, whatever they hold.

    Returns:
        float32 (M, N).
    """
    result = c.copy()
    for left, right in _blocks(a, b, k):
        for product in np.matmul(left, right).astype(np.float32):
            result += product
    if np.isfinite(result).all():
        return result
    # Rare: something overflowed or an input was not finite. Saturation applies to every update of the accumulator.
    result = c.copy()
    for left, right in _blocks(a, b, k):
        for product in np.matmul(left, right).astype(np.float32):
            result += product
            numerics.saturate(result)
    return result


def accumulate_integer(c: np.ndarray, a: np.ndarray, b: np.ndarray, k: int) -> np.ndarray:
    """Add a product of 8-bit operands, exact and saturating, to an accumulator.

    ``a``, ``b``: float64 (K1, M, 32) and (K1, 32, N) holding integers; every partial sum is exact in float64.
    """
    limits = np.iinfo(c.dtype)
    result = c.astype(np.float64)
    for left, right in _blocks(a, b, k):
        for product in np.matmul(left, right):
            result += product
            inside = (result >= limits.min) & (result <= limits.max)
            if not inside.all():
                numerics.note_saturated(~inside)
                np.clip(result, limits.min, limits.max, out=result)
    return result.astype(c.dtype)
