"""speed and memory beside torch and composed attention, required figures beside reached; writes CSV and a plot"""

from __future__ import annotations

import argparse
from pathlib import Path

from flash_attention.problem import DTYPES

PARTS = ("speed", "rate", "short", "layouts", "first", "window", "flat", "memory")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--tik",
        action="store_true",
        help="instead: the TIK operators on the emulator's model of an Ascend 910 core, speed and needs; takes --seq "
        "(default 4096), --strict, --plot and --out",
    )
    parser.add_argument(
        "--decode",
        action="store_true",
        help="instead: one query against many keys beside the machine's copy rate and torch, and what a token costs "
        "with a KVCache; with --tik the decoding kernels beside the modelled memory's rate, takes --quick and --strict",
    )
    parser.add_argument(
        "--packed",
        action="store_true",
        help="instead: packed sequences beside the ideal share of one long call, and torch looped",
    )
    parser.add_argument(
        "--only",
        action="append",
        choices=PARTS,
        help="speed: against torch and composed attention; rate: share of the processor's own matrix product, and half "
        "precision beside float32; short: short sequences, masks, biases and dropout against torch; layouts: beside "
        "BNSD; first: the first call of a shape; window: 8 blocks against full causal; flat: time per token of the "
        "windowed run over lengths; memory: beyond inputs and outputs. May be repeated; all when not given",
    )
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="of part speed; may be repeated")
    parser.add_argument("--seq", action="append", type=int, help="length of part speed; may be repeated")
    parser.add_argument("--threads", type=int, default=2, help="cores and OpenMP threads of every implementation")
    parser.add_argument("--rounds", type=int, default=9, help="most rounds for a median")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of rounds a case; the least is 3 rounds")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="tiny sizes, whose figures mean nothing and are required with --strict only; at most 3 rounds, a minute",
    )
    parser.add_argument(
        "--plot",
        action="store_true",
        help="instead: curves over lengths, forward and backward, causal and full, per head_dim, beside torch, "
        "composed attention and the processor's own matrix product; with --tik: shares of the Cube's peak",
    )
    parser.add_argument(
        "--overview",
        action="store_true",
        help="instead: time and memory of forward and backward over lengths (--seq), causal, as one picture",
    )
    parser.add_argument(
        "--sensitivity",
        action="store_true",
        help="with --tik, instead: shares of the peak with the least certain constants of the model at half and double",
    )
    parser.add_argument("--strict", action="store_true", help="exit status 1 when a figure is missed or not measured")
    parser.add_argument("--out", type=Path, default=Path("results/bench"), help="folder for the CSV files and the plot")


def run(options: argparse.Namespace) -> int:
    if options.sensitivity and not options.tik:
        raise ValueError("--sensitivity: got it alone, allowed is together with --tik")
    if options.seq and min(options.seq) < 1:
        raise ValueError(f"--seq: got {options.seq}, allowed is 1 or more")
    if options.tik:
        return run_tik(options)
    if options.decode or options.packed:
        return run_sequences(options)
    if options.plot:
        return run_plot(options)
    if options.overview:
        return run_overview(options)
    from dataclasses import replace

    from flash_attention.commands.bench import figures as wanted
    from flash_attention.commands.bench import parts, report, work
    from flash_attention.commands.info import installed_version, processor
    from flash_attention.text_table import about

    plan = wanted.QUICK if options.quick else wanted.Plan()
    if options.seq:
        plan = replace(plan, lengths=tuple(options.seq))
    if options.threads < 1 or options.rounds < 1:
        raise ValueError(f"--threads and --rounds: got {options.threads} and {options.rounds}, allowed is 1 or more")
    options.out.mkdir(parents=True, exist_ok=True)
    title = f"{processor()}, {options.threads} threads, MindSpore {installed_version('mindspore')}"
    title += f", torch {installed_version('torch') or 'not installed'}"
    if options.quick:
        options.rounds = min(options.rounds, 3)
    chosen = tuple(options.only or PARTS)
    count, seconds = work.total(chosen, options, plan)
    print(f"{title}\nB=1 H=8 D=128 causal unless said otherwise; medians of rounds in turns")
    print(f"{count} cases, {about(seconds)}\n", flush=True)

    timings: list = []
    figures: list = []
    flat: list = []
    for name in chosen:
        more_timings, more_figures = getattr(parts, name)(options, plan)
        timings += more_timings
        figures += more_figures
        flat = more_timings if name == "flat" else flat
    print(report.figures_table(figures, required=options.strict or not options.quick))
    written = report.write_csv(options.out, timings, figures)
    plot = report.write_plot(options.out, timings, flat, title)
    written += [plot] if plot else []
    print("\nwritten: " + ", ".join(map(str, written)))
    if plot is None:
        print("no plot: matplotlib is not installed (pip install matplotlib)")
    return int(options.strict and any(not figure.ok for figure in figures))


def run_sequences(options: argparse.Namespace) -> int:
    """The bench of packed sequences and of decoding."""
    from flash_attention.commands.bench import cache_steps, report, sequences

    figures = []
    if options.packed:
        figures += sequences.packed(options.rounds, options.threads, options.quick)
    if options.decode:
        figures += sequences.decode(options.rounds, options.threads, options.quick, tuple(options.dtype or DTYPES))
        figures += cache_steps.figures(options.quick)
    print("\n" + report.figures_table(figures, required=options.strict or not options.quick))
    return int(options.strict and any(not figure.ok for figure in figures))


def run_tik(options: argparse.Namespace) -> int:
    """The bench of the TIK operators."""
    from flash_attention.commands.bench import tik, tik_decode, tik_packed
    from flash_attention.commands.bench.lengths import LENGTHS

    if options.decode:
        return tik_decode.run(options.quick, options.strict)
    if options.packed:
        return tik_packed.run(options.quick, options.strict)
    if options.plot:
        return tik.plot(tuple(options.seq or LENGTHS), options.out)
    if options.sensitivity:
        from flash_attention.commands.bench import sensitivity

        return sensitivity.run(one_length(options.seq, sensitivity.SEQ))
    return tik.run(one_length(options.seq, tik.SEQ), options.out, options.strict)


def one_length(given: list[int] | None, default: int) -> int:
    """The only length of --seq.

    Raises:
        ValueError: there are several, or it is below 1.
    """
    lengths = given or [default]
    if len(lengths) > 1 or lengths[0] < 1:
        raise ValueError(f"--seq: got {lengths}, allowed with --tik is one length of 1 or more")
    return lengths[0]


def run_plot(options: argparse.Namespace) -> int:
    """The curves over lengths."""
    from flash_attention import plotting
    from flash_attention.commands.bench import lengths, parts, report
    from flash_attention.commands.bench.case import Case
    from flash_attention.commands.bench.implementations import IMPLEMENTATIONS, Gemm
    from flash_attention.commands.bench.turns import Worker, time_in_turns
    from flash_attention.commands.info import processor

    plotting.require()
    wanted = options.seq or ((64, 128) if options.quick else lengths.LENGTHS)
    dtype = (options.dtype or ["float32"])[0]
    cases = [
        Case(seq, dtype, head_dim=head_dim, causal=causal)
        for seq in wanted
        for head_dim in lengths.HEAD_DIMS
        for causal in (True, False)
    ]
    with Worker("gemm", options.threads) as gemm:
        product, _ = time_in_turns([gemm], Case(1), options.rounds, budget=10.0, kinds=("forward",))
    peak = Gemm.gflops(product[0].median)
    timings, _ = parts.measure(options, list(IMPLEMENTATIONS), cases)
    options.out.mkdir(parents=True, exist_ok=True)
    title = f"{processor()}, {options.threads} threads, {dtype}; peak: NumPy's float32 matrix product"
    path = lengths.draw(lengths.of_timings(timings), peak, "GFLOP/s", title, options.out / "lengths.png")
    print(f"written: {path}, {report.write_csv(options.out, timings, [])[0]}")
    return 0


def run_overview(options: argparse.Namespace) -> int:
    """Time and memory over lengths."""
    from flash_attention import plotting
    from flash_attention.commands.bench import overview, parts, report
    from flash_attention.commands.bench.case import Case
    from flash_attention.commands.bench.implementations import IMPLEMENTATIONS
    from flash_attention.commands.info import installed_version, processor

    plotting.require()
    dtype = (options.dtype or ["float32"])[0]
    lengths = options.seq or ((64, 128) if options.quick else overview.LENGTHS)
    timings, _ = parts.measure(options, list(IMPLEMENTATIONS), [Case(seq, dtype) for seq in lengths])
    found = overview.points(timings, options.threads)
    print(overview.text(found))
    options.out.mkdir(parents=True, exist_ok=True)
    title = f"{processor()}, {options.threads} threads, {dtype}, causal, 8 heads of 128; MindSpore "
    title += f"{installed_version('mindspore')}, torch {installed_version('torch') or 'not installed'}"
    path = overview.draw(found, title, options.out / "overview.png")
    print(f"\nwritten: {path}, {report.write_csv(options.out, timings, [])[0]}")
    return 0
