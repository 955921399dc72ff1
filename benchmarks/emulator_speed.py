"""Speed of the emulator on one core, by processor time.

First, vector instructions of 64 repeats per second. "default" computes, checks and estimates the time; "strict" tracks
undefined bytes too; "timing only" is numerics=False, where iterations whose course of events repeats are replayed. All
without keeping events for a trace; "traced" is timing only with every event simulated and kept. Then the same for a
loop whose moves have offsets known at run time, four instructions an iteration. Last, seconds for an attention kernel
of this repository: the first run, which translates the program and binds its calls, and the next one.

    python benchmarks/emulator_speed.py [--seconds 2]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from typing import Any, Callable

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "emulator"))
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "train"))

import numpy as np
import tikemu

REPEATS = 64
PER_ITERATION = 8


def kernel(dtype: str, iterations: int) -> tuple[Any, Any]:
    """A loop over eight element-wise instructions on four tensors of 64 repeats; no value grows beyond 3."""
    tikemu.install(soc="Ascend910A")
    from tbe import tik
    from tbe.common.platform import set_current_compile_soc_info

    set_current_compile_soc_info("Ascend910A")
    instance = tik.Tik()
    lanes = 256 // np.dtype(dtype).itemsize
    count = REPEATS * lanes
    source = instance.Tensor(dtype, (count,), tik.scope_gm, "source")
    target = instance.Tensor(dtype, (count,), tik.scope_gm, "target")
    a, b, c, d = (instance.Tensor(dtype, (count,), tik.scope_ubuf, name) for name in "abcd")
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
    """A loop that moves a piece of global memory in, computes on it and moves it out, at another place each time."""
    tikemu.install(soc="Ascend910A")
    from tbe import tik
    from tbe.common.platform import set_current_compile_soc_info

    set_current_compile_soc_info("Ascend910A")
    instance = tik.Tik()
    lanes = 256 // np.dtype(dtype).itemsize
    piece = 16 * lanes
    source = instance.Tensor(dtype, (iterations * piece,), tik.scope_gm, "source")
    target = instance.Tensor(dtype, (iterations * piece,), tik.scope_gm, "target")
    a, b = (instance.Tensor(dtype, (piece,), tik.scope_ubuf, name) for name in "ab")
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
    """Vector instructions per second of ``clock``, measured for about ``seconds``."""
    options = tikemu.Options(strict=strict, progress=False, trace=trace, max_trace_events=10**9)
    iterations = 64
    while True:
        instance, data = program(dtype, iterations)
        start = clock()
        tikemu.run(instance, {"source": data}, numerics=numerics, options=options)
        elapsed = clock() - start
        if elapsed > seconds / 2:
            return iterations * per_iteration / elapsed
        iterations = int(iterations * max(2, min(16, seconds / elapsed)))


def attention_seconds(operator: str, strict: bool) -> list[float]:
    """Seconds of the first and the second run of an attention kernel: 4 heads, 1024 tokens, head_dim 64."""
    tikemu.install(soc="Ascend910A")
    from flash_attention.kernels.tik.backward import kernel as backward
    from flash_attention.kernels.tik.forward import kernel as forward
    from flash_attention.kernels.tik.problem import KernelProblem
    from tbe import tik

    build = {"forward": forward.build, "backward": backward.build_main}[operator]
    built = build(KernelProblem(batch=1, heads=4, seq_q=1024, seq_k=1024, head_dim=64), tik, debug=False)
    random = np.random.default_rng(0)
    given = [tensor for tensor in built.inputs if tensor.constant is None]
    feed = built.feed(**{tensor.name: random.standard_normal(tensor.shape).astype(tensor.dtype) for tensor in given})
    options = tikemu.Options(strict=strict, progress=False, trace=False)
    times = []
    for _ in range(2):
        start = time.process_time()
        tikemu.run(built.tik, feed, options=options)
        times.append(time.process_time() - start)
    return times


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="about how long each figure is measured")
    seconds = parser.parse_args().seconds
    print(f"vector instructions of {REPEATS} repeats per second, one core")
    print(f"{'dtype':<10}{'default':>12}{'strict':>12}{'timing only':>14}{'to default':>12}{'traced':>12}")
    for dtype in ("float16", "float32"):
        full = rate(dtype, seconds, numerics=True)
        strict = rate(dtype, seconds, numerics=True, strict=True)
        alone = rate(dtype, seconds, numerics=False)
        traced = rate(dtype, min(seconds, 1.0), numerics=False, trace=True)
        print(f"{dtype:<10}{full:>12,.0f}{strict:>12,.0f}{alone:>14,.0f}{alone / full:>12.1f}{traced:>12,.0f}")
    print(f"\ninstructions per second of a loop with run-time offsets\n{'dtype':<10}{'default':>12}{'strict':>12}")
    for dtype in ("float16", "float32"):
        moving: dict[str, Any] = {"program": moving_kernel, "per_iteration": 4}
        full, strict = (rate(dtype, min(seconds, 0.5), True, strict, **moving) for strict in (False, True))
        print(f"{dtype:<10}{full:>12,.0f}{strict:>12,.0f}")
    print(f"\nattention kernels, 4 heads, S=1024, D=64: seconds\n{'':<18}{'first run':>12}{'next run':>12}")
    for operator in ("forward", "backward"):
        for strict in (False, True):
            first, again = attention_seconds(operator, strict)
            print(f"{operator} {'strict' if strict else 'default':<{17 - len(operator)}}{first:>12.2f}{again:>12.2f}")


if __name__ == "__main__":
    main()
