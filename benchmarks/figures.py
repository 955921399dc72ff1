"""Measure the figures that development keeps an eye on.

    PYTHONPATH=train:emulator python -m benchmarks.figures [PART ...] [--required | --quick]

docs/performance.md says what each part asks. `--required` puts the bounds of benchmarks/required.json beside the
figures. The exit status is then 1 if one is missed or not measured.
"""

from __future__ import annotations

import argparse
import fnmatch
import itertools
import json
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flash_attention.call import DTYPES
from flash_attention.commands.bench import sequences, speed, tik
from flash_attention.measuring.case import Case
from flash_attention.measuring.figures import Figure, not_measured, text
from flash_attention.measuring.implementations import Gemm
from flash_attention.measuring.timing import Timing, Worker, time_in_turns, working
from flash_attention.text_table import table

from benchmarks import block_sparse, masked_decode, tik_decode

WINDOW_BLOCKS = 8
WINDOW_TILES = (64, 128)
_PASSES = {"forward": "forward", "both": "forward and backward"}
#: Bounds by pattern of a figure's name, as in `fnmatch`. The first pattern that fits counts.
BOUNDS: Mapping[str, float] = {
    pattern: bound
    for group in json.loads(Path(__file__).with_name("required.json").read_text(encoding="utf-8")).values()
    for pattern, bound in group.items()
}
_LARGER_IS_BETTER = ("x", "%")  # "x spread", "x the time", "ms" and "MB" are better when smaller


@dataclass(frozen=True)
class Sizes:
    """Sizes to measure."""

    lengths: tuple = (2048, 8192)
    bench_lengths: tuple = speed.LENGTHS
    window_length: int = 16384
    flat_lengths: tuple = (8192, 16384, 32768, 65536, 131072)
    memory_length: int = 65536
    shapes: tuple = ((128, False), (64, True), (64, False))  # head_dims, and whether causal, besides 128 and True
    rates: tuple = ((2048, 1), (512, 4), (128, 32))  # lengths and batches
    rate_head_dims: tuple = (128, 64)
    layout_dtypes: tuple = ("float32", "bfloat16")
    short_lengths: tuple = (128, 256, 512)


QUICK = Sizes(
    lengths=(256,),
    bench_lengths=speed.QUICK_LENGTHS,
    window_length=2048,
    flat_lengths=(1024, 2048),
    memory_length=4096,
    shapes=((64, False),),
    rates=((128, 1),),
    rate_head_dims=(64,),
    layout_dtypes=("bfloat16",),
    short_lengths=(64,),
)


def speed_cases(sizes: Sizes) -> list[Case]:
    """Return other sizes than the bench has, the long ones with fewer heads."""
    return [
        Case(seq, dtype, head_dim=head_dim, causal=causal, heads=2 if seq > 4096 else 8)
        for seq in sizes.lengths
        for dtype in DTYPES
        for head_dim, causal in sizes.shapes
    ]


def short_cases(sizes: Sizes) -> list[Case]:
    """Return short sequences of many heads, and masks, biases and dropout."""
    cases = [Case(seq, batch=8, head_dim=head_dim) for seq in sizes.short_lengths for head_dim in (32, 64, 96)]
    cases += [Case(sizes.short_lengths[0], dtype, batch=8, head_dim=64) for dtype in ("float16", "bfloat16")]
    return cases + [Case(sizes.short_lengths[-1], head_dim=64, extra=extra) for extra in ("mask", "bias", "dropout")]


def medians(timings: Sequence[Timing]) -> dict[tuple[str, str, Case], float]:
    """Return the median seconds by implementation, pass and case."""
    return {(timing.implementation, timing.kind, timing.case): timing.median for timing in timings}


def side_by_side(options: argparse.Namespace, works: Sequence[tuple[str, Case]]) -> dict:
    """Return the medians of implementations in turns, each in its own process with its case."""
    names, cases = zip(*works)
    with working(names, options.threads) as workers:
        return medians(time_in_turns(workers, cases, options.rounds, options.budget)[0])


def beside_torch(options: argparse.Namespace, cases: Sequence[Case]) -> list[Figure]:
    """Return how many times faster than torch each pass of the cases is, in turns."""
    timings, reasons = speed.measure(options, ("flash", "torch"), cases)
    print(speed.times_table(timings) + "\n", flush=True)
    of, found = medians(timings), []
    for case in cases:
        for kind in speed.KINDS:
            theirs, ours = of.get(("torch", kind, case)), of["flash", kind, case]
            ratio = None if theirs is None else theirs / ours
            found.append(Figure(f"{kind}, {case}: faster than torch", ratio, "x", reasons.get(("torch", case), "")))
    return found


def measure_rate(options: argparse.Namespace, sizes: Sizes) -> list[Figure]:
    """Measure full attention in float32 beside NumPy's product, and other dtypes beside float32."""
    from flash_attention.backends.cpu import library

    has_bfloat16 = library.instruction_sets()[0] in (library.TILES_ISA, library.DOT_PRODUCT_ISA)
    dtypes = ("float32", "float16", "bfloat16")
    found = []
    for (seq, batch), head_dim in itertools.product(sizes.rates, sizes.rate_head_dims):
        single, *others = (Case(seq, dtype, batch=batch, head_dim=head_dim, causal=False) for dtype in dtypes)
        of = side_by_side(options, [*(("flash", case) for case in (single, *others)), ("gemm", single)])
        product = Gemm.gflops(of["gemm", "forward", single])
        for kind in speed.KINDS:
            seconds = of["flash", kind, single]
            name, reached = f"{kind}, {single}: of the processor's product", single.flops(kind) / seconds / 1e9
            found.append(Figure(name, 100 * reached / product, "%", f"product {product:.0f} GFLOP/s"))
            for case in others if has_bfloat16 else others[:1]:
                ratio = seconds / of["flash", kind, case]
                found.append(Figure(f"{kind}, {case}: faster than float32", ratio, "x"))
    return found


def measure_layouts(options: argparse.Namespace, sizes: Sizes) -> list[Figure]:
    """Measure the other layouts in percent of the speed of BNSD."""
    found = []
    for dtype in sizes.layout_dtypes:
        first, *others = (Case(sizes.lengths[0], dtype, layout=one) for one in ("BNSD", "BSND", "BSH", "SBH"))
        of = side_by_side(options, [("flash", case) for case in (first, *others)])
        for kind, case in itertools.product(speed.KINDS, others):
            share = 100 * of["flash", kind, first] / of["flash", kind, case]
            found.append(Figure(f"{kind}, {case}: of the speed of BNSD", share, "%"))
    return found


def measure_first(options: argparse.Namespace, sizes: Sizes) -> list[Figure]:
    """Measure the first call of a shape beyond MindSpore's compilation and a later call."""
    result = []
    for case in (Case(sizes.lengths[0]), Case(sizes.lengths[0], "float16", causal=False)):
        with Worker("flash", options.threads) as worker:
            for size in (Case(128), case):  # the first shape pays for what is loaded once
                worker.require(size)
                for kind, title in _PASSES.items():
                    worker.seconds(f"compile {kind}")
                    start = worker.seconds(kind)
                    later = statistics.median(worker.seconds(kind) for _ in range(3))
                    if size == case:
                        name = f"{title}, {case}: first call beyond a later one"
                        result.append(Figure(name, 1e3 * (start - later), "ms"))
    return result


def measure_window(options: argparse.Namespace, sizes: Sizes) -> list[Figure]:
    """Measure the gain of windowed runs in percent of the gain in visible pairs."""
    full = Case(sizes.window_length)
    windows = [Case(sizes.window_length, window_blocks=WINDOW_BLOCKS, tile=tile) for tile in WINDOW_TILES]
    of, found = medians(speed.measure(options, ["flash"], [full, *windows])[0]), []
    for case, kind in itertools.product(windows, speed.KINDS):
        gain, bound = of["flash", kind, full] / of["flash", kind, case], full.visible / case.visible
        note = f"{gain:.2f}x faster, {bound:.2f}x fewer visible pairs"
        found.append(Figure(f"{kind}, {case}: of the gain in pairs", 100 * gain / bound, "%", note))
    return found


def measure_flat(options: argparse.Namespace, sizes: Sizes) -> list[Figure]:
    """Measure the spread of windowed runs' time per token, in float16, whose tensors still fit."""
    cases = [Case(seq, "float16", window_blocks=WINDOW_BLOCKS) for seq in sizes.flat_lengths]
    of, found = medians(speed.measure(options, ["flash"], cases)[0]), []
    window = f"S={sizes.flat_lengths[0]} to {sizes.flat_lengths[-1]} float16 window {WINDOW_BLOCKS} blocks"
    for kind in speed.KINDS:
        per_token = [of["flash", kind, case] / case.seq for case in cases]
        note = f"median {statistics.median(per_token) * 1e6:.2f} us a token"
        spread = max(per_token) / min(per_token)
        found.append(Figure(f"{kind}, {window}: spread of time per token", spread, "x spread", note))
    return found


def measure_memory(options: argparse.Namespace, sizes: Sizes) -> list[Figure]:
    """Measure how a fresh process grows by its first call of this size, without results."""
    case = Case(sizes.memory_length, heads=1)
    extra = {kind: speed.extra_bytes("flash", case, options.threads, kind) for kind in _PASSES}
    return [Figure(f"{_PASSES[kind]}, {case}: extra memory", more / 2**20, "MB") for kind, more in extra.items()]


#: By name what measures a part: a function of the options and the sizes.
PARTS: dict[str, Callable[[argparse.Namespace, Sizes], list[Figure]]] = {
    "bench": lambda options, sizes: beside_torch(
        options, [Case(n, one) for one in DTYPES for n in sizes.bench_lengths]
    ),
    "speed": lambda options, sizes: beside_torch(options, speed_cases(sizes)),
    "rate": measure_rate,
    "short": lambda options, sizes: beside_torch(options, short_cases(sizes)),
    "layouts": measure_layouts,
    "first": measure_first,
    "window": measure_window,
    "flat": measure_flat,
    "memory": measure_memory,
    "packed": lambda options, sizes: sequences.packed(options.rounds, options.threads, options.quick),
    "decode": lambda options, sizes: sequences.decode(options.rounds, options.threads, options.quick, DTYPES),
    "masked_decode": lambda options, sizes: masked_decode.figures(options.quick, options.threads),
    "block_sparse": lambda options, sizes: block_sparse.figures(options.quick),
    "block_sparse_tik": lambda options, sizes: block_sparse.tik_figures(options.quick),
    "tik": lambda options, sizes: tik.figures(tik.SEQ // tik.QUICK if options.quick else tik.SEQ),
    "tik_decode": lambda options, sizes: tik_decode.figures(options.quick),
}


def bound_of(name: str, bounds: Mapping[str, float] = BOUNDS) -> float | None:
    """Return the bound of the figure of that name, or None."""
    return next((bound for pattern, bound in bounds.items() if fnmatch.fnmatchcase(name, pattern)), None)


def is_met(figure: Figure, bound: float) -> bool:
    """Return whether a figure keeps its bound. A figure that was not measured does not."""
    if figure.reached is None:
        return False
    return figure.reached >= bound if figure.unit in _LARGER_IS_BETTER else figure.reached <= bound


def report(figures: Sequence[Figure], bounds: Mapping[str, float] = BOUNDS) -> int:
    """Print required beside reached figures; return status 1 if one is missed or absent."""
    rows, status = [], 0
    for figure in figures:
        bound, cells = bound_of(figure.name, bounds), ("-", "")
        if bound is not None:
            met = is_met(figure, bound)
            sign = ">=" if figure.unit in _LARGER_IS_BETTER else "<="
            cells = f"{sign} {bound:.3g} {figure.unit}", "reached" if met else "MISSED"
            status |= not met
        if figure.reached is not None:
            rows.append(figure.row(*cells))
    print("\n".join([table(["figure", "reached", "required", "", ""], rows), *not_measured(figures)]))
    return status


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure the parts one after another, then print all figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", nargs="*", metavar="PART", help=f"{', '.join(PARTS)}; all if none is given")
    parser.add_argument("--threads", type=int, default=2, help="cores and OpenMP threads")
    parser.add_argument("--rounds", type=int, default=9, help="most rounds for a median")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of rounds a case; the least is 3 rounds")
    either = parser.add_mutually_exclusive_group()
    either.add_argument(
        "--required",
        action="store_true",
        help="compare with benchmarks/required.json; status 1 if one is missed or not measured",
    )
    either.add_argument("--quick", action="store_true", help="tiny sizes, to see that it works")
    options = parser.parse_args(arguments)
    unknown = [part for part in options.part if part not in PARTS]
    if unknown:
        parser.error(f"PART: got {', '.join(unknown)}, allowed are {', '.join(PARTS)}")
    sizes = QUICK if options.quick else Sizes()
    found = [figure for part in options.part or PARTS for figure in PARTS[part](options, sizes)]
    if options.required:
        return report(found)
    print(text(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
