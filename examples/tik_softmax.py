#!/usr/bin/env python
"""A softmax operator in TIK: run on the emulator, checked against NumPy, and profiled.

    python examples/tik_softmax.py
    python examples/tik_softmax.py --rows 4096 --threads 1 --trace softmax.json

Prints where the estimated time on the chip goes, and the largest error beside NumPy's error in float16. Needs tikemu
and NumPy only.
"""

from __future__ import annotations

import argparse

import numpy as np
import tikemu

LANES = 64  # float32 elements of one repeat of the vector unit
BLOCK = 16  # float16 elements of a block of 32 bytes
MOST_COLUMNS = 8192


def softmax(rows: int, columns: int, cores: int, threads: int):
    """Return an operator y = softmax(x) over the rows of a float16 matrix: float32 inside, the rows spread over the
    cores.

    Args:
        rows: a multiple of `cores`.
        columns: a multiple of 128, at most 8192.
        cores: blocks of the multi-core loop.
        threads: 2 overlaps the moves of a row with the arithmetic of the one before, 1 does not.
    """
    from tbe import tik

    kernel = tik.Tik()
    x = kernel.Tensor("float16", (rows, columns), tik.scope_gm, "x")
    y = kernel.Tensor("float16", (rows, columns), tik.scope_gm, "y")
    repeats, burst, each = columns // LANES, columns // BLOCK, rows // cores
    with kernel.for_range(0, cores, block_num=cores, name="core") as core:
        first = core * each
        with kernel.for_range(0, each, thread_num=threads, name="row") as row:
            half = kernel.Tensor("float16", (columns,), tik.scope_ubuf, "half")
            work = kernel.Tensor("float16", (columns,), tik.scope_ubuf, "work")
            full = kernel.Tensor("float32", (columns,), tik.scope_ubuf, "full")
            sums = kernel.Tensor("float32", (columns,), tik.scope_ubuf, "sums")
            kernel.data_move(half, x[first + row, 0], 0, 1, burst, 0, 0)
            # The chip has no maximum of float32, and the maximum of float16 values is exact.
            kernel.vec_reduce_max(2 * LANES, work, half, work[BLOCK:], repeats // 2, 8)
            largest = kernel.Scalar("float16", init_value=work[0])
            kernel.vec_dup(2 * LANES, work, largest, repeats // 2, 8)
            kernel.vec_sub(2 * LANES, half, half, work, repeats // 2, 8, 8, 8)
            kernel.vec_conv(LANES, "none", full, half, repeats, 8, 4)
            kernel.vec_exp(LANES, full, full, repeats, 8, 8)
            kernel.vec_reduce_add(LANES, sums, full, sums[8:], repeats, 8)
            total = kernel.Scalar("float32", init_value=sums[0])
            kernel.vec_dup(LANES, sums, total, 1, 8)
            kernel.vdiv(LANES, full, full, sums, repeats, 1, 1, 1, 8, 8, 0)
            kernel.vec_conv(LANES, "none", half, full, repeats, 4, 8)
            kernel.data_move(y[first + row, 0], half, 0, 1, burst, 0, 0)
    kernel.BuildCCE("softmax", [x], [y])
    return kernel


def reference(x: np.ndarray) -> np.ndarray:
    """Compute softmax over the last axis in the dtype of `x`."""
    weights = np.exp(x - x.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=1024)
    parser.add_argument("--columns", type=int, default=1024)
    parser.add_argument("--cores", type=int, default=32)
    parser.add_argument("--threads", type=int, choices=(1, 2), default=2, help="2: moves overlap with arithmetic")
    parser.add_argument("--trace", help="file for a timeline of pipes and cores, for https://ui.perfetto.dev")
    arguments = parser.parse_args()
    if arguments.rows % arguments.cores:
        parser.error(f"--rows must be a multiple of --cores, got {arguments.rows} and {arguments.cores}")
    if arguments.columns % 128 or not 128 <= arguments.columns <= MOST_COLUMNS:
        parser.error(f"--columns must be a multiple of 128 in [128, {MOST_COLUMNS}], got {arguments.columns}")
    return arguments


def main() -> int:
    arguments = parse_arguments()
    tikemu.install(soc="Ascend910A")
    kernel = softmax(arguments.rows, arguments.columns, arguments.cores, arguments.threads)
    x = (4 * np.random.default_rng(0).standard_normal((arguments.rows, arguments.columns))).astype(np.float16)
    result = tikemu.run(kernel, {"x": x}, options=tikemu.Options(strict=True))

    truth = reference(x.astype(np.float64))
    ours, half = (np.abs(y - truth).max() for y in (result.outputs["y"], reference(x)))
    print(result.report())
    print(f"\nlargest error {ours:.1e}; of NumPy in float16 {half:.1e}")
    print(
        "strict mode found nothing undefined, no race and no overlap; the error is at most NumPy's:"
        f" {'yes' if ours <= half else 'NO'}"
    )
    if arguments.trace:
        result.save_trace(arguments.trace)
        print(f"timeline: {arguments.trace}")
    return int(ours > half)


if __name__ == "__main__":
    raise SystemExit(main())
