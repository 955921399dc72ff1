"""The TIK kernels in MindSpore's wheel (``mindspore/ops/_op_impl/_custom_op``), run unmodified against NumPy.

Each entry of :data:`KERNELS` states in NumPy what a kernel computes, from its arguments alone, for shapes that it
supports. ``python benchmarks/emulator_validation.py --mindspore`` prints what :func:`run` finds.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

import numpy as np
import tikemu

PACKAGE = "mindspore.ops._op_impl._custom_op"
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


@dataclass(frozen=True)
class Case:
    """One shape of one kernel.

    Attributes:
        kernel, function: file without ``_impl.py``, and operator function.
        shape: what distinguishes the case, for lists.
        problem: ``f(generator) -> Problem``.
        strict: why strict mode refuses the program (a part of its message); "" if it runs there.
        default: why default mode refuses it; the case then runs with ``options``.
        options: further options of the run.
        slow: takes many seconds.
    """

    kernel: str
    function: str
    shape: str
    problem: Callable[[np.random.Generator], Problem]
    strict: str = ""
    default: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    slow: bool = False

    def __str__(self) -> str:
        return f"{self.kernel} {self.shape}"


@dataclass(frozen=True)
class Outcome:
    """What a run gave.

    Attributes:
        error, allowed: largest absolute error over all outputs, and the bound at that place.
        ratio: largest error in units of its bound.
        cycles: predicted.
        instructions: executed.
    """

    error: float
    allowed: float
    ratio: float
    cycles: float
    instructions: int


def available() -> bool:
    """Whether MindSpore's wheel is installed."""
    return importlib.util.find_spec("mindspore") is not None


def build(case: Case, problem: Problem) -> Any:
    """Call the operator function of the unmodified file; returns the Tik instance."""
    tikemu.install(soc="Ascend910A")
    level = logging.root.level
    try:
        module = importlib.import_module(f"{PACKAGE}.{case.kernel}_impl")
        logging.root.setLevel(logging.WARNING)  # some kernels switch the root logger to DEBUG
        return getattr(module, case.function)(**problem.arguments)
    finally:
        logging.root.setLevel(level)


def run(case: Case, strict: bool = False, options: dict[str, Any] | None = None) -> Outcome:
    """Run a case and compare it.

    Raises:
        TikError: the program breaks a rule.
    """
    problem = case.problem(np.random.default_rng(7))
    more = case.options if options is None else options
    chosen = tikemu.Options(strict=strict, trace=False, progress=False, **more)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tikemu.TikWarning)
        with tikemu.use_options(chosen):
            result = tikemu.run(build(case, problem), problem.feeds, options=chosen)
    worst = (0.0, 0.0, 0.0)
    for name, (truth, bound) in problem.expected.items():
        got = problem.reduce(result.outputs[name].astype(np.float64))
        if got.shape != truth.shape:
            raise AssertionError(f"{case}: {name} has shape {got.shape}, expected {truth.shape}")
        error = np.nan_to_num(np.abs(got - truth), nan=np.inf)
        bound = np.broadcast_to(bound, error.shape)
        ratio = np.divide(error, bound, out=np.where(error > 0, np.inf, 0.0), where=bound > 0)
        at = np.unravel_index(np.argmax(ratio), ratio.shape)
        if ratio[at] >= worst[2]:
            worst = (float(error.max()), float(bound[at]), float(ratio[at]))
    return Outcome(*worst, result.cycles, sum(entry.count for entry in result.instructions.values()))


# ------------------------------------------------------------------------------------------------ layouts
def nz(matrix: np.ndarray) -> np.ndarray:
    """(..., R, C) as FRACTAL_NZ (..., C/16, R/16, 16, 16)."""
    *batch, rows, columns = matrix.shape
    split = matrix.reshape(*batch, rows // 16, 16, columns // 16, 16)
    count = len(batch)
    return np.ascontiguousarray(split.transpose(*range(count), count + 2, count, count + 1, count + 3))


def matrix(fractals: np.ndarray) -> np.ndarray:
    """Inverse of :func:`nz`."""
    *batch, c1, r1, r0, c0 = fractals.shape
    count = len(batch)
    order = fractals.transpose(*range(count), count + 1, count + 2, count, count + 3)
    return np.ascontiguousarray(order.reshape(*batch, r1 * r0, c1 * c0))


def zn(matrix_: np.ndarray) -> np.ndarray:
    """(R, C) as (R/16, C/16, 16, 16) with every fractal transposed: what L0B holds of a right operand."""
    rows, columns = matrix_.shape
    return np.ascontiguousarray(matrix_.reshape(rows // 16, 16, columns // 16, 16).transpose(0, 2, 3, 1))


def block_diagonal(square: np.ndarray, size: int = 128) -> np.ndarray:
    """The matrix with everything outside its diagonal blocks set to zero."""
    index = np.arange(len(square)) // size
    return np.where(index[:, None] == index[None, :], square, 0)


def _given(array: np.ndarray, **more: Any) -> dict[str, Any]:
    return {
        "shape": array.shape,
        "dtype": array.dtype.name,
        "format": "ND",
        "ori_shape": array.shape,
        "ori_format": "ND",
        **more,
    }


def _normal(generator: np.random.Generator, *shape: int, dtype: Any = HALF, scale: float = 1.0) -> np.ndarray:
    return (generator.standard_normal(shape) * scale).astype(dtype)


def _product(a: np.ndarray, b: np.ndarray, half: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """A product in float64, and the error of float32 accumulation and of a final rounding to float16."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    truth = a @ b
    bound = 2 * a.shape[-1] * U32 * (np.abs(a) @ np.abs(b))
    return truth, bound + np.abs(truth) * U16 * 1.01 + 2.0**-25 if half else bound


# ------------------------------------------------------------------------------------------------ kernels
def _batch_matmul(shape: tuple[int, int, int]) -> Callable[[np.random.Generator], Problem]:
    def problem(generator: np.random.Generator) -> Problem:
        a, b = (_normal(generator, *shape, dtype=SINGLE) for _ in range(2))
        truth, bound = _product(a, b.transpose(0, 2, 1))
        return Problem(
            {"input_x1": _given(a), "input_x2": _given(b), "output": _given(a)},
            {"input1": a.reshape(-1), "input2": b.reshape(-1)},
            {"res": (truth.reshape(-1), bound.reshape(-1))},
        )

    return problem


def _cholesky(size: int) -> Callable[[np.random.Generator], Problem]:
    """The inverse of the upper Cholesky factor of every diagonal block of 128."""

    def problem(generator: np.random.Generator) -> Problem:
        x = generator.standard_normal((size, size))
        a = (x @ x.T / size + 2 * np.eye(size)).astype(SINGLE)
        split = min(size, 128)
        blocks = [a[i : i + split, i : i + split].astype(np.float64) for i in range(0, size, split)]
        truth = np.stack([np.linalg.inv(np.linalg.cholesky(block).T) for block in blocks])
        # Backward error of Cholesky and substitution, times the condition of the block.
        condition = max(np.linalg.cond(block) for block in blocks)
        return Problem(
            {"input_x": _given(a), "output": {"shape": truth.shape, "dtype": "float32"}, "kernel_name": "cholesky"},
            {"input_x": a},
            {"res": (truth, split * U32 * condition * np.abs(truth).max())},
        )

    return problem


def _weights(generator: np.random.Generator, sequence: int, heads: int) -> dict[str, np.ndarray]:
    """Local and global attention weights and what they meet, as matrices per (head, block)."""
    blocks = sequence // 64
    return {
        "local": np.abs(_normal(generator, 1, heads, blocks, 64, 64, scale=0.1)),
        "far": np.abs(_normal(generator, 1, heads, blocks, 64, sequence // 4, scale=0.1)),
        "value": _normal(generator, sequence, heads * 128),
        "out_grad": _normal(generator, heads, sequence, 128),
    }


def _far_rows(sequence: int, head: int) -> np.ndarray:
    """Positions that every query of a head sees: one 16-row group of each block of 64."""
    start = 16 * (3 - head % 4)
    return np.concatenate([np.arange(64 * block + start, 64 * block + start + 16) for block in range(sequence // 64)])


def _dsd(sequence: int, heads: int) -> Callable[[np.random.Generator], Problem]:
    def problem(generator: np.random.Generator) -> Problem:
        given = _weights(generator, sequence, heads)
        truth = np.zeros((heads, sequence, 128))
        bound = np.zeros_like(truth)
        for head in range(heads):
            value = given["value"][:, head * 128 : (head + 1) * 128]
            for block in range(sequence // 64):
                rows = slice(64 * block, 64 * block + 64)
                weights = np.concatenate([given["far"][0, head, block], given["local"][0, head, block]], axis=1)
                seen = np.concatenate([value[_far_rows(sequence, head)], value[rows]])
                truth[head, rows], bound[head, rows] = _product(weights, seen, half=True)
        w1, w2, v = nz(given["local"]), nz(given["far"]), zn(given["value"])
        return Problem(
            {"input_w1": _given(w1), "input_w2": _given(w2), "input_v": _given(v)},
            {"w1_gm": w1, "w2_gm": w2, "v_gm": v},
            {"output_gm": (nz(truth)[None], nz(bound)[None])},
        )

    return problem


def _dsd_back(sequence: int, heads: int) -> Callable[[np.random.Generator], Problem]:
    def problem(generator: np.random.Generator) -> Problem:
        given = _weights(generator, sequence, heads)
        blocks = sequence // 64
        local = np.zeros((2, 1, heads, blocks, 64, 64))
        far = np.zeros((2, 1, heads, blocks, 64, sequence // 4))
        value_grad = np.zeros((2, sequence, heads * 128))
        for head in range(heads):
            columns, rows_far = slice(head * 128, (head + 1) * 128), _far_rows(sequence, head)
            value, out_grad = given["value"][:, columns], given["out_grad"][head]
            for block in range(blocks):
                rows = slice(64 * block, 64 * block + 64)
                local[:, 0, head, block] = _product(out_grad[rows], value[rows].T, half=True)
                far[:, 0, head, block] = _product(out_grad[rows], value[rows_far].T, half=True)
                value_grad[:, rows, columns] = _product(given["local"][0, head, block].T, out_grad[rows])
            value_grad[:, rows_far, columns] += _product(given["far"][0, head].reshape(sequence, -1).T, out_grad)
        value_grad[1] += np.abs(value_grad[0]) * U16 * 1.01 + 2.0**-25
        w1, w2, v, d_a = nz(given["local"]), nz(given["far"]), zn(given["value"]), nz(given["out_grad"])[None]
        feeds = {"w1_gm": w1, "w2_gm": w2, "v_gm": v, "a_gm": np.zeros_like(d_a), "d_a_gm": d_a}
        return Problem(
            {name: _given(array) for name, array in feeds.items()},
            feeds,
            {
                "d_w1_gm": (nz(local[0]), nz(local[1])),
                "d_w2_gm": (nz(far[0]), nz(far[1])),
                "d_v_gm": (zn(value_grad[0]), zn(value_grad[1])),
            },
        )

    return problem


def _abs_max(shape: tuple[int, ...], origin: tuple[int, ...]) -> Callable[[np.random.Generator], Problem]:
    """Row b of the (32, 64) output holds the largest magnitude of a part of the input; together all of ``origin``."""

    def problem(generator: np.random.Generator) -> Problem:
        x = _normal(generator, *shape, dtype=SINGLE)
        if shape == (32, 64):  # the second pass: the first lanes of the maximum over the rows
            truth, output = x.max(axis=0)[:8].astype(np.float64), (8,)
        else:
            truth = np.repeat(np.abs(x).reshape(32, -1).max(axis=1)[:, None], 64, axis=1).astype(np.float64)
            output = (32, 64)
        return Problem(
            {"input_x": _given(x), "output": {"shape": output, "dtype": "float32"}, "origin_shape": origin},
            {"input_x": x},
            {"res": (truth, 0.0)},
        )

    return problem


def _abs_max_of_padded(shape: tuple[int, ...], origin: int) -> Callable[[np.random.Generator], Problem]:
    """A matrix of ``origin`` rows, stored as blocks of 128 x 128 on its diagonal: the maximum over the output rows is
    that of the matrix. The padding of the last block is larger and must not be seen."""

    def problem(generator: np.random.Generator) -> Problem:
        x = _normal(generator, *shape, dtype=SINGLE)
        last = origin - 128 * (shape[0] - 1)
        x[-1, last:, :] = x[-1, :, last:] = 1e6
        seen = np.abs(x)
        seen[-1, last:, :] = seen[-1, :, last:] = 0
        if shape[0] == 8:  # the kernel overwrites the first 512 elements of each of 32 parts before it looks at them
            seen[:7].reshape(32, -1)[:, :512] = 0
        return Problem(
            {"input_x": _given(x), "output": {"shape": (32, 64), "dtype": "float32"}, "origin_shape": (origin, origin)},
            {"input_x": x},
            {"res": (np.full(64, seen.max(), np.float64), 0.0)},
            lambda output: output.max(axis=0),
        )

    return problem


def _img2col(
    c1: int, size: int, kernel: int, stride: int, repeats_channel: bool = False
) -> Callable[[np.random.Generator], Problem]:
    """(32, c1, size, size, 16) to the FRACTAL_NZ matrix of (image, position) x (channel block, kernel position, 16)."""

    def problem(generator: np.random.Generator) -> Problem:
        x = _normal(generator, 32, c1, size, size, 16)
        edge, out = kernel // 2, size // stride
        padded = np.pad(x, ((0, 0), (0, 0), (edge, edge), (edge, edge), (0, 0)))
        columns = []
        for block in range(c1):
            taken = padded[:, 0 if repeats_channel else block]
            for row in range(kernel):
                for column in range(kernel):
                    columns.append(taken[:, row : row + stride * out : stride, column : column + stride * out : stride])
        truth = np.stack(columns).reshape(len(columns), -1, 16, 16)
        return Problem(
            {
                "input_x": _given(x),
                "output": {"shape": truth.shape, "dtype": "float16"},
                "ksizes": (1, kernel, kernel, 1),
                "strides": (1, stride, stride, 1),
                "dilates": (1, 1, 1, 1),
                "mode": "SAME",
            },
            {"input_x": x},
            {"res": (truth.astype(np.float64), 0.0)},
        )

    return problem


def _dense_left(generator: np.random.Generator) -> Problem:
    a, b = _normal(generator, 1008, 1008), _normal(generator, 1008, 2048)
    truth, bound = _product(block_diagonal(a), b, half=True)
    x1, x2 = nz(a), nz(b)
    return Problem(
        {
            "input_x1": _given(x1, ori_shape=(1008, 1008)),
            "input_x2": _given(x2, ori_shape=(1008, 2048), format="FRACTAL_NZ"),
            "output_y": _given(x2),
        },
        {"left_matrix": x1, "right_matrix": x2},
        {"output": (nz(truth), nz(bound))},
    )


def _scaled(a: np.ndarray, b: np.ndarray, factor: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    truth, bound = _product(a, b)
    scale = float(factor[0])
    return nz(truth * scale), nz(bound * scale + np.abs(truth * scale) * U32)


def _dense_right(generator: np.random.Generator) -> Problem:
    a, b = _normal(generator, 1008, 2048), _normal(generator, 2048, 2048)
    factor = np.array([1.7], SINGLE)
    x1, x2, expected = nz(a), nz(b), _scaled(a, block_diagonal(b), factor)
    return Problem(
        {"input_x1": _given(x1), "input_x2": _given(x2), "input_x3": _given(factor), "output_y": _given(x1)},
        {"left_matrix": x1, "right_matrix": x2, "matrix_max": factor},
        {"output": expected},
    )


def _left_cast(m: int, n: int) -> Callable[[np.random.Generator], Problem]:
    """Fractals of the square left operand, and columns of fractals of the right one, which is rounded to float16."""

    def problem(generator: np.random.Generator) -> Problem:
        a, b = _normal(generator, 16 * m, 16 * m), _normal(generator, 16 * m, 16 * n, dtype=SINGLE)
        left = block_diagonal(a) if m > 8 else a
        truth, bound = _product(left, b.astype(HALF), half=True)
        x1, x2 = nz(a), nz(b)
        output = {"shape": x2.shape, "dtype": "float16"}
        return Problem(
            {
                "input_x1": _given(x1, ori_shape=a.shape),
                "input_x2": _given(x2, ori_shape=(16 * m, 16 * n, 1, 1), format="FRACTAL_Z"),
                "output_y": output,
            },
            {"left_matrix": x1, "right_matrix": x2},
            {"output": (nz(truth), nz(bound))},
        )

    return problem


def _right_mul(k: int, m: int) -> Callable[[np.random.Generator], Problem]:
    def problem(generator: np.random.Generator) -> Problem:
        a, b = _normal(generator, 16 * m, 16 * k), _normal(generator, 16 * k, 16 * k)
        factor = np.array([0.3], SINGLE)
        right = block_diagonal(b) if k > 8 and k % 8 == 0 else b
        x1, x2, expected = nz(a), nz(b), _scaled(a, right, factor)
        return Problem(
            {"input_x1": _given(x1), "input_x2": _given(x2), "input_x3": _given(factor), "output_y": _given(x1)},
            {"left_matrix": x1, "right_matrix": x2, "matrix_max": factor},
            {"output": expected},
        )

    return problem


def _attention(generator: np.random.Generator, sequence: int, heads: int) -> dict[str, np.ndarray]:
    query, key = (_normal(generator, sequence, heads * 128, scale=0.3) for _ in range(2))
    return {
        "query": query,
        "key": key,
        "local_mask": _normal(generator, 64, sequence, dtype=SINGLE, scale=0.5),
        "far_mask": _normal(generator, sequence, sequence // 4, dtype=SINGLE, scale=0.5),
    }


def _dds(sequence: int, heads: int) -> Callable[[np.random.Generator], Problem]:
    """Softmax over the keys of a query's block and the far keys."""

    def problem(generator: np.random.Generator) -> Problem:
        given = _attention(generator, sequence, heads)
        blocks = sequence // 64
        local = np.zeros((2, 1, heads, blocks, 64, 64))
        far = np.zeros((2, 1, heads, blocks, 64, sequence // 4))
        for head in range(heads):
            columns = slice(head * 128, head * 128 + 128)
            query, key = (given[name][:, columns].astype(np.float64) for name in ("query", "key"))
            for block in range(blocks):
                rows = slice(64 * block, 64 * block + 64)
                scores = np.concatenate(
                    [
                        query[rows] @ key[_far_rows(sequence, head)].T + given["far_mask"][rows],
                        query[rows] @ key[rows].T + given["local_mask"][:, rows],
                    ],
                    axis=1,
                )
                top = scores.max(axis=1, keepdims=True)
                exponents = np.exp(scores - top)
                weights = exponents / exponents.sum(axis=1, keepdims=True)
                # Score, shifted score, exponential, reciprocal and product are rounded to float16. The shift is one of
                # the chunk maxima, so it may be smaller than the maximum.
                bound = weights * U16 * (2 * np.abs(scores).max() + (top - scores.min()) + 6) + 2.0**-24
                far[:, 0, head, block] = weights[:, :-64], bound[:, :-64]
                local[:, 0, head, block] = weights[:, -64:], bound[:, -64:]
        q, k, local_mask, far_mask = (nz(given[name]) for name in ("query", "key", "local_mask", "far_mask"))
        feeds = {"mat_q": q, "mat_k": k, "mat_lm": local_mask, "mat_gm": far_mask}
        return Problem(
            {
                "q": _given(q),
                "k": _given(k),
                "local_mask": _given(given["local_mask"]),
                "global_mask": _given(far_mask),
                "local_prob": {},
                "global_prob": {},
                "bs": 1,
                "heads": heads,
            },
            feeds,
            {"mat_lc": (nz(local[0]), nz(local[1])), "mat_gc": (nz(far[0]), nz(far[1]))},
        )

    return problem


def _dds_grad(sequence: int, heads: int) -> Callable[[np.random.Generator], Problem]:
    def problem(generator: np.random.Generator) -> Problem:
        given = _attention(generator, sequence, heads)
        blocks, width = sequence // 64, sequence // 4
        weights = generator.random((heads, blocks, 64, 64 + width))
        weights = (weights / weights.sum(axis=-1, keepdims=True)).astype(HALF)
        weights_grad = _normal(generator, heads, blocks, 64, 64 + width)
        p, g = weights.astype(np.float64), weights_grad.astype(np.float64)
        scores_grad = p * (g - (p * g).sum(axis=-1, keepdims=True))
        # The product, its sum and the difference are rounded to float16.
        slack = U16 * (2 * np.abs(p * g) + p * (2 * np.abs(p * g).sum(axis=-1, keepdims=True) + 2)) + 2.0**-24
        query_grad, key_grad = np.zeros((2, sequence, heads * 128)), np.zeros((2, sequence, heads * 128))
        for head in range(heads):
            columns, rows_far = slice(head * 128, head * 128 + 128), _far_rows(sequence, head)
            query, key = (given[name][:, columns].astype(np.float64) for name in ("query", "key"))

            def add(
                target: np.ndarray,
                rows: Any,
                left: np.ndarray,
                error: np.ndarray,
                right: np.ndarray,
                columns: slice = columns,
            ) -> None:
                target[0, rows, columns] += left @ right
                target[1, rows, columns] += error @ np.abs(right)

            for block in range(blocks):
                rows = slice(64 * block, 64 * block + 64)
                near, near_slack = scores_grad[head, block, :, :64], slack[head, block, :, :64]
                far, far_slack = scores_grad[head, block, :, 64:], slack[head, block, :, 64:]
                add(query_grad, rows, near, near_slack, key[rows])
                add(query_grad, rows, far, far_slack, key[rows_far])
                add(key_grad, rows, near.T, near_slack.T, query[rows])
                add(key_grad, rows_far, far.T, far_slack.T, query[rows])
        for gradient in (query_grad, key_grad):
            gradient[1] = gradient[1] * 1.05 + 4 * U16 * np.abs(gradient[0]) + 4 * U16 * np.abs(gradient[0]).max() / 16
        q, k = nz(given["query"]), nz(given["key"])
        local, far = nz(weights[None, ..., :64]), nz(weights[None, ..., 64:])
        local_grad, far_grad = nz(weights_grad[None, ..., :64]), nz(weights_grad[None, ..., 64:])
        key_layout = [matrix_.reshape(sequence // 16, 16, heads * 8, 16).transpose(0, 2, 3, 1) for matrix_ in key_grad]
        return Problem(
            {
                "q": _given(q),
                "k": _given(k),
                "local_prob": _given(local),
                "global_prob": _given(far),
                "local_prob_grad": _given(local_grad),
                "global_prob_grad": _given(far_grad),
                "dq": {},
                "dk": {},
            },
            {
                "mat_q": q,
                "mat_k": k,
                "mat_lc": local,
                "mat_gc": far,
                "mat_lc_grad": local_grad,
                "mat_gc_grad": far_grad,
            },
            {"mat_dq": (nz(query_grad[0]), nz(query_grad[1])), "mat_dk": tuple(key_layout)},
        )

    return problem


def _combine(shape: tuple[int, int, int]) -> Callable[[np.random.Generator], Problem]:
    def problem(generator: np.random.Generator) -> Problem:
        x = _normal(generator, *shape, dtype=SINGLE)
        count, size, _ = shape
        truth = np.zeros((count * size, count * size))
        for block in range(count):
            truth[block * size : (block + 1) * size, block * size : (block + 1) * size] = x[block]
        return Problem(
            {"input_x": _given(x), "output": {"shape": truth.shape, "dtype": "float32"}},
            {"input_x": x},
            {"res": (truth, 0.0)},
        )

    return problem


def _transpose(c1: int, size: int) -> Callable[[np.random.Generator], Problem]:
    def problem(generator: np.random.Generator) -> Problem:
        x = _normal(generator, 32, c1, size, size, 16)
        truth = x.transpose(0, 2, 3, 1, 4)
        return Problem(
            {"input_x": _given(x), "output": {"shape": truth.shape, "dtype": "float16"}},
            {"input_x": x},
            {"res": (truth.astype(np.float64), 0.0)},
        )

    return problem


def _cases() -> list[Case]:
    cases: list[Case] = []

    def add(kernel: str, function: str, shape: Any, problem: Any, **more: Any) -> None:
        text = "x".join(map(str, shape)) if isinstance(shape, Sequence) and not isinstance(shape, str) else str(shape)
        cases.append(Case(kernel, function, text, problem, **more))

    for shape in [(1, 64, 64), (1, 128, 128), (5, 128, 128), (9, 128, 128), (18, 128, 128), (36, 128, 128)]:
        add("batch_matmul", "cus_batch_matmul", shape, _batch_matmul(shape), slow=shape[0] > 1)
    for size in (64, 128, 256):
        add(
            "cholesky_trsm",
            "cus_cholesky_trsm",
            (size, size),
            _cholesky(size),
            strict="vln: the result for a number <= 0 is not specified",
        )  # of lanes that it does not use
    for sequence, heads in ((512, 4), (1024, 2)):
        name = f"sequence {sequence}, {heads} heads"
        add("dsd", "dsd_matmul", name, _dsd(sequence, heads))
        add("dsd_back", "dsdbpropimpl", name, _dsd_back(sequence, heads))
    for count in (1, 2, 4, 8, 16, 32, 9, 18, 36):
        add("fused_abs_max1", "cus_fused_abs_max1", (count, 128, 128), _abs_max((count, 128, 128), (-1, -1)))
    add("fused_abs_max1", "cus_fused_abs_max1", (1, 64, 64), _abs_max((1, 64, 64), (64, 64)))
    add("fused_abs_max1", "cus_fused_abs_max1", (32, 64), _abs_max((32, 64), (-1, -1)))
    for count, origin in ((2, 147), (5, 576), (8, 1000), (8, 1001)):
        add(
            "fused_abs_max1",
            "cus_fused_abs_max1",
            f"{count}x128x128 of {origin}x{origin}",
            _abs_max_of_padded((count, 128, 128), origin),
        )
    # The first shape reads windows that end below the image; the second keeps results in a tensor that a loop defines
    # again in every iteration.
    undefined = {(1, 224, 7, 2): "undefined bytes", (16, 56, 1, 2): "undefined bytes"}
    for c1, size, kernel, stride in [
        (32, 14, 3, 2),
        (1, 224, 7, 2),
        (4, 56, 3, 1),
        (8, 56, 3, 2),
        (8, 28, 3, 1),
        (16, 28, 3, 2),
        (16, 14, 3, 1),
        (32, 7, 3, 1),
        (64, 14, 1, 1),
        (32, 7, 1, 1),
        (4, 56, 1, 1),
        (64, 14, 1, 2),
        (128, 7, 1, 1),
        (32, 28, 1, 2),
        (16, 56, 1, 2),
        (8, 28, 1, 1),
        (32, 28, 1, 1),
        (16, 14, 1, 1),
        (16, 56, 1, 1),
    ]:
        add(
            "img2col",
            "cus_img2col",
            f"32x{c1}x{size}x{size}x16 kernel {kernel} stride {stride}",
            _img2col(c1, size, kernel, stride, repeats_channel=(c1, size, kernel) == (8, 28, 3)),
            slow=(c1, size) not in ((32, 7), (16, 14)),
            strict=undefined.get((c1, size, kernel, stride), ""),
        )
    add(
        "matmul_cube_dense_left",
        "cus_matmul_cube_dense_left",
        "1008x1008x2048",
        _dense_left,
        default="dst touches bytes 0 to 131072 of tensor 'input_2_local_l1', which has 65536",
        strict="touches bytes 0 to 131072 of tensor 'input_2_local_l1'",
        options={"bounds": "buffer", "placement": "first use"},
    )
    add(
        "matmul_cube_dense_right",
        "cus_matmul_cube_dense_right",
        "1008x2048x2048",
        _dense_right,
        default="src touches bytes 7680 to 61952 of tensor 'input_1_local_l11', which has 61440",
        strict="need 253984 bytes, which exceeds the total size of the corresponding buffer, 253952 bytes",
        options={"bounds": "buffer"},
    )
    for m, n in [(4, 4), (4, 36), (8, 72), (4, 49), (8, 16), (16, 4), (16, 144), (32, 16), (64, 16), (128, 32)]:
        add(
            "matmul_cube_fracz_left_cast",
            "cus_matmul_cube_fraczleftcast",
            f"{16 * m}x{16 * m}x{16 * n}",
            _left_cast(m, n),
            slow=m == 128,
        )
    for k, m in [(4, 4), (4, 16), (8, 32), (36, 4), (49, 4), (16, 4), (32, 8), (72, 8), (144, 16), (288, 32)]:
        add(
            "matmul_cube_fracz_right_mul",
            "cus_matmul_cube_fraczrightmul",
            f"{16 * m}x{16 * k}x{16 * k}",
            _right_mul(k, m),
            strict="touches bytes 0 to 32 of tensor 'matrix_max', which has 4 bytes",
            slow=k == 288,
        )
    for sequence, heads in ((512, 2), (1024, 2)):
        name = f"sequence {sequence}, {heads} heads"
        add(
            "matmul_dds",
            "matmul_dds",
            name,
            _dds(sequence, heads),
            slow=sequence == 1024,
        )
        add("matmul_dds_grad", "matmul_dds_grad", name, _dds_grad(sequence, heads))
    for shape in [(1, 64, 64), (1, 128, 128), (2, 128, 128), (4, 128, 128), (8, 128, 128)]:
        add(
            "matrix_combine",
            "cus_matrix_combine",
            shape,
            _combine(shape),
            strict="" if shape[0] == 1 and shape[1] == 64 else "belong inside the multi-core loop",
        )
    for c1, size in [
        (32, 7),
        (128, 7),
        (16, 14),
        (32, 14),
        (64, 14),
        (8, 28),
        (16, 28),
        (32, 28),
        (4, 56),
        (8, 56),
        (16, 56),
        (4, 112),
    ]:
        leaves = "overflows tensor" if (c1, size) == (8, 56) else ""  # a loop of 16 where 8 are meant
        outside = "belong inside the multi-core loop" if (c1, size) in ((8, 28), (32, 28), (8, 56), (16, 56)) else ""
        add(
            "transpose02314",
            "cus_transpose02314",
            f"32x{c1}x{size}x{size}x16",
            _transpose(c1, size),
            slow=(c1, size) not in ((32, 7), (16, 14)),
            default=leaves,
            strict=outside,
            options={"bounds": "buffer"} if leaves else {},
        )
    return cases


CASES = _cases()
