"""Speed of the emulator on one core, by processor time.

First, vector instructions of 64 repeats per second. "default" computes, checks and estimates the time; "strict" tracks
undefined bytes too; "timing only" is numerics=False, which replays iterations whose course of events repeats. None of
these keeps events for a trace. "traced" is timing only, with every event simulated and kept. The second table has the
same for a loop of four instructions an iteration, whose moves have offsets known at run time. The last one has seconds
for an attention kernel of this repository: the first run translates the program and binds its calls, the next does not.

    python benchmarks/emulator_speed.py [--seconds 2]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "emulator"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train"))

import numpy as np
import tikemu
from flash_attention.call import Call
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.measuring import tik_kernels
from flash_attention.measuring.timing import elapsed
from flash_attention.text_table import table

REPEATS = 64
PER_ITERATION = 8
RUNS = ("first", "next")


def tensors(dtype: str, size: int, piece: int, names: Sequence[str]) -> tuple[Any, Any, Any, list]:
    """Make an empty program with source, target and named tensors on chip."""
    tikemu.install(soc="Ascend910A")
    from tbe import tik

    instance = tik.Tik()
    source, target = (instance.Tensor(dtype, (size,), tik.scope_gm, name) for name in ("source", "target"))
    return instance, source, target, [instance.Tensor(dtype, (piece,), tik.scope_ubuf, name) for name in names]


def kernel(dtype: str, iterations: int) -> tuple[Any, Any]:
    """Loop over eight element-wise instructions on four tensors of 64 repeats. No value grows beyond 3."""
    lanes = 256 // np.dtype(dtype).itemsize
    count = REPEATS * lanes
    instance, source, target, (a, b, c, d) = tensors(dtype, count, count, "abcd")
    blocks = count * np.dtype(dtype).itemsize // 32
    for tensor in (a, b, c, d):
        instance.data_move(tensor, source, 0, 1, blocks, 0, 0)
    strides = (REPEATS, 8, 8)
    with instance.for_range(0, iterations):
        instance.vec_sub(lanes, c, a, b, *strides, 8)
        instance.vec_muls(lanes, d, c, 0.5, *strides)
        instance.vec_max(lanes, a, c, d, *strides, 8)
        instance.vec_sub(lanes, b, d, a, *strides, 8)
        instance.vec_adds(lanes, a, a, 1.0, *strides)
        instance.vec_mul(lanes, c, d, b, *strides, 8)
        instance.vec_min(lanes, d, c, a, *strides, 8)
        instance.vec_abs(lanes, b, b, *strides)
    instance.data_move(target, d, 0, 1, blocks, 0, 0)
    instance.BuildCCE("speed", [source], [target])
    return instance, np.linspace(-1, 1, count).astype(dtype)


def moving_kernel(dtype: str, iterations: int) -> tuple[Any, Any]:
    """Loop over moves from and to global memory at changing places, with arithmetic between."""
    lanes = 256 // np.dtype(dtype).itemsize
    piece = 16 * lanes
    instance, source, target, (a, b) = tensors(dtype, iterations * piece, piece, "ab")
    with instance.for_range(0, iterations) as index:
        instance.data_move(a, source[index * piece], 0, 1, 16 * 8, 0, 0)
        instance.vec_muls(lanes, b, a, 0.5, 16, 8, 8)
        instance.vec_adds(lanes, b, b, 1.0, 16, 8, 8)
        instance.data_move(target[index * piece], b, 0, 1, 16 * 8, 0, 0)
    instance.BuildCCE("moving", [source], [target])
    return instance, np.linspace(-1, 1, iterations * piece).astype(dtype)


def rate(
    dtype: str,
    seconds: float,
    numerics: bool,
    strict: bool = False,
    trace: bool = False,
    clock: Callable[[], float] = time.process_time,
    program: Callable[[str, int], tuple[Any, Any]] = kernel,
    per_iteration: int = PER_ITERATION,
) -> float:
    """Return vector instructions per second of ``clock``, measured for about ``seconds``."""
    options = tikemu.Options(strict=strict, progress=False, trace=trace, max_trace_events=10**9)
    iterations = 64
    while True:
        instance, data = program(dtype, iterations)
        run = partial(tikemu.run, instance, {"source": data}, numerics=numerics, options=options)
        taken = elapsed(run, clock)
        if taken > seconds / 2:
            return iterations * per_iteration / taken
        iterations = int(iterations * max(2, min(16, seconds / taken)))


def attention(operator: str, heads: int, length: int, head_dim: int) -> tuple[Any, dict[str, Any]]:
    """Return a built attention kernel, and its inputs."""
    problem = KernelProblem(Call(1, heads, length, length, head_dim))
    built = tik_kernels.build(problem, operator)
    random = np.random.default_rng(0)
    given = [tensor for tensor in built.inputs if tensor.constant is None]
    feed = built.feed(**{tensor.name: random.standard_normal(tensor.shape).astype(tensor.dtype) for tensor in given})
    return built.tik, feed


def runs(operator: str, strict: bool) -> list[str]:
    """Return the processor seconds of an attention kernel's first and second run."""
    instance, feed = attention(operator, 4, 1024, 64)
    run = partial(tikemu.run, instance, feed, options=tikemu.Options(progress=False, trace=False, strict=strict))
    return [f"{elapsed(run, time.process_time):.2f}" for _ in RUNS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="about how long each figure is measured")
    given = parser.parse_args()
    rows, moving = [], []
    for dtype in ("float16", "float32"):
        full, strict = (rate(dtype, given.seconds, True, strict) for strict in (False, True))
        alone = rate(dtype, given.seconds, False)
        traced = rate(dtype, min(given.seconds, 1.0), False, trace=True)
        rows.append([dtype, f"{full:,.0f}", f"{strict:,.0f}", f"{alone:,.0f}", f"{alone / full:.1f}", f"{traced:,.0f}"])
        loop = {"program": moving_kernel, "per_iteration": 4}
        both = (rate(dtype, min(given.seconds, 0.5), True, strict, **loop) for strict in (False, True))
        moving.append([dtype, *(f"{one:,.0f}" for one in both)])
    print(f"vector instructions of {REPEATS} repeats per second, one core\n")
    print(table(["dtype", "default", "strict", "timing only", "to default", "traced"], rows))
    print("\ninstructions per second of a loop with run-time offsets\n")
    print(table(["dtype", "default", "strict"], moving))
    kernels = [
        [f"{operator} {'strict' if strict else 'default'}", *runs(operator, strict)]
        for operator in ("forward", "backward")
        for strict in (False, True)
    ]
    print("\nattention kernels, 4 heads, S=1024, D=64: seconds\n")
    print(table(["kernel", *RUNS], kernels))


if __name__ == "__main__":
    main()
