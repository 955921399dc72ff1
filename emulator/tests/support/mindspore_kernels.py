"""The TIK kernels in MindSpore's wheel (``mindspore/ops/_op_impl/_custom_op``), run unmodified against NumPy.

Each of :data:`CASES` holds what a kernel computes, stated in NumPy from its arguments alone, for a shape that it
supports.
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

from emulator.tests.support import mindspore_problems as problems
from emulator.tests.support import mindspore_sparse_attention as sparse
from emulator.tests.support.mindspore_problems import Problem

PACKAGE = "mindspore.ops._op_impl._custom_op"


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


def available() -> bool:
    """Return True if MindSpore's wheel is installed."""
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


def run(case: Case, strict: bool = False, options: dict[str, Any] | None = None) -> float:
    """Run a case. Return the largest error in units of its bound, over all outputs.

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
    assert result.cycles > 0
    worst = 0.0
    for name, (truth, bound) in problem.expected.items():
        got = problem.reduce(result.outputs[name].astype(np.float64))
        if got.shape != truth.shape:
            raise AssertionError(f"{case}: {name} has shape {got.shape}, expected {truth.shape}")
        error = np.nan_to_num(np.abs(got - truth), nan=np.inf)
        ratio = np.divide(error, bound, out=np.where(error > 0, np.inf, 0.0), where=np.greater(bound, 0))
        worst = max(worst, ratio.max())
    return worst


#: The operator function of each kernel.
FUNCTIONS = {
    "batch_matmul": "cus_batch_matmul",
    "cholesky_trsm": "cus_cholesky_trsm",
    "dsd": "dsd_matmul",
    "dsd_back": "dsdbpropimpl",
    "fused_abs_max1": "cus_fused_abs_max1",
    "img2col": "cus_img2col",
    "matmul_cube_dense_left": "cus_matmul_cube_dense_left",
    "matmul_cube_dense_right": "cus_matmul_cube_dense_right",
    "matmul_cube_fracz_left_cast": "cus_matmul_cube_fraczleftcast",
    "matmul_cube_fracz_right_mul": "cus_matmul_cube_fraczrightmul",
    "matmul_dds": "matmul_dds",
    "matmul_dds_grad": "matmul_dds_grad",
    "matrix_combine": "cus_matrix_combine",
    "transpose02314": "cus_transpose02314",
}


def _cases() -> list[Case]:
    """Return all cases; cases that take minutes are marked slow."""
    cases: list[Case] = []

    def add(kernel: str, shape: Any, problem: Callable[..., Problem], *arguments: Any, **more: Any) -> None:
        text = "x".join(map(str, shape)) if isinstance(shape, Sequence) and not isinstance(shape, str) else str(shape)
        cases.append(Case(kernel, FUNCTIONS[kernel], text, lambda random: problem(random, *arguments), **more))

    for shape in [(1, 64, 64), (1, 128, 128), (5, 128, 128), (9, 128, 128), (18, 128, 128), (36, 128, 128)]:
        add("batch_matmul", shape, problems.batch_matmul, shape, slow=shape != (1, 64, 64))
    for size in (64, 128, 256):
        unused = "vln: the result for a number <= 0 is not specified"  # of lanes that it does not use
        add("cholesky_trsm", (size, size), problems.cholesky, size, strict=unused)
    for sequence, heads in ((512, 4), (1024, 2)):
        name = f"sequence {sequence}, {heads} heads"
        add("dsd", name, sparse.dsd, sequence, heads)
        add("dsd_back", name, sparse.dsd_back, sequence, heads)
    for count in (1, 2, 4, 8, 16, 32, 9, 18, 36):
        add("fused_abs_max1", (count, 128, 128), problems.abs_max, (count, 128, 128), (-1, -1))
    add("fused_abs_max1", (1, 64, 64), problems.abs_max, (1, 64, 64), (64, 64))
    add("fused_abs_max1", (32, 64), problems.abs_max, (32, 64), (-1, -1))
    for count, origin in ((2, 147), (5, 576), (8, 1000), (8, 1001)):
        name = f"{count}x128x128 of {origin}x{origin}"
        add("fused_abs_max1", name, problems.abs_max_of_padded, (count, 128, 128), origin)
    # The first shape reads windows that end below the image; the second keeps results in a tensor that a loop defines
    # again in every iteration.
    undefined = ((1, 224, 7, 2), (16, 56, 1, 2))
    for c1, size, kernel, stride in [
        *((32, 14, 3, 2), (1, 224, 7, 2), (4, 56, 3, 1), (8, 56, 3, 2), (8, 28, 3, 1), (16, 28, 3, 2), (16, 14, 3, 1)),
        *((32, 7, 3, 1), (64, 14, 1, 1), (32, 7, 1, 1), (4, 56, 1, 1), (64, 14, 1, 2), (128, 7, 1, 1), (32, 28, 1, 2)),
        *((16, 56, 1, 2), (8, 28, 1, 1), (32, 28, 1, 1), (16, 14, 1, 1), (16, 56, 1, 1)),
    ]:
        add(
            "img2col",
            f"32x{c1}x{size}x{size}x16 kernel {kernel} stride {stride}",
            *(problems.img2col, c1, size, kernel, stride, (c1, size, kernel) == (8, 28, 3)),
            slow=(c1, size, kernel) not in ((32, 7, 1), (16, 14, 1)),
            strict="undefined bytes" if (c1, size, kernel, stride) in undefined else "",
        )
    add(
        "matmul_cube_dense_left",
        "1008x1008x2048",
        problems.dense_left,
        default="dst touches bytes 0 to 131072 of tensor 'input_2_local_l1', which has 65536",
        strict="touches bytes 0 to 131072 of tensor 'input_2_local_l1'",
        options={"bounds": "buffer", "placement": "first use"},
    )
    add(
        "matmul_cube_dense_right",
        "1008x2048x2048",
        problems.dense_right,
        default="src touches bytes 7680 to 61952 of tensor 'input_1_local_l11', which has 61440",
        strict="need 253984 bytes, which exceeds the total size of the corresponding buffer, 253952 bytes",
        options={"bounds": "buffer"},
    )
    for m, n in [(4, 4), (4, 36), (8, 72), (4, 49), (8, 16), (16, 4), (16, 144), (32, 16), (64, 16), (128, 32)]:
        add("matmul_cube_fracz_left_cast", (16 * m, 16 * m, 16 * n), problems.left_cast, m, n, slow=m == 128)
    beyond = "touches bytes 0 to 32 of tensor 'matrix_max', which has 4 bytes"
    for k, m in [(4, 4), (4, 16), (8, 32), (36, 4), (49, 4), (16, 4), (32, 8), (72, 8), (144, 16), (288, 32)]:
        shape = (16 * m, 16 * k, 16 * k)
        add("matmul_cube_fracz_right_mul", shape, problems.right_mul, k, m, strict=beyond, slow=k == 288)
    for sequence, heads in ((512, 2), (1024, 2)):
        name = f"sequence {sequence}, {heads} heads"
        add("matmul_dds", name, sparse.dds, sequence, heads, slow=sequence == 1024)
        add("matmul_dds_grad", name, sparse.dds_grad, sequence, heads)
    outside = "belong inside the multi-core loop"
    for shape in [(1, 64, 64), (1, 128, 128), (2, 128, 128), (4, 128, 128), (8, 128, 128)]:
        add("matrix_combine", shape, problems.combine, shape, strict="" if shape == (1, 64, 64) else outside)
    for c1, size in [
        *((32, 7), (128, 7), (16, 14), (32, 14), (64, 14), (8, 28), (16, 28), (32, 28), (4, 56), (8, 56), (16, 56)),
        (4, 112),
    ]:
        leaves = (c1, size) == (8, 56)  # it loops 16 times instead of 8
        add(
            "transpose02314",
            (32, c1, size, size, 16),
            *(problems.transpose, c1, size),
            slow=(c1, size) != (32, 7),
            default="overflows tensor" if leaves else "",
            strict=outside if (c1, size) in ((8, 28), (32, 28), (8, 56), (16, 56)) else "",
            options={"bounds": "buffer"} if leaves else {},
        )
    return cases


CASES = _cases()
