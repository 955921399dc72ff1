"""Compare the speeds of two builds of the native kernel, in turns, and their errors.

    PYTHONPATH=train python -m benchmarks.native_builds before.so after.so

It needs NumPy and no MindSpore. If torch is installed, its attention takes its turn. One thread is timed by the
processor's time, so that other programs count little. "of peak" is the second build's share of multiply-adds in
registers. The errors are measured beside float64: largest and mean errors of the second build, divided by errors of
the first. The largest error of few numbers is chance, so eight heads are measured.
"""

from __future__ import annotations

import argparse
import ctypes
import importlib.util
import statistics
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
from flash_attention import reference
from flash_attention.backends.cpu.library import Library, backward, forward
from flash_attention.call import DTYPES, AttentionRules, Call
from flash_attention.measuring.implementations import stored
from flash_attention.measuring.timing import PAUSE, elapsed, rounds_in_turns
from flash_attention.text_table import table

CAUSAL = AttentionRules(causal=True)
PASSES = ("forward", "backward")
PRODUCTS = (2, 5)  # of each pass
OPERATIONS = 1e10  # of the peak
TENSORS = ("output", "d_query", "d_key", "d_value")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("builds", nargs=2, type=Path, help="libraries, the earlier one first")
    parser.add_argument("--dtype", nargs="+", default=DTYPES, choices=DTYPES)
    parser.add_argument("--seq", type=int, default=2048)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--head-dim", nargs="+", type=int, default=(128, 64))
    parser.add_argument("--threads", nargs="+", type=int, default=(1,))
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--no-errors", action="store_true", help="leave the errors out, which take a minute")
    options = parser.parse_args()
    builds = [Library(path.resolve()) for path in options.builds]
    rows = []
    for head_dim in options.head_dim:
        for dtype in options.dtype:
            call = Call(1, options.heads, options.seq, options.seq, head_dim, dtype=dtype, rules=CAUSAL)
            if not options.no_errors:
                print(f"{dtype} of {head_dim}, errors: {', '.join(errors(builds, call))}", flush=True)
            for threads in options.threads:
                peak, *times = measure(builds, call, threads, options.rounds)
                for name, products, (before, after, *others) in zip(PASSES, PRODUCTS, times):
                    theirs = [f"{other / after:.2f}" for other in others] or ["-"]
                    operations = products * options.heads * options.seq * (options.seq + 1) * head_dim
                    share = f"{100 * operations / OPERATIONS * peak / after:.0f} %"
                    numbers = f"{1e3 * before:.1f}", f"{1e3 * after:.1f}", share, f"{before / after:.2f}", *theirs
                    rows.append([name, dtype, head_dim, threads, *numbers])
    header = ["pass", "dtype", "head_dim", "threads", "ms before", "ms after", "of peak", "times", "times torch"]
    print(table(header, rows))


def measure(builds: list[Library], call: Call, threads: int, rounds: int) -> list:
    """Return the median seconds of the peak, then builds and torch by pass."""
    ctypes.CDLL("libgomp.so.1").omp_set_num_threads(threads)
    tensors = inputs(call)
    runs = [_passes(build, call, tensors) for build in builds]
    if importlib.util.find_spec("torch"):
        runs.append(_torch_passes(call, threads))
    steps = [lambda: builds[-1].multiply_adds(call.dtype, int(OPERATIONS)), *(step for run in runs for step in run)]
    clock = time.process_time if threads == 1 else time.perf_counter
    peak, *found = map(statistics.median, rounds_in_turns([partial(_rested, step, clock) for step in steps], rounds))
    return [peak, *(found[index :: len(PASSES)] for index in range(len(PASSES)))]


def errors(builds: list[Library], call: Call) -> list[str]:
    """Return the ratios of largest and of mean errors by tensor."""
    few = Call(1, 8, call.seq_q, call.seq_k, call.head_dim, dtype=call.dtype, rules=CAUSAL)
    tensors = inputs(few)
    query, key, value, d_output = map(_values, tensors)
    exact = reference.truth(few, query, key, value, d_output=d_output)
    sizes = []
    for build in builds:
        output, logsumexp = forward(few, *tensors[:3], library=build)
        results = output, *backward(few, *tensors[:3], output, logsumexp, tensors[3], library=build)
        distances = [np.abs(_values(one) - getattr(exact, name)) for name, one in zip(TENSORS, results)]
        sizes.append([(distance.max(), distance.mean()) for distance in distances])
    return [
        f"{name} {after[0] / before[0]:.3f} {after[1] / before[1]:.3f}" for name, before, after in zip(TENSORS, *sizes)
    ]


def _rested(run: Callable, clock: Callable[[], float]) -> float:
    time.sleep(PAUSE)
    return elapsed(run, clock)


def inputs(call: Call) -> list[np.ndarray]:
    """Return query, key, value and the gradient of the output."""
    random = np.random.default_rng(0)
    return [stored(random.standard_normal(call.shape_query(), np.float32), call.dtype) for _ in range(4)]


def _values(array: np.ndarray) -> np.ndarray:
    return (array.astype(np.uint32) << 16).view(np.float32) if array.dtype == np.uint16 else array.astype(np.float32)


def _passes(build: Library, call: Call, tensors: list[np.ndarray]) -> tuple[Callable, Callable]:
    *given, d_output = tensors
    results = forward(call, *given, library=build)
    gradients = tuple(map(np.empty_like, given))
    return (
        lambda: forward(call, *given, library=build, out=results),
        lambda: backward(call, *given, *results, d_output, library=build, out=gradients),
    )


def _torch_passes(call: Call, threads: int) -> tuple[Callable, Callable]:
    import torch

    torch.set_num_threads(threads)
    dtype = getattr(torch, call.dtype)
    *given, d_output = (torch.from_numpy(_values(array)).to(dtype) for array in inputs(call))
    leaves = [tensor.requires_grad_() for tensor in given]
    attention = torch.nn.functional.scaled_dot_product_attention
    output = attention(*leaves, is_causal=True)

    def run() -> None:
        with torch.no_grad():
            attention(*given, is_causal=True)

    return run, lambda: torch.autograd.grad(output, leaves, d_output, retain_graph=True)


if __name__ == "__main__":
    main()
