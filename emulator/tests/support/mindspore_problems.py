"""State in NumPy what the kernels in MindSpore's wheel compute."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Callable

import numpy as np

HALF, SINGLE = np.float16, np.float32

#: Unit roundoffs.
U16, U32 = 2.0**-11, 2.0**-24


@dataclass
class Problem:
    """One call of a kernel.

    Attributes:
        arguments: of the operator function.
        feeds: input arrays by tensor name.
        expected: (truth in float64, largest absolute error) by output name.
        reduce: applied to the outputs before they are compared.
    """

    arguments: dict[str, Any]
    feeds: dict[str, np.ndarray]
    expected: dict[str, tuple[np.ndarray, Any]]
    reduce: Callable[[np.ndarray], np.ndarray] = np.asarray


def nz(matrix: np.ndarray) -> np.ndarray:
    """Bring (..., R, C) into FRACTAL_NZ (..., C/16, R/16, 16, 16)."""
    *batch, rows, columns = matrix.shape
    split = matrix.reshape(*batch, rows // 16, 16, columns // 16, 16)
    count = len(batch)
    return np.ascontiguousarray(split.transpose(*range(count), count + 2, count, count + 1, count + 3))


def matrix(fractals: np.ndarray) -> np.ndarray:
    """Undo :func:`nz`."""
    *batch, c1, r1, r0, c0 = fractals.shape
    count = len(batch)
    order = fractals.transpose(*range(count), count + 1, count + 2, count, count + 3)
    return np.ascontiguousarray(order.reshape(*batch, r1 * r0, c1 * c0))


def zn(matrix_: np.ndarray) -> np.ndarray:
    """Bring (R, C) into (R/16, C/16, 16, 16) with every fractal transposed: what L0B holds of a right operand."""
    rows, columns = matrix_.shape
    return np.ascontiguousarray(matrix_.reshape(rows // 16, 16, columns // 16, 16).transpose(0, 2, 3, 1))


def block_diagonal(square: np.ndarray) -> np.ndarray:
    """Return the matrix with everything outside its diagonal blocks of 128 set to zero."""
    index = np.arange(len(square)) // 128
    return np.where(index[:, None] == index[None, :], square, 0)


def described(array: np.ndarray, **more: Any) -> dict[str, Any]:
    """Return the description of an array that an operator's function takes."""
    return {
        "shape": array.shape,
        "dtype": array.dtype.name,
        "format": "ND",
        "ori_shape": array.shape,
        "ori_format": "ND",
        **more,
    }


def from_input(
    x: np.ndarray,
    truth: np.ndarray,
    bound: Any = 0.0,
    reduce: Callable[[np.ndarray], np.ndarray] = np.asarray,
    **more: Any,
) -> Problem:
    """Return the problem of a kernel that computes ``res`` from ``input_x``. ``more`` are arguments of its function."""
    return Problem(
        {"input_x": described(x), "output": {"shape": truth.shape, "dtype": x.dtype.name}, **more},
        {"input_x": x},
        {"res": (truth.astype(np.float64), bound)},
        reduce,
    )


def normal(generator: np.random.Generator, *shape: int, dtype: Any = HALF, scale: float = 1.0) -> np.ndarray:
    """Return normal random elements times ``scale``."""
    return (generator.standard_normal(shape) * scale).astype(dtype)


def product(a: np.ndarray, b: np.ndarray, half: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """Return a product in float64 and its error bound: float32 accumulation and a final rounding to float16."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    truth = a @ b
    bound = 2 * a.shape[-1] * U32 * (np.abs(a) @ np.abs(b))
    return truth, bound + np.abs(truth) * U16 * 1.01 + 2.0**-25 if half else bound


def batch_matmul(generator: np.random.Generator, shape: tuple[int, int, int]) -> Problem:
    """Return the problem of cus_batch_matmul: ``a @ b^T`` for each of a batch."""
    a, b = (normal(generator, *shape, dtype=SINGLE) for _ in range(2))
    truth, bound = product(a, b.transpose(0, 2, 1))
    return Problem(
        {"input_x1": described(a), "input_x2": described(b), "output": described(a)},
        {"input1": a.reshape(-1), "input2": b.reshape(-1)},
        {"res": (truth.reshape(-1), bound.reshape(-1))},
    )


def cholesky(generator: np.random.Generator, size: int) -> Problem:
    """Return the inverse of the upper Cholesky factor of every diagonal block of 128."""
    x = generator.standard_normal((size, size))
    a = (x @ x.T / size + 2 * np.eye(size)).astype(SINGLE)
    split = min(size, 128)
    blocks = [a[i : i + split, i : i + split].astype(np.float64) for i in range(0, size, split)]
    truth = np.stack([np.linalg.inv(np.linalg.cholesky(block).T) for block in blocks])
    # Backward error of Cholesky and substitution, times the condition of the block.
    condition = max(np.linalg.cond(block) for block in blocks)
    return from_input(a, truth, split * U32 * condition * np.abs(truth).max(), kernel_name="cholesky")


def abs_max(generator: np.random.Generator, shape: tuple[int, ...], origin: tuple[int, ...]) -> Problem:
    """Return the problem of the largest magnitude in each part of the input. Row b of the (32, 64) output holds part b;
    together the parts are all of ``origin``.
    """
    x = normal(generator, *shape, dtype=SINGLE)
    if shape == (32, 64):  # the second pass: the first lanes of the maximum over the rows
        truth = x.max(axis=0)[:8]
    else:
        truth = np.repeat(np.abs(x).reshape(32, -1).max(axis=1)[:, None], 64, axis=1)
    return from_input(x, truth, origin_shape=origin)


def abs_max_of_padded(generator: np.random.Generator, shape: tuple[int, ...], origin: int) -> Problem:
    """Return a matrix of ``origin`` rows, stored in blocks of 128 x 128: the maximum over the output
    rows is the maximum of the matrix. The padding of the last block is larger and must not be seen.
    """
    x = normal(generator, *shape, dtype=SINGLE)
    last = origin - 128 * (shape[0] - 1)
    x[-1, last:, :] = x[-1, :, last:] = 1e6
    seen = np.abs(x)
    seen[-1, last:, :] = seen[-1, :, last:] = 0
    if shape[0] == 8:  # the kernel overwrites the first 512 elements of each of 32 parts before it looks at them
        seen[:7].reshape(32, -1)[:, :512] = 0
    output = {"shape": (32, 64), "dtype": "float32"}
    largest = np.full(64, seen.max())
    return from_input(x, largest, 0.0, lambda rows: rows.max(axis=0), output=output, origin_shape=(origin, origin))


def img2col(
    generator: np.random.Generator, c1: int, size: int, kernel: int, stride: int, repeats_channel: bool = False
) -> Problem:
    """Return the problem of img2col. It maps (32, c1, size, size, 16) to the FRACTAL_NZ matrix of (image, position) x
    (channel block, kernel position, 16).
    """
    x = normal(generator, 32, c1, size, size, 16)
    edge, out = kernel // 2, size // stride
    padded = np.pad(x, ((0, 0), (0, 0), (edge, edge), (edge, edge), (0, 0)))
    columns = []
    for block in range(c1):
        taken = padded[:, 0 if repeats_channel else block]
        for row in range(kernel):
            for column in range(kernel):
                columns.append(taken[:, row : row + stride * out : stride, column : column + stride * out : stride])
    truth = np.stack(columns).reshape(len(columns), -1, 16, 16)
    sizes = {"ksizes": (1, kernel, kernel, 1), "strides": (1, stride, stride, 1), "dilates": (1, 1, 1, 1)}
    return from_input(x, truth, **sizes, mode="SAME")


def dense_left(generator: np.random.Generator) -> Problem:
    """Return the problem of a block-diagonal left factor."""
    a, b = normal(generator, 1008, 1008), normal(generator, 1008, 2048)
    truth, bound = product(block_diagonal(a), b, half=True)
    x1, x2 = nz(a), nz(b)
    return Problem(
        {
            "input_x1": described(x1, ori_shape=(1008, 1008)),
            "input_x2": described(x2, ori_shape=(1008, 2048), format="FRACTAL_NZ"),
            "output_y": described(x2),
        },
        {"left_matrix": x1, "right_matrix": x2},
        {"output": (nz(truth), nz(bound))},
    )


def scaled(a: np.ndarray, b: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the truth and error bound, in NZ, of a product times a factor."""
    truth, bound = product(a, b)
    scale = float(factor[0])
    return nz(truth * scale), nz(bound * scale + np.abs(truth * scale) * U32)


def times_right(a: np.ndarray, b: np.ndarray, right: np.ndarray, factor: float) -> Problem:
    """Return the problem of ``a`` times a right factor times a number. ``right`` is what the kernel takes ``b`` for."""
    number = np.array([factor], SINGLE)
    x1, x2 = nz(a), nz(b)
    return Problem(
        {
            "input_x1": described(x1),
            "input_x2": described(x2),
            "input_x3": described(number),
            "output_y": described(x1),
        },
        {"left_matrix": x1, "right_matrix": x2, "matrix_max": number},
        {"output": scaled(a, right, number)},
    )


def dense_right(generator: np.random.Generator) -> Problem:
    """Return the problem of a block-diagonal right factor."""
    a, b = normal(generator, 1008, 2048), normal(generator, 2048, 2048)
    return times_right(a, b, block_diagonal(b), 1.7)


def left_cast(generator: np.random.Generator, m: int, n: int) -> Problem:
    """Return the problem of a square left operand and a right one rounded to float16."""
    a, b = normal(generator, 16 * m, 16 * m), normal(generator, 16 * m, 16 * n, dtype=SINGLE)
    left = block_diagonal(a) if m > 8 else a
    truth, bound = product(left, b.astype(HALF), half=True)
    x1, x2 = nz(a), nz(b)
    output = {"shape": x2.shape, "dtype": "float16"}
    return Problem(
        {
            "input_x1": described(x1, ori_shape=a.shape),
            "input_x2": described(x2, ori_shape=(16 * m, 16 * n, 1, 1), format="FRACTAL_Z"),
            "output_y": output,
        },
        {"left_matrix": x1, "right_matrix": x2},
        {"output": (nz(truth), nz(bound))},
    )


def right_mul(generator: np.random.Generator, k: int, m: int) -> Problem:
    """Return the problem of a right factor of ``k`` by ``k`` fractals, if needed block-diagonal. It is
    block-diagonal if the kernel takes it so.
    """
    a, b = normal(generator, 16 * m, 16 * k), normal(generator, 16 * k, 16 * k)
    return times_right(a, b, block_diagonal(b) if k > 8 and k % 8 == 0 else b, 0.3)


def combine(generator: np.random.Generator, shape: tuple[int, int, int]) -> Problem:
    """Return the problem of blocks put on the diagonal of one matrix."""
    x = normal(generator, *shape, dtype=SINGLE)
    count, size, _ = shape
    truth = np.zeros((count * size, count * size))
    for block in range(count):
        truth[block * size : (block + 1) * size, block * size : (block + 1) * size] = x[block]
    return from_input(x, truth)


def transpose(generator: np.random.Generator, c1: int, size: int) -> Problem:
    """Return the problem of a transpose of NC1HWC0 to NHC1WC0."""
    x = normal(generator, 32, c1, size, size, 16)
    return from_input(x, x.transpose(0, 2, 3, 1, 4))
