"""Predict cycles of the CPU kernel's loops on Kunpeng 920 with LLVM's model (tsv110).

    PYTHONPATH=train python -m benchmarks.kunpeng_model [--library libflash_attention_cpu.so]

It takes the forward pass in float32 out of a library for AArch64, or compiles that part with the library's flags. The
part is the loop of products, and the code after it that turns products into probabilities. The exponential of four
vectors is compiled by itself. A model knows neither caches nor memory, so this is a bound. It shows where instructions
are wasted. The exit status is 1 if benchmarks/required.json asks for more.

Needs llvm-mca (Debian: llvm) and a cross compiler (Debian: g++-aarch64-linux-gnu).
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from flash_attention.backends.cpu import build
from flash_attention.measuring.figures import Figure
from flash_attention.text_table import table

from benchmarks import required

MACHINE, MODEL = "aarch64", "tsv110"
COMPILER, DISASSEMBLER, ANALYSER = f"{MACHINE}-linux-gnu-g++", f"{MACHINE}-linux-gnu-objdump", "llvm-mca"
# A whole cell of scores without bias and dropout.
CELL = re.compile(r"ForwardCell\w*Float32Math\w*BiasE0ELb0EE\w*run_fullEv")
# The size of a cell, in rows and in floats; multiplications and additions of a vector of four that end in a cycle.
ROWS, COLUMNS, LANES, PER_CYCLE = 4, 16, 4, 2
HEAD_DIMS = (64, 128)
EPILOGUE, EXP2 = "epilogue of 4 x 16 scores", "exp2 of four vectors"
#: Names of the figures, with their units.
FIGURES = {
    "products: of the model's peak": "%",
    f"{EPILOGUE}: cycles": "cycles",
    f"{EXP2}: cycles": "cycles",
    **{f"forward, head_dim {head_dim}: of the model's peak": "%" for head_dim in HEAD_DIMS},
}
EXPONENTIAL = """
#include "simd/neon.h"
#include "exp2-inl.h"
void exponential(float* p, long cells) {
  using namespace flash_attention;
#pragma GCC unroll 1
  for (; cells > 0; --cells, p += 16) {
    F v[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) v[i] = exp2<6>(Simd::load(p + 4 * i));
#pragma GCC unroll 4
    for (int i = 0; i < 4; ++i) Simd::store(p + 4 * i, v[i]);
  }
}
"""


@dataclass(frozen=True)
class Code:
    """Instructions in their order, and their addresses."""

    addresses: tuple[int, ...]
    instructions: tuple[str, ...]

    def target(self, index: int) -> int | None:
        """Return the index of a jump's target, or None if it leaves the function."""
        found = re.match(r"(?:b\.\w+|cbn?z\s+\w+,|tbn?z\s+\w+,\s*#\d+,)\s+([0-9a-f]+)\b", self.instructions[index])
        address = int(found[1], 16) if found else -1
        return self.addresses.index(address) if address in self.addresses else None

    def loops(self) -> list[tuple[int, int]]:
        """Return the first and last instruction of each loop."""
        targets = ((self.target(last), last) for last in range(len(self.instructions)))
        return [(first, last) for first, last in targets if first is not None and first < last]


@dataclass(frozen=True)
class Loop:
    """Hold the model's figures of repeated instructions."""

    instructions: int
    cycles: float
    least_cycles: float  # by the processor's units alone


def function(binary: Path, name: re.Pattern) -> Code:
    """Return the one function of a binary whose symbol matches.

    Raises:
        LookupError: there is none, or more than one.
    """
    command = [DISASSEMBLER, "-d", "--no-show-raw-insn", binary]
    listing = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    parts = re.findall(r"^[0-9a-f]+ <(.+)>:\n((?:.+\n)+)", listing, re.MULTILINE)
    found = [text for symbol, text in parts if name.search(symbol)]
    if len(found) != 1:
        raise LookupError(f"{binary}: {len(found)} functions match {name.pattern!r}, expected one")
    lines = re.findall(r"^ *([0-9a-f]+):\t(.+)$", found[0], re.MULTILINE)
    return Code(tuple(int(address, 16) for address, _ in lines), tuple(text.strip() for _, text in lines))


def analysed(instructions: Sequence[str]) -> Loop:
    """Return the model's figures of instructions that repeat a hundred times, without branches."""
    plain = [re.sub(r"<.*|//.*", "", text).strip() for text in instructions]
    plain = [text for text in plain if not re.match(r"(b|b\.\w+|cbn?z|tbn?z|ret)\b", text)]
    command = [ANALYSER, f"-mtriple={MACHINE}", f"-mcpu={MODEL}", "-iterations=100"]
    command += ["-instruction-info=0", "-resource-pressure=0"]
    said = subprocess.run(command, input="\n".join(plain), check=True, capture_output=True, text=True).stdout
    value = {name: float(number) for name, number in re.findall(r"^([\w ]+): +([\d.]+)$", said, re.MULTILINE)}
    return Loop(len(plain), value["Total Cycles"] / 100, value["Block RThroughput"])


def products(cell: Code) -> tuple[int, int]:
    """Return the first and the last instruction of the loop of products: the longest loop that multiplies."""
    multiplying = [loop for loop in cell.loops() if multiplications(cell, *loop)]
    return max(multiplying, key=lambda loop: loop[1] - loop[0])


def multiplications(code: Code, first: int, last: int) -> int:
    """Count the multiply-adds of vectors from one instruction to another."""
    return sum(text.startswith("fmla") for text in code.instructions[first : last + 1])


def measure(library: Path, exponential: Path) -> tuple[dict[str, Loop], list[Figure]]:
    """Return the loops by name, and FIGURES."""
    cell = function(library, CELL)
    first, last = products(cell)
    end = cell.instructions.index("ret", last)
    alone = function(exponential, re.compile(r"exponential"))
    ((start, stop),) = alone.loops()
    loops = {
        "products": analysed(cell.instructions[first : last + 1]),
        EPILOGUE: analysed(cell.instructions[last + 1 : end]),
        EXP2: analysed(alone.instructions[start : stop + 1]),
    }
    share = multiplications(cell, first, last) / PER_CYCLE / loops["products"].cycles
    reached = [100 * share, loops[EPILOGUE].cycles, loops[EXP2].cycles]
    for head_dim in HEAD_DIMS:
        least = 2 * head_dim * ROWS * COLUMNS / LANES / PER_CYCLE
        reached.append(100 * least / (least / share + loops[EPILOGUE].cycles))
    return loops, [Figure(name, value, unit) for (name, unit), value in zip(FIGURES.items(), reached)]


def compiled(source: str, made: Path) -> Path:
    """Compile C++ that may include the kernel's sources for AArch64, with the library's flags."""
    flags = [*build.COMMON_FLAGS, *build.target_flags("neon", MACHINE), "-w", "-I", str(build.SOURCES)]
    subprocess.run([COMPILER, *flags, "-x", "c++", "-", "-c", "-o", str(made)], input=source, check=True, text=True)
    return made


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--library", type=Path, help="for AArch64, not stripped (default: its part is compiled)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        library = options.library or compiled('#include "targets/neon.cpp"', Path(folder) / "neon.o")
        loops, found = measure(library, compiled(EXPONENTIAL, Path(folder) / "exponential.o"))
    rows = [
        [name, str(loop.instructions), f"{loop.cycles:.1f}", f"{loop.least_cycles:.1f}"] for name, loop in loops.items()
    ]
    print(table(["loop", "instructions", "cycles", "least by units"], rows) + "\n")
    return required.report(found)


if __name__ == "__main__":
    sys.exit(main())
