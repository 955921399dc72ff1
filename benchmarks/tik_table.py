"""Whether the TIK operators fall off anywhere: their speed over head_dims, lengths, heads and features.

    export PYTHONPATH=train:emulator
    python -m benchmarks.tik_table head_dims lengths heads features
    python -m benchmarks.tik_table heads --seq 1024 --head-dim 64 --operator backward

A speed is the share of the Cubes' peak that products of visible pairs reach, on all cores, backward with the passes
around its main kernel. Figures come from the timing model of tikemu. They are estimates; nothing here ran on a device.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from flash_attention.commands.bench import tik
from flash_attention.kernels.tik.hardware import CUBE_FLOPS
from flash_attention.kernels.tik.problem import KernelProblem
from flash_attention.measuring import tik_kernels
from flash_attention.text_table import table

HEAD_DIMS = (16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)
LENGTHS = (512, 1024, 2048, 4096, 16384, 65536)
HEADS = (1, 8, 30, 32, 33, 48)
CORES = (30, 32)
RULES: dict[str, dict] = {"full": {}, "causal": {"causal": True}}
PARTS = ("head_dims", "lengths", "heads", "features")
CLIFF = 0.5  # of a neighbour's speed
DENT = 0.85  # of what both neighbours say together


@dataclass(frozen=True)
class Cell:
    """One problem with one operator.

    Attributes:
        operator: "forward" or "backward".
        kind: a name in RULES or tik_kernels.FEATURES.
        heads: over all batch items, on `cores` cores that have the memory for themselves. 0: the work of one of 32 busy
            cores, as everywhere else in the bench: of one head, or a group of them.
    """

    operator: str
    seq: int
    head_dim: int
    kind: str
    heads: int = 0
    cores: int = 32

    @property
    def problem(self) -> KernelProblem:
        rules = RULES.get(self.kind) or tik_kernels.FEATURES.get(self.kind, {})
        problem = tik_kernels.problem_of(self.seq, self.head_dim, **rules)
        if not self.heads:
            return problem
        return replace(problem, heads=self.heads, kv_heads=self.heads, all_heads=self.heads, cores=self.cores)

    def __str__(self) -> str:
        heads = f" {self.heads} heads on {self.cores} cores" if self.heads else ""
        return f"{self.operator} S={self.seq} D={self.head_dim} {self.kind}{heads}"


@dataclass(frozen=True)
class Speed:
    """Cycles of a cell, its share of the peak, the cores at work, and the strategy of the kernel that does it."""

    cycles: int
    share: float
    cores: int
    strategy: str


def speed(cell: Cell) -> Speed:
    """Times the kernels of a cell."""
    problem = cell.problem
    main, *around = tik.kernels_of(cell.operator, problem)
    _, products, value_products = tik_kernels.OPERATORS[main]
    pairs = problem.band.pairs() * problem.batch * problem.heads
    flops = 2 * (products * problem.head_dim + value_products * problem.value_dim) * pairs
    kernels = [tik_kernels.build(problem, name) for name in (main, *around)]
    active = [kernel.cores if cell.heads else 32 for kernel in kernels]
    cycles = sum(tik_kernels.simulate(kernel, active_cores=busy).cycles for kernel, busy in zip(kernels, active))
    share = flops / CUBE_FLOPS / problem.cores / cycles
    return Speed(cycles, share, kernels[0].cores, kernels[0].plan.strategy)


def rows_of(part: str, options: argparse.Namespace) -> Iterator[tuple[list[Cell], bool]]:
    """Rows of the table: neighbouring cells along the axis of a part, and whether it is one.

    Features have the same without a feature as their neighbour instead, which comes first.
    """
    for operator in options.operator:
        if part == "head_dims":
            for seq in options.seq:
                for kind in RULES:
                    yield [Cell(operator, seq, head_dim, kind) for head_dim in HEAD_DIMS], True
            continue
        for head_dim in options.head_dim:
            if part == "lengths":
                lengths = [seq for seq in LENGTHS if seq <= options.longest]
                for kind in RULES:
                    yield [Cell(operator, seq, head_dim, kind) for seq in lengths], True
                continue
            for seq in options.seq:
                if part == "features":
                    for plain in RULES:
                        alike = [
                            n for n, f in tik_kernels.FEATURES.items() if f.get("causal", False) == (plain == "causal")
                        ]
                        yield [Cell(operator, seq, head_dim, name) for name in (plain, *alike)], False
                    continue
                for cores in CORES:
                    for kind in RULES:
                        yield [Cell(operator, seq, head_dim, kind, heads, cores) for heads in options.heads], True


def out_of_line(shares: Sequence[float], axis: bool) -> list[tuple[int, str]]:
    """(index, what is wrong) of the speeds in a row that fall off, see `rows_of`."""
    found = []
    for index, share in enumerate(shares):
        beside = [shares[at] for at in ((index - 1, index + 1) if axis else (0,)) if 0 <= at < len(shares)]
        part = share / max(beside)
        if part < CLIFF:
            found.append((index, f"{part:.0%} of its neighbour"))
        elif len(beside) == 2 and share < DENT * sum(beside) / 2:
            found.append((index, f"{2 * share / sum(beside):.0%} of the mean of its neighbours"))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the rows as they come, then the cells that are out of line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("part", nargs="+", choices=PARTS)
    parser.add_argument("--operator", nargs="+", choices=("forward", "backward"), default=["forward", "backward"])
    parser.add_argument("--seq", type=int, nargs="+", default=[1024, 4096], help="tokens, where they are not the axis")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[64, 128], help="where it is not the axis")
    parser.add_argument("--heads", type=int, nargs="+", default=list(HEADS), help="batch x heads")
    parser.add_argument("--longest", type=int, default=LENGTHS[-1], help="tokens of the longest of the lengths")
    options = parser.parse_args(arguments)
    tik_kernels.require_tikemu("benchmarks.tik_table")
    odd: list[list[str]] = []
    for part in options.part:
        for row, axis in rows_of(part, options):
            cells = []
            speeds: list[Speed] = []
            for cell in row:
                speeds.append(found := speed(cell))
                cells.append([str(cell), found.strategy, str(found.cores), str(found.cycles), f"{found.share:.1%}"])
            print(table(["kernel", "strategy", "cores", "cycles", "of the peak"], cells), flush=True)
            odd += [[str(row[index]), why] for index, why in out_of_line([s.share for s in speeds], axis)]
    print(f"\n{len(odd)} out of line")
    if odd:
        print(table(["kernel", "speed"], odd))
    return 0


if __name__ == "__main__":
    sys.exit(main())
