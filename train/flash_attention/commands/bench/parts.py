"""The parts of the bench: what each measures, and the figures that it is held to."""

from __future__ import annotations

import argparse
import contextlib
import statistics
from collections.abc import Iterable, Sequence

from flash_attention.commands.bench import figures, work
from flash_attention.commands.bench.case import Case
from flash_attention.commands.bench.figures import Figure, Plan
from flash_attention.commands.bench.implementations import Gemm, MultiplyAdds
from flash_attention.commands.bench.turns import Timing, Worker, time_in_turns

KINDS = ("forward", "backward")
Result = tuple[list[Timing], list[Figure]]


def speed(options: argparse.Namespace, plan: Plan) -> Result:
    """Causal attention beside torch and composed attention; other sizes, with fewer heads, beside torch."""
    works = work.of_part("speed", options, plan)
    cases = [case for own in works for case in own.cases]
    peaks = {dtype: peak(dtype, options.threads, options.rounds) for dtype in dict.fromkeys(c.dtype for c in cases)}
    timings, reasons = [], {}
    for own in works:
        more, why = measure(options, own.names, own.cases)
        timings += more
        reasons.update(why)
    return timings, [
        figure
        for case in cases
        for figure in figures.speed(
            timings, case, reasons.get(("torch", case), ""), figures.FASTER_THAN_TORCH, peaks[case.dtype]
        )
    ]


def rate(options: argparse.Namespace, plan: Plan) -> Result:
    """Full attention in every dtype, beside NumPy's product of float32 matrices and beside float32."""
    from flash_attention.backends.cpu import library

    has_bfloat16 = library.instruction_sets()[0] == library.DOT_PRODUCT_ISA
    timings, result = [], []
    for cases in (own.cases for own in work.of_part("rate", options, plan)):
        own, product = beside_product(options, cases)
        timings += own
        result += figures.rate(own, cases, Gemm.gflops(product), has_bfloat16)
    return timings, result


def short(options: argparse.Namespace, plan: Plan) -> Result:
    """Short sequences of many heads, and masks, biases and dropout, beside torch."""
    (own,) = work.of_part("short", options, plan)
    timings, reasons = measure(options, own.names, own.cases)
    return timings, [
        figure
        for case in own.cases
        for figure in figures.speed(timings, case, reasons.get(("torch", case), ""), figures.AS_FAST_AS_TORCH)
    ]


def layouts(options: argparse.Namespace, plan: Plan) -> Result:
    """The other layouts beside BNSD."""
    timings, result = [], []
    for cases in (own.cases for own in work.of_part("layouts", options, plan)):
        with contextlib.ExitStack() as stack:
            workers = [stack.enter_context(Worker("flash", options.threads)) for _ in cases]
            own, _ = time_in_turns(workers, list(cases), options.rounds, options.budget)
        timings += show(own)
        result += figures.layouts(own, cases)
    return timings, result


def first(options: argparse.Namespace, plan: Plan) -> Result:
    """The first call of a shape after MindSpore has compiled its graph, beyond the time of a later one."""
    result = []
    for case in (case for own in work.of_part("first", options, plan) for case in own.cases):
        with Worker("flash", options.threads) as worker:
            for size in (Case(128), case):  # what is loaded once is not this shape's
                refuse_to_miss(worker, size)
                for kind in ("forward", "both"):
                    worker.seconds(f"compile {kind}")
                    start = worker.seconds(kind)
                    later = statistics.median(worker.seconds(kind) for _ in range(3))
                    if size == case:
                        result.append(figures.first_call(case, kind, start - later))
    return [], result


def window(options: argparse.Namespace, plan: Plan) -> Result:
    """The windowed runs beside the full causal one."""
    (own,) = work.of_part("window", options, plan)
    full, *windows = own.cases
    timings, _ = measure(options, own.names, own.cases)
    of = {case: [timing for timing in timings if timing.case == case] for case in own.cases}
    return timings, [figure for case in windows for figure in figures.window(of[full], of[case])]


def flat(options: argparse.Namespace, plan: Plan) -> Result:
    """The windowed forward and backward over lengths, in float16, whose tensors still fit at the longest."""
    (own,) = work.of_part("flat", options, plan)
    timings, _ = measure(options, own.names, own.cases)
    return timings, [figures.flatness([t for t in timings if t.kind == kind]) for kind in KINDS]


def memory(options: argparse.Namespace, plan: Plan) -> Result:
    """Growth of a fresh process through its first call of this size, beyond the outputs."""
    result = []
    ((case,),) = (own.cases for own in work.of_part("memory", options, plan))
    for kind in ("forward", "both"):
        with Worker("flash", options.threads) as worker:
            # A small call first: what MindSpore loads and allocates once is not this call's.
            for size in (Case(256, heads=1), case):
                refuse_to_miss(worker, size)
                extra = worker.extra_bytes(kind)
        result.append(figures.memory(case, kind, extra))
    return [], result


def refuse_to_miss(worker: Worker, case: Case) -> None:
    """Prepares a case on our own implementation, which has to take it.

    Raises:
        RuntimeError: it does not.
    """
    reason = worker.prepare(case)
    if reason is not None:
        raise RuntimeError(f"backend cpu cannot run {case}: {reason}")


def peak(dtype: str, threads: int, rounds: int) -> float:
    """What the processor can do at most in products of that dtype, GFLOP/s."""
    with Worker("multiply_adds", threads) as worker:
        (timing,), _ = time_in_turns([worker], Case(1, dtype), rounds, budget=10.0, kinds=("forward",))
    return MultiplyAdds.gflops(timing.median)


def beside_product(options: argparse.Namespace, cases: tuple[Case, ...]) -> tuple[list[Timing], float]:
    """Timings of the cases in turns, and the median seconds of NumPy's product between them."""
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker("flash", options.threads)) for _ in cases]
        workers.append(stack.enter_context(Worker("gemm", options.threads)))
        timings, _ = time_in_turns(workers, [*cases, cases[0]], options.rounds, options.budget)
    (product,) = (timing for timing in timings if timing.implementation == "gemm" and timing.kind == "forward")
    return show([timing for timing in timings if timing.implementation == "flash"]), product.median


def show(timings: list[Timing]) -> list[Timing]:
    """Prints a table of the timings, and returns them."""
    from flash_attention.commands.bench.report import times_table

    print(times_table([timing for timing in timings if timing.kind != "both"]), flush=True)
    print()
    return timings


def measure(options: argparse.Namespace, names: Iterable[str], cases: Sequence[Case]) -> tuple[list[Timing], dict]:
    """Timings of the named implementations on the cases, and reasons by (name, case); prints a table at the end."""
    from tqdm import tqdm

    timings, reasons = [], {}
    with contextlib.ExitStack() as stack:
        workers = [stack.enter_context(Worker(name, options.threads)) for name in names]
        for case in (bar := tqdm(cases, unit="case", leave=False)):
            bar.set_description(str(case))
            more, why = time_in_turns(workers, case, options.rounds, options.budget)
            timings += more
            reasons.update({(name, case): reason for name, reason in why.items()})
            if "flash" in why:
                raise RuntimeError(f"backend cpu cannot run {case}: {why['flash']}")
    show(timings)
    for name, why in dict.fromkeys((name, why) for (name, _), why in reasons.items()):
        left_out = [case for case in cases if reasons.get((name, case)) == why]
        which = name if len(left_out) == len(cases) else f"{name}: {', '.join(map(str, left_out))}"
        print(f"not run, {which}: {why}\n", flush=True)
    return timings, reasons
