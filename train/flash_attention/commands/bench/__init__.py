"""measure speed and memory beside torch and composed attention, and estimate the TIK operators"""

from __future__ import annotations

import argparse
from pathlib import Path

from flash_attention.call import DTYPES
from flash_attention.call.checks import check_int


def add_arguments(parser: argparse.ArgumentParser) -> None:
    others = parser.add_argument_group(
        "measures that replace speed and memory over lengths"
    ).add_mutually_exclusive_group()
    others.add_argument(
        "--decode", action="store_true", help="one query against many keys, beside the copy rate and torch"
    )
    others.add_argument(
        "--packed", action="store_true", help="packed sequences, beside a share of one long call and torch"
    )
    others.add_argument(
        "--tik",
        action="store_true",
        help="shares of the Cube's peak that the TIK operators reach on the emulator's model of an Ascend 910, at one "
        "--seq (default 4096)",
    )
    parser.add_argument("--dtype", action="append", choices=DTYPES, help="may be repeated; all if not given")
    parser.add_argument("--seq", action="append", type=int, help="length; may be repeated")
    parser.add_argument("--threads", type=int, default=2, help="cores and OpenMP threads of every implementation")
    parser.add_argument("--rounds", type=int, default=9, help="most rounds for a median")
    parser.add_argument("--budget", type=float, default=20.0, help="seconds of rounds a case; the least is 3 rounds")
    parser.add_argument("--quick", action="store_true", help="tiny sizes, whose figures mean nothing; a minute at most")
    parser.add_argument("--out", type=Path, default=Path("results/bench"), help="folder for times.csv and the pictures")


def unread(options: argparse.Namespace) -> tuple[str, tuple[str, ...]]:
    if options.tik:
        return "with --tik", ("dtype", "threads", "rounds", "budget", "out")
    if options.packed:
        return "with --packed", ("dtype", "seq", "budget", "out")
    return "with --decode", (("seq", "budget", "out") if options.decode else ())


def run(options: argparse.Namespace) -> int:
    from flash_attention.commands.bench import sequences, speed, tik
    from flash_attention.measuring import figures

    for seq in options.seq or ():
        check_int("--seq", seq, 1)
    check_int("--threads", options.threads, 1)
    check_int("--rounds", options.rounds, 1)
    if options.tik:
        lengths = options.seq or [tik.SEQ // tik.QUICK if options.quick else tik.SEQ]
        if len(lengths) > 1:
            raise ValueError(f"--seq: got {lengths}, allowed with --tik is one length")
        found = tik.figures(lengths[0])
    elif options.packed:
        found = sequences.packed(options.rounds, options.threads, options.quick)
    elif options.decode:
        found = sequences.decode(options.rounds, options.threads, options.quick, tuple(options.dtype or DTYPES))
    else:
        speed.run(options)
        return 0
    print("\n" + figures.text(found))
    return 0
