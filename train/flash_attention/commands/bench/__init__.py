"""measure speed and memory beside torch and composed attention, and estimate the TIK operators"""

from __future__ import annotations

import argparse
from pathlib import Path

from flash_attention.call import DTYPES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--decode", action="store_true", help="instead: one query against many keys, beside the copy rate and torch"
    )
    instead.add_argument(
        "--packed", action="store_true", help="instead: packed sequences, beside a share of one long call and torch"
    )
    instead.add_argument(
        "--tik",
        action="store_true",
        help="instead: shares of the Cube's peak that the TIK operators reach on the emulator's model of an Ascend "
        "910, at one --seq (default 4096)",
    )
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="may be repeated; all when not given")
    parser.add_argument("--seq", action="append", type=int, help="length; may be repeated")
    parser.add_argument("--threads", type=int, default=2, help="cores and OpenMP threads of every implementation")
    parser.add_argument("--rounds", type=int, default=9, help="most rounds for a median")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of rounds a case; the least is 3 rounds")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, whose figures mean nothing; a minute at most")
    parser.add_argument("--out", type=Path, default=Path("results/bench"), help="folder for times.csv and the pictures")


def run(options: argparse.Namespace) -> int:
    if options.seq and min(options.seq) < 1:
        raise ValueError(f"--seq: got {options.seq}, allowed is 1 or more")
    if options.threads < 1 or options.rounds < 1:
        raise ValueError(f"--threads and --rounds: got {options.threads} and {options.rounds}, allowed is 1 or more")
    if options.tik:
        found = of_operators(options)
    elif options.packed:
        from flash_attention.commands.bench import sequences

        found = sequences.packed(options.rounds, options.threads, options.quick)
    elif options.decode:
        from flash_attention.commands.bench import sequences

        found = sequences.decode(options.rounds, options.threads, options.quick, tuple(options.dtype or DTYPES))
    else:
        from flash_attention.commands.bench import speed

        speed.run(options)
        return 0
    from flash_attention.measuring import figures

    print("\n" + figures.text(found))
    return 0


def of_operators(options: argparse.Namespace) -> list:
    """Return the figures of the TIK operators."""
    from flash_attention.commands.bench import tik

    lengths = options.seq or [tik.SEQ // tik.QUICK if options.quick else tik.SEQ]
    if len(lengths) > 1:
        raise ValueError(f"--seq: got {lengths}, allowed with --tik is one length")
    return tik.figures(lengths[0])
