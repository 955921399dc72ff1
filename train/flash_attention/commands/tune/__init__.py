"""searches the fastest tiling of the TIK operators and writes the table that they read"""

from __future__ import annotations

import argparse
from pathlib import Path

HEAD_DIMS = (16, 32, 64, 80, 96, 128, 160, 176, 192, 208, 224, 256)
LENGTHS = (128, 256, 384, 512, 768, 1024, 2048)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--device",
        choices=("emulator", "ascend"),
        default="emulator",
        help="emulator: cycles of tikemu's timing model; ascend: times on this machine's device, a process per variant",
    )
    parser.add_argument("--operator", choices=("forward", "backward"), nargs="+", default=["forward", "backward"])
    parser.add_argument("--head-dim", type=int, nargs="+", default=list(HEAD_DIMS))
    parser.add_argument(
        "--seq", type=int, nargs="+", default=list(LENGTHS), help="tokens; each stands for those near it"
    )
    parser.add_argument("--rules", choices=("full", "causal"), nargs="+", default=["full", "causal"])
    parser.add_argument("--out", type=Path, help="file for the table (default: the one of the package)")
    parser.add_argument(
        "--state",
        type=Path,
        default=Path("results/tune/state.json"),
        help="what was measured so far: an interrupted search goes on from there",
    )


def run(options: argparse.Namespace) -> int:
    from flash_attention.commands.tune import search
    from flash_attention.commands.tune.variants import Case

    for name in ("head_dim", "seq"):
        if min(getattr(options, name)) < 1:
            raise ValueError(f"--{name.replace('_', '-')}: got {getattr(options, name)}, allowed is 1 or more")
    cases = [
        Case(operator, seq, head_dim, rules)
        for operator in options.operator
        for head_dim in dict.fromkeys(options.head_dim)
        for rules in options.rules
        for seq in sorted(set(options.seq))
    ]
    return search.run(cases, options.device, options.out, options.state)
