"""Measure what doubtful forms of instructions gain in the TIK kernels.

    PYTHONPATH=train:emulator python -m benchmarks.tik_forms [--seq 2048]

The forms stand in kernels/tik/instruction_forms.py. Estimates of tikemu's timing model; nothing ran on a device.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Sequence

from flash_attention.kernels.tik import instruction_forms
from flash_attention.measuring import tik_kernels
from flash_attention.text_table import table

SEQ = 2048
FORM_CASES: tuple[tuple[str, int, dict], ...] = (
    *((operator, head_dim, {}) for operator in ("forward", "backward") for head_dim in (128, 64)),
    ("forward", 64, {"bias": "per_score"}),
)


def form_costs(seq: int) -> list[list[str]]:
    """Return the table cells of every doubtful form: whether the kernels use it, and how much longer they take without
    it.
    """

    def cycles() -> list[float]:
        """Return the cycles of each case with the forms in use."""
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seq", type=int, default=SEQ, help="tokens")
    seq = parser.parse_args(arguments).seq
    tik_kernels.require_tikemu("benchmarks.tik_forms")
    names = (" ".join((operator, f"D={head_dim}", *rules)) for operator, head_dim, rules in FORM_CASES)
    print(table(["form", "used", *names], form_costs(seq)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
