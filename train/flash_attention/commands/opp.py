"""write the package of TIK operators for Ascend 910 that MindSpore from 2.3 on needs"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from flash_attention.commands.info import require_numpy


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--soc", default="ascend910", help="chip")
    parser.add_argument(
        "--prototypes",
        action="store_true",
        help="add a library of prototypes, if CANN refuses the types without one; needs g++ and CANN's headers",
    )
    parser.add_argument("--out", type=Path, required=True, help="new or empty folder for the package")


def run(options: argparse.Namespace) -> int:
    require_numpy()
    from flash_attention.backends.tik import opp_package

    opp_package.write(options.soc, options.out, prototypes=options.prototypes)
    print(f"operator package in {options.out}: {sum(path.is_file() for path in options.out.rglob('*'))} files")
    print(f"install it where CANN is: bash {shlex.quote(str(options.out / 'install.sh'))}")
    return 0
