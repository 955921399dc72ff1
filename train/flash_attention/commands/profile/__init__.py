"""show where a call on this processor or a TIK operator on tikemu spends time"""

from __future__ import annotations

import argparse
from pathlib import Path

from flash_attention.call import DTYPES
from flash_attention.call.checks import check_int
from flash_attention.call.tiling import BLOCK_MASK_TILES, PATTERNS


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "case",
        nargs="?",
        help="with --backend emulator: operator, lengths and rules of one core's work: forward,S=2048,D=128,full or "
        "backward,D=64,causal_alibi_dropout; what is left out is as in the first",
    )
    parser.add_argument("--backend", choices=("cpu", "emulator"), default="cpu", help="what is profiled")
    parser.add_argument(
        "--out", type=Path, default=Path("results/profile"), help="emulator: folder for profile.txt and trace.json"
    )
    parser.add_argument("--seq", type=int, nargs="+", default=[512, 2048, 8192], help="cpu: sequence lengths")
    parser.add_argument("--dtype", choices=DTYPES, nargs="+", default=["float32"], help="cpu: dtypes of the tensors")
    parser.add_argument("--batch", type=int, default=1, help="cpu: batch items")
    parser.add_argument("--heads", type=int, default=8, help="cpu: heads of query, key and value")
    parser.add_argument("--head-dim", type=int, default=128, help="cpu: size of a head")
    parser.add_argument("--window-blocks", type=int, default=0, help="cpu: key tiles that a query tile sees; 0 = all")
    parser.add_argument("--block-mask", choices=PATTERNS, default="", help="which tiles see each other, BlockMask")
    parser.add_argument(
        "--tile", type=int, choices=BLOCK_MASK_TILES, default=128, help="tokens of its tiles; cpu: of windows too"
    )
    parser.add_argument("--threads", type=int, default=2, help="cpu: cores and OpenMP threads")
    parser.add_argument("--rounds", type=int, default=5, help="cpu: rounds for a median")


def unread(options: argparse.Namespace) -> tuple[str, tuple[str, ...]]:
    if options.backend == "cpu":
        return "with --backend cpu", ("case", "out")
    of_cpu = "seq", "dtype", "batch", "heads", "head_dim", "window_blocks", "threads", "rounds"
    return "with --backend emulator", of_cpu if options.block_mask else (*of_cpu, "tile")


def run(options: argparse.Namespace) -> int:
    if options.backend == "emulator":
        from flash_attention.commands.profile import emulator

        return emulator.run(options.case or "", options.out, options.block_mask, options.tile)
    for seq in options.seq:
        check_int("--seq", seq, 1)
    for name, least in {"batch": 1, "heads": 1, "head_dim": 1, "threads": 1, "rounds": 1, "window_blocks": 0}.items():
        check_int(f"--{name.replace('_', '-')}", getattr(options, name), least)
    from flash_attention.commands.profile import cpu

    return cpu.run(options)
