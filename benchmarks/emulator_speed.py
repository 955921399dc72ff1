"""Speed of the emulator on one core, by processor time.

First, vector instructions of 64 repeats per second. "default" computes, checks and estimates the time; "strict" tracks
undefined bytes too; "timing only" is numerics=False, which replays iterations whose course of events repeats. None of
these keeps events for a trace. "traced" is timing only, with every event simulated and kept. The second table has the
same for a loop of four instructions an iteration, whose moves have offsets known at run time. The last one has seconds
for an attention kernel of this repository: the first run translates the program and binds its calls, the next does not.

With --kinds it prints seconds per million repeats instead, for ten kinds of instruction: results alone, and with the
estimate of the time. The last kind is a program that finds the maximum of long float32 rows and its place: comparisons
leave the bit masks of its fills.

With --processes N it measures attention kernels only, in one process and in N. It prints processor seconds of the
caller and of the process that works most, which is what an idle machine takes, and elapsed seconds. Each figure is the
least of several runs in turns.

    python benchmarks/emulator_speed.py [--seconds 2]
    python benchmarks/emulator_speed.py --kinds
    python benchmarks/emulator_speed.py --processes 2 [--turns 3]
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
from flash_attention.measuring.timing import elapsed, rounds_in_turns
from flash_attention.text_table import table
from tikemu import processes

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
        (taken,) = elapsed(run, (clock,))
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


def runs(operator: str, sizes: tuple[int, int, int], clocks: Sequence[Callable[[], float]], **settings: Any) -> list:
    """Return the seconds of an attention kernel's first and second run, by each clock."""
    instance, feed = attention(operator, *sizes)
    options = tikemu.Options(progress=False, trace=False, **settings)
    run = partial(tikemu.run, instance, feed, options=options)
    return [elapsed(run, clocks) for _ in range(2)]


def processor_seconds() -> float:
    """Return the processor time of this process, and of the busiest process that executes blocks."""
    ticks = os.sysconf("SC_CLK_TCK")
    workers = [0.0]
    for process in processes._processes:
        with open(f"/proc/{process.pid}/stat", encoding="ascii") as file:
            fields = file.read().rpartition(")")[2].split()
        workers.append((int(fields[11]) + int(fields[12])) / ticks)
    return time.process_time() + max(workers)


def compare_processes(count: int, turns: int) -> None:
    """Print the time that one process and several processes need for the same kernels."""
    header = [f"{name}, {number}: {run}" for name in ("processor", "elapsed") for number in (1, count) for run in RUNS]
    rows = []
    for operator, *sizes in (("forward", 8, 2048, 128), ("backward", 8, 1024, 128), ("forward", 4, 1024, 64)):
        for strict in (False, True):
            steps = [
                partial(runs, operator, sizes, (processor_seconds, time.perf_counter), strict=strict, processes=number)
                for number in (1, count)
            ]
            # By number of processes, turn, run and clock.
            least = np.array(rounds_in_turns(steps, turns)).min(1)
            seconds = [f"{one:.2f}" for one in least.transpose(2, 0, 1).ravel()]
            rows.append([f"{operator} {'x'.join(map(str, sizes))} {'strict' if strict else 'default'}", *seconds])
    print(f"seconds by clock and number of processes, the least of {turns}\n")
    print(table(["kernel", *header], rows))


def maximum(rows: int, chunks: int) -> tuple[Any, dict[str, np.ndarray], int]:
    """Find the maximum of float32 rows and its index, lane by lane of 64. Return the program, its feed, its repeats."""
    instance, source, target, (part,) = tensors("float32", rows * chunks * 64, chunks * 64, ("part",))
    from tbe import tik

    places = instance.Tensor("int32", (rows, 64), tik.scope_gm, "places")
    best, where = (instance.Tensor(dtype, (64,), tik.scope_ubuf, f"of_{dtype}") for dtype in ("float32", "int32"))
    bits = instance.Tensor("uint64", (4,), tik.scope_ubuf, "bits")
    mask = instance.Scalar("uint64", "mask")
    with instance.for_range(0, rows) as row:
        instance.vector_dup(64, best, -3e38, 1, 1, 8)
        instance.vector_dup(64, where, 0, 1, 1, 8)
        instance.data_move(part, source[row * chunks * 64], 0, 1, chunks * 8, 0, 0)
        with instance.for_range(0, chunks) as chunk:
            instance.vcmpv_gt(bits, part[64 * chunk], best, 1, 1, 1, 8, 8)
            mask.set_as(bits[0])
            instance.vector_dup([0, mask], where, chunk, 1, 1, 8)
            instance.vmax(64, best, best, part[64 * chunk], 1, 1, 1, 1, 8, 8, 8)
        instance.data_move(target[row * 64], best, 0, 1, 8, 0, 0)
        instance.data_move(places[row * 64], where, 0, 1, 8, 0, 0)
    instance.BuildCCE("maximum", [source], [target, places])
    data = np.random.default_rng(0).standard_normal(rows * chunks * 64).astype(np.float32)
    return instance, {"source": data}, 3 * rows * chunks


#: Kinds of instruction: what stands in the loop, with tensors a, b, c of float32, h of float16, bits and its number.
KINDS: dict[str, Callable[..., Any]] = {
    "fill": lambda t, a, b, c, h, bits, i: t.vec_dup(64, a, 1.0, 1, 8),
    "fill, number of the loop": lambda t, a, b, c, h, bits, i: t.vec_dup(64, c.reinterpret_cast_to("int32"), i, 1, 8),
    "one source": lambda t, a, b, c, h, bits, i: t.vec_abs(64, a, b, 1, 8, 8),
    "two sources": lambda t, a, b, c, h, bits, i: t.vec_add(64, a, b, c, 1, 8, 8, 8),
    "two sources, places of the loop": lambda t, a, b, c, h, bits, i: t.vec_add(64, a[i * 8], b, c[i * 8], 1, 8, 8, 8),
    "scalar operand": lambda t, a, b, c, h, bits, i: t.vec_muls(64, a, b, 0.5, 1, 8, 8),
    "conversion": lambda t, a, b, c, h, bits, i: t.vec_conv(64, "", h, b, 1, 4, 8),
    "comparison": lambda t, a, b, c, h, bits, i: t.vec_cmpv_gt(bits, b, c, 1, 8, 8),
    "sum": lambda t, a, b, c, h, bits, i: t.vcadd(64, a, b, 1, 1, 1, 8),
}


def of_kind(call: Callable[..., Any], count: int) -> tuple[Any, dict[str, np.ndarray], int]:
    """Return a loop of ``count`` instructions of one repeat, its feed, its repeats."""
    instance, source, target, (a, b, c) = tensors("float32", 64 + 8 * count, 64 + 8 * count, "abc")
    from tbe import tik

    half = instance.Tensor("float16", (64,), tik.scope_ubuf, "half")
    bits = instance.Tensor("uint64", (4,), tik.scope_ubuf, "bits")
    for tensor in (a, b, c):
        instance.data_move(tensor, source, 0, 1, 8 + count, 0, 0)
    with instance.for_range(0, count) as index:
        call(instance, a, b, c, half, bits, index)
    instance.data_move(target, a, 0, 1, 8 + count, 0, 0)
    instance.BuildCCE("kind", [source], [target])
    return instance, {"source": np.zeros(64 + 8 * count, np.float32)}, count


def compare_kinds(turns: int) -> None:
    """Print seconds per million repeats for each kind of instruction."""
    programs: dict[str, Callable[[], Any]] = {name: partial(of_kind, call, 2000) for name, call in KINDS.items()}
    programs["maximum by masks that are data"] = partial(maximum, 48, 512)
    rows = []
    for name, build in programs.items():
        seconds = []
        for timing in (False, True):
            options = tikemu.Options(progress=False, trace=False)
            taken = []
            for _ in range(turns):
                instance, feed, repeats = build()
                run = partial(tikemu.run, instance, feed, timing=timing, options=options)
                taken += elapsed(run, (time.process_time,))
            seconds.append(f"{min(taken) / repeats * 1e6:.1f}")
        rows.append([name, *seconds])
    print(f"processor seconds per million repeats, the first run of a program, the least of {turns}\n")
    print(table(["instructions of one repeat", "results", "results and estimate"], rows))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="about how long each figure is measured")
    parser.add_argument("--processes", type=int, default=1, help="compare one process with so many")
    parser.add_argument("--turns", type=int, default=3, help="with --kinds or --processes: how often each is measured")
    parser.add_argument("--kinds", action="store_true", help="seconds per million repeats of ten kinds of instruction")
    given = parser.parse_args()
    if given.kinds:
        return compare_kinds(given.turns)
    if given.processes > 1:
        return compare_processes(given.processes, given.turns)
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
    kernels = []
    for operator in ("forward", "backward"):
        for strict in (False, True):
            seconds = [f"{one:.2f}" for (one,) in runs(operator, (4, 1024, 64), (time.process_time,), strict=strict)]
            kernels.append([f"{operator} {'strict' if strict else 'default'}", *seconds])
    print("\nattention kernels, 4 heads, S=1024, D=64: seconds\n")
    print(table(["kernel", *RUNS], kernels))


if __name__ == "__main__":
    main()
