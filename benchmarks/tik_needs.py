"""What every TIK kernel of the bench asks of a core, and what doubtful forms of instructions gain. Nothing is measured
on a device.

    PYTHONPATH=train:emulator python -m benchmarks.tik_needs [--seq 4096]

The exit status is 1 when a kernel asks for more than there is.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from flash_attention.commands.bench import tik
from flash_attention.kernels.tik import instruction_forms
from flash_attention.kernels.tik.hardware import EVENTS, INSTRUCTION_CACHE
from flash_attention.kernels.tik.problem import CAPACITY
from flash_attention.measuring import tik_kernels
from flash_attention.measuring.tik_kernels import Measurement
from flash_attention.text_table import table

BUILD_SECONDS = 10.0
FORM_SEQ = 2048  # for the costs of doubtful forms
FORM_CASES: tuple[tuple[str, int, dict], ...] = (
    *((operator, head_dim, {}) for operator in ("forward", "backward") for head_dim in (128, 64)),
    ("forward", 64, {"bias": "per_score"}),
)
NEEDS = ["kernel", *(f"{memory} KiB/{CAPACITY[memory] / 1024:g}" for memory in CAPACITY)]
NEEDS += [f"code/{INSTRUCTION_CACHE}", f"events/{EVENTS}", "instructions", "GM KiB/tile", "build s", ""]
_TITLES = {"rows": "backward, pre-pass", "finish": "backward, last pass"}


def needs_row(measured: Measurement) -> list[str]:
    """Cells of one kernel; the last one names what is too much."""
    memory = [f"{measured.peak_bytes[name] / 1024:.1f}" for name in CAPACITY]
    cells = [str(measured.code_bytes), str(max(measured.events.values())), str(measured.instructions)]
    cells += [f"{measured.gm_bytes_per_tile / 1024:.1f}", f"{measured.build_seconds:.2f}"]
    operator = _TITLES.get(measured.operator, measured.operator)
    name = tik.name_of((operator, measured.problem.head_dim, measured.problem.rules.causal))
    over = excess(measured)
    return [name, *memory, *cells, "TOO MUCH: " + ", ".join(over) if over else "within"]


def excess(measured: Measurement) -> list[str]:
    """Names of the limits that a kernel exceeds."""
    over = tik_kernels.excess(measured.peak_bytes, measured.code_bytes, max(measured.events.values()))
    return over + ["build time"] * (measured.build_seconds > BUILD_SECONDS)


def form_costs(seq: int) -> list[list[str]]:
    """Cells of every doubtful form: whether the kernels use it, and how much longer they take without it."""

    def cycles() -> list[float]:
        """Of each case, with the forms that are used now."""
        problems = [(tik_kernels.problem_of(seq, head_dim, **rules), name) for name, head_dim, rules in FORM_CASES]
        return [tik_kernels.measure(problem, operator=name).cycles for problem, name in problems]

    rows, usual = [], cycles()
    for field in dataclasses.fields(instruction_forms.InstructionForms):
        used = getattr(instruction_forms.current(), field.name)
        with instruction_forms.using(**{field.name: not used}):
            changed = cycles()
        pairs = zip(usual, changed) if used else zip(changed, usual)
        costs = [f"{(without / form - 1) * 100:+.2f} %" for form, without in pairs]
        rows.append([field.name, "yes" if used else "no", *costs])
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=" ".join((__doc__ or "").split("\n\n")[0].split()))
    parser.add_argument("--seq", type=int, default=tik.SEQ, help="tokens")
    seq = parser.parse_args(arguments).seq
    tik_kernels.require_tikemu("benchmarks.tik_needs")
    measured = [kernel for shape in tik.SHAPES for kernel in tik.measure(shape, seq)]
    print(f"S={seq}: what a kernel asks of a core / what there is; a tile is 128 x 128 scores\n")
    print(table(NEEDS, [needs_row(kernel) for kernel in measured]))
    print(
        "\ntime that the usual form costs where the kernels use, or could use, a doubtful one "
        "(kernels/tik/instruction_forms.py)\n"
    )
    names = (" ".join((operator, f"D={head_dim}", *rules)) for operator, head_dim, rules in FORM_CASES)
    print(table(["form", "used", *names], form_costs(min(seq, FORM_SEQ))))
    return int(any(excess(kernel) for kernel in measured))


if __name__ == "__main__":
    sys.exit(main())
