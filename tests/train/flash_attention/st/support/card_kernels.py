"""Print MindSpore's launches for attention between four projections, by mode and layout, on the card.

    PYTHONPATH=train:emulator:emulator/virtual_ascend:. python tests/train/flash_attention/st/support/card_kernels.py

With MindSpore 2.0 it prints the launches of two calls, forward and backward, and a table of conversions. `--write`
writes the lists to card_kernels.txt, which the tests expect.
"""

from __future__ import annotations

import csv
import itertools
import sys
import tempfile
import textwrap
from pathlib import Path

from emulator.virtual_ascend.tests.card import on_card, said
from tests.train.flash_attention.st.support.wheel_tools import ROOT

LISTS = Path(__file__).with_suffix(".txt")
MODES = "graph", "pynative"
LAYOUTS = ("TH", 64), ("BSH", 64), ("BSND", 64), ("SBH", 64), ("BNSD", 64), ("BSH", 24)
# A result of the whole chain of float16 operators over its largest number.
BOUND = 2e-3
TRANSPOSES = "Transpose", "TransposeD", "ConfusionTransposeD"


def launched(folder: Path) -> list[dict[str, str]]:
    """Return the table of launches."""
    with open(folder / "op_summary.csv") as file:
        return list(csv.DictReader(file))


def kernels(python: Path, mode: str, layout: str, head_dim: int, seed: int = 0) -> list[str]:
    """Return the types of all that two calls launch; their gradients have to be right."""
    with tempfile.TemporaryDirectory() as folder:
        options = "--report", folder, "--seed", seed
        program = Path(__file__).with_name("card_attention.py"), "gradients", mode, layout, head_dim
        printed = said(
            on_card(
                python, *program, cwd=Path(folder), options=options, packages=(ROOT / "train",),
                EXAMPLES=ROOT / "examples",
            )
        )  # fmt: skip
        errors = [line.split() for line in printed.splitlines()]
        assert len(errors) == 10 and all(float(error) <= BOUND for *_, error in errors), printed
        return [row["OP Type"] for row in launched(Path(folder))]


def expected() -> dict[str, list[str]]:
    """Return the lists of card_kernels.txt.

    A line has "MODE LAYOUT HEAD_DIM", for each layout of the list; the types are indented, with counts.
    """
    blocks = (block.splitlines() for block in LISTS.read_text().strip().split("\n\n"))
    words = {
        name: [word.partition("*") for word in " ".join(lines).split()]
        for names, *lines in blocks
        for name in names.split(", ")
    }
    return {name: [kind for kind, _, count in runs for _ in range(int(count or 1))] for name, runs in words.items()}


def written(types: list[str]) -> str:
    """Return the lines of a list. A type that follows itself stands once, with its count."""
    runs = ((kind, len(list(run))) for kind, run in itertools.groupby(types))
    words = " ".join(kind if count == 1 else f"{kind}*{count}" for kind, count in runs)
    return textwrap.indent(textwrap.fill(words, 112), "    ")


def main(write: bool) -> None:
    """Print lists and table."""
    found = {
        f"{mode} {layout} {head_dim}": kernels(Path(sys.executable), mode, layout, head_dim)
        for mode, (layout, head_dim) in itertools.product(MODES, LAYOUTS)
    }
    names: dict[str, list[str]] = {}
    for name, types in found.items():
        names.setdefault(written(types), []).append(name)
    text = "\n\n".join(f"{', '.join(same)}\n{types}" for types, same in names.items()) + "\n"
    if write:
        LISTS.write_text(text)
    print(text)
    for layout, head_dim in LAYOUTS:
        cells = [f"{layout}, {head_dim}"]
        for mode in MODES:
            types = found[f"{mode} {layout} {head_dim}"]
            cells += [len(types), types.count("TransData"), sum(kind in TRANSPOSES for kind in types)]
        print("|", " | ".join(map(str, cells)), "|")


if __name__ == "__main__":
    main("--write" in sys.argv)
