"""Writes docs/figures.md, the page of measured tables, each with the command that prints it.

    python docs/measured.py               # the page anew, with the results that it holds
    python docs/measured.py tik ring      # runs the commands of these sections first and puts in what they print

Run it in the root of the repository, on a quiet machine.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs/figures.md"
_RESULT = re.compile(r"<!-- result: (\w+) -->\n(.*?)\n<!-- end -->", re.DOTALL)
_MODEL = "Estimates of tikemu's timing model; nothing ran on a device."


@dataclass(frozen=True)
class Section:
    """A heading of the page.

    Attributes:
        name: on the command line.
        title: the heading.
        command: what prints the result, from the root of the repository.
        text: what the result is of, in one paragraph.
    """

    name: str
    title: str
    command: str
    text: str


SECTIONS = (
    Section(
        "tik",
        "TIK operators: shares of the peak",
        "flash-attention bench --tik",
        f"One core's share of 32 heads of 4096 tokens. {_MODEL}",
    ),
    Section(
        "kernels",
        "TIK operators: forward kernels",
        "python -m benchmarks.tik_kernels --head-dim 128 64 256 224 192 160",
        f"The same work, per 128 x 128 scores, with code and events in flight. {_MODEL}",
    ),
    Section(
        "backward",
        "TIK operators: backward kernels",
        "python -m benchmarks.tik_kernels --operator backward rows finish",
        f"The main kernel and the passes around it. {_MODEL}",
    ),
    Section(
        "wide",
        "TIK operators: main backward kernel of wide heads",
        "python -m benchmarks.tik_kernels --operator backward --head-dim 160 192 256",
        _MODEL,
    ),
    Section(
        "buffers",
        "TIK operators: on-chip memories",
        "python -m benchmarks.tik_kernels --buffers --operator forward backward --head-dim 64 128 256",
        "Bytes of every buffer by memory, causal, S = 4096.",
    ),
    Section(
        "conversions",
        "TIK operators: conversions of the framework",
        "python -m benchmarks.tik_conversions",
        f"What changes of format around the operators leave of their speed, by layout. {_MODEL}",
    ),
    Section(
        "heads",
        "TIK operators: numbers of heads",
        "python -m benchmarks.tik_table heads --seq 1024",
        f"Cycles, backward with all its passes; where the memory's clients are few they get more of it. {_MODEL}",
    ),
    Section(
        "cliffs",
        "TIK operators: what is out of line",
        "python -m benchmarks.tik_table head_dims lengths heads features",
        "Cells below half of a neighbour's speed per visible pair, or more than 15 % below what both neighbours say; "
        f"sums of several rows, with the reason. {_MODEL}",
    ),
    Section(
        "sensitivity",
        "TIK operators: other constants of the model",
        "python -m benchmarks.tik_sensitivity --seq 1024",
        "Shares of the Cube's peak of the main kernels, strategies without a table, with a constant at half / double: "
        "cycles of an exponential, bytes a cycle of the paths, cycles of the head of an `mmad` and of flags, bandwidth "
        f"of the whole memory. {_MODEL}",
    ),
    Section(
        "tuning",
        "TIK operators: entries of the tuning table",
        "flash-attention tune",
        f"Where another strategy than the usual one is faster. {_MODEL}",
    ),
    Section(
        "ring",
        "Ring of cards: predicted overlap",
        "python -m benchmarks.ring_overlap",
        "Predictions from published figures and from assumptions; none was measured on a device.",
    ),
    Section(
        "wheel",
        "tikemu: the TIK kernels of MindSpore's wheel",
        "python benchmarks/emulator_validation.py --mindspore --all",
        "14 files in `mindspore/ops/_op_impl/_custom_op` (MindSpore 2.10.0) with 90 of the shapes that they support. "
        '"Error" is the largest error in units of its bound (float32 accumulation, and where the kernel does it the '
        "rounding to float16); 0 means equal.",
    ),
    Section(
        "published",
        "tikemu: predicted beside published",
        "python benchmarks/emulator_validation.py --published",
        "Shares of the peak on the 910A. No constant was fitted to them.",
    ),
    Section(
        "emulator",
        "tikemu: its own speed",
        "python benchmarks/emulator_speed.py",
        "Vector instructions of 64 repeats per second in a loop of eight, instructions of a loop whose moves have "
        "run-time offsets, and seconds for attention of 4 heads, S=1024, D=64. Processor time of one core of a 2-core "
        "machine.",
    ),
    Section(
        "processes",
        "tikemu: two processes",
        "python benchmarks/emulator_speed.py --processes 2",
        "On two cores with nothing else to do, by the clock.",
    ),
)


def results(page: str) -> dict[str, str]:
    """What a page holds, by section."""
    return dict(_RESULT.findall(page))


def render(held: Mapping[str, str]) -> str:
    """The page."""
    parts = [
        "# Figures",
        "Measured and modelled tables, each with the command that prints it. `python docs/measured.py NAME` runs that "
        "of a section and puts its output in; where a command prints more, the table is a digest of it. Commands of "
        "`benchmarks/` want `export PYTHONPATH=train:emulator`, or the wheels. What is required of such figures stands "
        "in `benchmarks/required.json`.",
    ]
    for section in SECTIONS:
        result = f"<!-- result: {section.name} -->\n{held[section.name]}\n<!-- end -->"
        parts += [f"## {section.title}", section.text, f"```\n{section.command}\n```", result]
    return "\n\n".join(parts) + "\n"


def measured(section: Section) -> str:
    """What the command of a section prints, as a block, or as it is where that is Markdown."""
    command = shlex.split(section.command)
    command[:1] = [sys.executable] if command[0] == "python" else [sys.executable, "-m", "flash_attention.cli"]
    path = os.pathsep.join(filter(None, ["train", "emulator", os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True, check=True)
    printed = done.stdout.strip()
    return printed if "\n|---" in printed else f"```text\n{printed}\n```"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    known = [section.name for section in SECTIONS]
    parser.add_argument("name", nargs="*", metavar="NAME", help=", ".join(known))
    names = parser.parse_args().name
    unknown = [name for name in names if name not in known]
    if unknown:
        parser.error(f"NAME: got {', '.join(unknown)}, allowed are {', '.join(known)}")
    held = results(PAGE.read_text(encoding="utf-8"))
    for section in SECTIONS:
        if section.name in names:
            held[section.name] = measured(section)
    PAGE.write_text(render(held), encoding="utf-8")


if __name__ == "__main__":
    main()
