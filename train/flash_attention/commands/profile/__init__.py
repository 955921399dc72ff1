"""show where a call on this processor or a TIK operator on tikemu spends time"""

from __future__ import annotations

import argparse
from pathlib import Path

from flash_attention.call import DTYPES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "case",
        nargs="?",
        help="with --backend emulator: operator, lengths and rules of one core's work: forward,S=2048,D=128,full or "
        "backward,D=64,causal_alibi_dropout; what is left out is as in the first",
    )
    parser.add_argument("--backend", choices=("cpu", "emulator"), default="cpu")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("results/profile"),
        help="emulator: folder for the text and the trace",
    )
    parser.add_argument("--seq", type=int, nargs="+", default=[512, 2048, 8192], help="cpu: sequence lengths")
    parser.add_argument("--dtype", choices=DTYPES, nargs="+", default=["float32"], help="cpu")
    parser.add_argument("--batch", type=int, default=1, help="cpu")
    parser.add_argument("--heads", type=int, default=8, help="cpu")
    parser.add_argument("--head-dim", type=int, default=128, help="cpu")
    parser.add_argument("--window-blocks", type=int, default=0, help="cpu: key tiles that a query tile sees; 0 = all")
    parser.add_argument("--threads", type=int, default=2, help="cpu: cores and OpenMP threads")
    parser.add_argument("--rounds", type=int, default=5, help="cpu: rounds for a median")


def run(options: argparse.Namespace) -> int:
    if options.backend == "emulator":
        from flash_attention.commands.profile import emulator

        return emulator.run(options.case or "", options.out)
    for name in ("seq", "batch", "heads", "head_dim", "threads", "rounds"):
        given = getattr(options, name)
        if min(given if isinstance(given, list) else [given]) < 1:
            raise ValueError(f"--{name.replace('_', '-')}: got {given}, allowed is 1 or more")
    if options.window_blocks < 0:
        raise ValueError(f"--window-blocks: got {options.window_blocks}, allowed is 0 (all) or more")
    if options.case is not None:
        raise ValueError(f"CASE: got {options.case!r}, allowed is one with --backend emulator only")
    from flash_attention.commands.profile import cpu

    return cpu.run(options)
