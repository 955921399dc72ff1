"""Fractal layouts of the Cube, and products on a bench."""

from __future__ import annotations

import numpy as np

RNG = np.random.default_rng(11)


def up(value: int, unit: int = 16) -> int:
    """The value rounded up to a multiple of the unit."""
    return -(-value // unit) * unit


# cube.md 2: offsets in elements
def offset_a(r, c, k, k0):
    """Element offset of row ``r``, column ``c`` of a left factor in L0A."""
    k1 = up(k, k0) // k0
    return ((r // 16) * k1 + c // k0) * 16 * k0 + (r % 16) * k0 + c % k0


def offset_c(r, c, m):
    """Element offset of row ``r``, column ``c`` of an accumulator in L0C."""
    m1 = up(m) // 16
    return ((c // 16) * m1 + r // 16) * 256 + (r % 16) * 16 + c % 16


def gather(flat, rows, columns, offset):
    """A matrix out of flat memory, by the offset of each element."""
    return np.array([[flat[offset(r, c)] for c in range(columns)] for r in range(rows)])


def block_product(a, b, c, k0):
    """D26a: per block of K the exact products, summed in float64, rounded to float32, added to the accumulator."""
    result = c.astype(np.float32)
    for first in range(0, a.shape[1], k0):
        part = a[:, first : first + k0].astype(np.float64) @ b[first : first + k0].astype(np.float64)
        result = (result + part.astype(np.float32)).astype(np.float32)
    return result


def to_nz(x):
    """(R, C) to (C1, R, 16)."""
    rows, columns = x.shape
    return x.reshape(rows, columns // 16, 16).transpose(1, 0, 2)
