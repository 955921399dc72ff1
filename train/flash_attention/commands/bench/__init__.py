"""speed and memory on this machine beside torch and composed attention; packed, decoding, and an estimate for TIK"""

from __future__ import annotations

import argparse
from pathlib import Path

from flash_attention.commands.bench.figures import REQUIRED
from flash_attention.problem import DTYPES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--decode",
        action="store_true",
        help="instead: one query against many keys beside the machine's copy rate and torch, and what a token costs "
        "with a KVCache",
    )
    parser.add_argument(
        "--packed",
        action="store_true",
        help="instead: packed sequences beside the ideal share of one long call, and torch looped",
    )
    parser.add_argument(
        "--tik",
        action="store_true",
        help="instead: shares of the Cube's peak that the TIK operators reach on the emulator's model of an Ascend "
        "910, at one --seq (default 4096); with --decode or --packed those kernels",
    )
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="may be repeated; all when not given")
    parser.add_argument("--seq", action="append", type=int, help="length; may be repeated")
    parser.add_argument("--threads", type=int, default=2, help="cores and OpenMP threads of every implementation")
    parser.add_argument("--rounds", type=int, default=9, help="most rounds for a median")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of rounds a case; the least is 3 rounds")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, whose figures mean nothing; a minute at most")
    parser.add_argument(
        "--strict",
        nargs="?",
        type=Path,
        const=REQUIRED,
        metavar="FILE",
        help="required figures beside reached ones, from this file (without FILE that of the repository, "
        f"{REQUIRED}); exit status 1 when one is missed or not measured",
    )
    parser.add_argument("--out", type=Path, default=Path("results/bench"), help="folder for times.csv and the pictures")


def run(options: argparse.Namespace) -> int:
    if options.seq and min(options.seq) < 1:
        raise ValueError(f"--seq: got {options.seq}, allowed is 1 or more")
    if options.threads < 1 or options.rounds < 1:
        raise ValueError(f"--threads and --rounds: got {options.threads} and {options.rounds}, allowed is 1 or more")
    from flash_attention.commands.bench import figures

    bounds = None if options.strict is None else figures.read_bounds(options.strict)
    if options.tik:
        found = of_operators(options)
    elif options.decode or options.packed:
        found = of_sequences(options)
    else:
        from flash_attention.commands.bench import speed

        found = speed.run(options)
    if bounds is not None or options.tik or options.decode or options.packed:
        print("\n" + figures.text(found, bounds))
    return figures.status(found, bounds)


def of_sequences(options: argparse.Namespace) -> list:
    """Figures of packed sequences and of decoding."""
    from flash_attention.commands.bench import cache_steps, sequences

    found = []
    if options.packed:
        found += sequences.packed(options.rounds, options.threads, options.quick)
    if options.decode:
        found += sequences.decode(options.rounds, options.threads, options.quick, tuple(options.dtype or DTYPES))
        found += cache_steps.figures(options.quick)
    return found


def of_operators(options: argparse.Namespace) -> list:
    """Figures of the TIK operators."""
    from flash_attention.commands.bench import tik, tik_decode, tik_packed
    from flash_attention.measuring import tik_kernels

    tik_kernels.require_tikemu("--tik")
    found = []
    if options.decode:
        found += tik_decode.figures(options.quick)
    if options.packed:
        found += tik_packed.figures(options.quick)
    if not found:
        lengths = options.seq or [tik.SEQ // tik.QUICK if options.quick else tik.SEQ]
        if len(lengths) > 1:
            raise ValueError(f"--seq: got {lengths}, allowed with --tik is one length")
        found = tik.figures(lengths[0])
    return found
