"""What the framework's changes of format around the TIK operators cost, by layout: traffic over the memory's rate.

    PYTHONPATH=train:emulator python -m benchmarks.tik_conversions [--seq 4096]

A TransData brings a tensor into FRACTAL_NZ or out of it, a Transpose brings its axes into order; each reads a tensor of
float16 and writes one. How well those operators use the memory is not known: EFFICIENCIES. docs/ascend.md says which of
them remain for which layout.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from flash_attention.commands.bench import tik
from flash_attention.measuring import tik_kernels
from flash_attention.measuring.tik_kernels import Measurement
from flash_attention.text_table import table

BYTES_PER_CYCLE = 37.5  # of one core while all are active: timing.md 1
EFFICIENCIES = (1.0, 0.6)  # of a conversion, of that rate
# Forward: query, key, value, output. Backward: the gradients of these; it takes what the forward took.
TENSORS = 4
# By title: layout of the kernels, and conversions of each tensor.
LAYOUTS = {
    "TH, BSH, BSND": ("TH", 0),
    "BNSD by itself": ("BNSD", 1),  # tensors that lie as BNSD: TransData
    "BNSD, SBH behind MatMul": ("BNSD", 3),  # TransData, Transpose, TransData
}


def traffic_cycles(measured: Measurement, conversions: int, efficiency: float) -> float:
    """Cycles that `conversions` of each tensor take."""
    p = measured.problem
    size = 2 * p.batch * p.heads * p.seq_q * p.head_dim
    return conversions * TENSORS * 2 * size / (BYTES_PER_CYCLE * efficiency)


def shares(main: Measurement, around: list[Measurement]) -> dict[str, list[float]]:
    """Shares of the Cube's peak by title of LAYOUTS, for each efficiency; without conversions they are the same.

    Args:
        main: the kernel that does the work, on BNSD.
        around: the passes that belong to its operator.
    """
    tokens = [
        tik_kernels.measure(dataclasses.replace(m.problem, layout="TH"), m.sync, operator=m.operator)
        for m in (main, *around)
    ]
    work = main.utilisation * main.cycles
    result = {}
    for title, (layout, conversions) in LAYOUTS.items():
        cycles = sum(m.cycles for m in (tokens if layout == "TH" else (main, *around)))
        result[title] = [work / (cycles + traffic_cycles(main, conversions, share)) for share in EFFICIENCIES]
    return result


def row(name: str, main: Measurement, around: list[Measurement]) -> list[str]:
    """Cells of an operator: its share alone, and with the conversions of each layout."""
    cells = [name, f"{100 * tik.share(main, around):.1f} %"]
    for ideal, usual in shares(main, around).values():
        cells.append(f"{100 * ideal:.1f} %" + (f", {100 * usual:.1f} %" if usual != ideal else ""))
    return cells


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table of all shapes of the bench."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seq", type=int, default=tik.SEQ, help="tokens")
    seq = parser.parse_args(arguments).seq
    tik_kernels.require_tikemu("benchmarks.tik_conversions")
    efficiencies = ", ".join(f"{100 * share:g} %" for share in EFFICIENCIES)
    print(f"share of the Cube's peak, S={seq}, with the framework's conversions at {efficiencies} of the memory's rate")
    print("and the passes of the backward operator; tikemu's model of the Ascend 910A (no device)\n")
    rows = []
    for shape in tik.SHAPES:
        main_kernel, *around = tik.measure(shape, seq)
        rows.append(row(tik.name_of(shape), main_kernel, around))
    print(table(["operator", "alone", *LAYOUTS], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
