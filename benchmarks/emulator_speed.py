"""Speed of the emulator: vector instructions of 64 repeats per second on one core.

"default" computes, checks and estimates the time; "strict" tracks undefined bytes too; "timing only" is numerics=False,
where iterations whose course of events repeats are replayed. All without keeping events for a trace; "traced" is timing
only with every event simulated and kept.

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


def rate(
    dtype: str,
    seconds: float,
    numerics: bool,
    strict: bool = False,
    trace: bool = False,
    clock: Callable[[], float] = time.perf_counter,
) -> float:
    """Vector instructions per second of ``clock``, measured for about ``seconds``."""
    options = tikemu.Options(strict=strict, progress=False, trace=trace, max_trace_events=10**9)
    iterations = 64
    while True:
        instance, data = kernel(dtype, iterations)
        start = clock()
        tikemu.run(instance, {"source": data}, numerics=numerics, options=options)
        elapsed = clock() - start
        if elapsed > seconds / 2:
            return iterations * PER_ITERATION / elapsed
        iterations = int(iterations * max(2, min(16, seconds / elapsed)))


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


if __name__ == "__main__":
    main()
