"""Build fractal layouts, products and operands of the Cube."""

from __future__ import annotations

import numpy as np

RNG = np.random.default_rng(11)


def up(value: int, unit: int = 16) -> int:
    """Return the value rounded up to a multiple of the unit."""
    return -(-value // unit) * unit


def to_nz(x):
    """Bring (R, C) into the form (C1, R, 16)."""
    rows, columns = x.shape
    return x.reshape(rows, columns // 16, 16).transpose(1, 0, 2)


def values(dtype, *shape):
    """Return random elements: normal for float16, between -100 and 100 for integers."""
    if dtype == "float16":
        return RNG.standard_normal(shape).astype(np.float16)
    return RNG.integers(-100, 100, shape).astype(dtype)


def packed(x, k0):
    """Pack (R, K) as [K1, R padded to 16, K0]; the padding holds noise."""
    rows, k = x.shape
    full = values(x.dtype.name, up(rows), up(k, k0))
    full[:rows, :k] = x
    return full.reshape(up(rows), -1, k0).transpose(1, 0, 2)


def unpacked(c, m, n):
    """Unpack [N1, M, 16] to (m, n)."""
    return c.reshape(up(n) // 16, -1, 16).transpose(1, 0, 2).reshape(-1, up(n))[:m, :n]


def expected_product(a, b, c=0):
    """Compute ``a @ b + c`` as the Cube sums it (D26a): exact within 16 terms, rounded to float32 between them."""
    if a.dtype == np.int8:
        return a.astype(np.int64) @ b.astype(np.int64) + c
    result = np.zeros((a.shape[0], b.shape[1]), np.float32) + np.float32(c)
    for first in range(0, a.shape[1], 16):
        part = a[:, first : first + 16].astype(np.float64) @ b[first : first + 16].astype(np.float64)
        result += part.astype(np.float32)
    return result


def assert_close(result, expected):
    """Check equality: exact for integers, within one unit in the last place for float32."""
    if expected.dtype == np.float32:
        np.testing.assert_array_max_ulp(result, expected, 1)
    else:
        np.testing.assert_array_equal(result, expected)


def matmul_case(bench, m, k, n, dtype):
    """Return random factors, their tensors in L1, and the accumulator in L0C."""
    k0 = 32 // np.dtype(dtype).itemsize
    a, b = values(dtype, m, k), values(dtype, k, n)
    a_l1 = bench.tensor("L1", dtype, (up(k, k0) // k0, up(m), k0), packed(a, k0))
    b_l1 = bench.tensor("L1", dtype, (up(k, k0) // k0, up(n), k0), packed(b.T, k0))
    dst = bench.tensor("L0C", "float32" if dtype == "float16" else "int32", (up(n) // 16, up(m), 16))
    return a, b, a_l1, b_l1, dst
