"""Print shares of the Cube's peak under every reading of the evidence on the chip: the one table of ranges.

PYTHONPATH=train:emulator python -m benchmarks.tik_sensitivity [--seq 4096]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from flash_attention.measuring import tik_kernels
from flash_attention.measuring.readings import READINGS, STALLS
from flash_attention.text_table import table

SEQ = 4096
#: Operator, head_dim, whether causal.
CASES = tuple(
    (operator, head_dim, causal)
    for operator in ("forward", "backward")
    for head_dim in (128, 64)
    for causal in (False, True)
)


def ranges(seq: int, cases: Sequence[tuple]) -> str:
    """Return a row per case: the share under every reading, their range, and stalls at every mask write."""
    rows = []
    for operator, head_dim, causal in cases:
        kernel = tik_kernels.build(tik_kernels.problem_of(seq, head_dim, causal=causal), operator)
        shares = []
        for constants in (*READINGS.values(), STALLS):
            result = tik_kernels.simulate(kernel, constants=constants)
            shares.append(100 * tik_kernels.Measurement.of(kernel, result, operator).utilisation)
        *open_questions, stalls = shares
        span = f"{shares[0]:.1f} ({min(open_questions):.0f} to {max(open_questions):.0f})"
        cells = [f"{share:.1f}" for share in open_questions[1:]]
        name = f"{operator} D={head_dim} {'causal' if causal else 'full'}"
        rows.append([name, span, *cells, f"{stalls:.1f}"])
    return table(["kernel", "model (range)", *list(READINGS)[1:], "stalls at masks"], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seq", type=int, default=SEQ, help="tokens")
    seq = parser.parse_args(arguments).seq
    tik_kernels.require_tikemu("benchmarks.tik_sensitivity")
    print(f"share of the Cube's peak, S={seq}, main kernels, under readings of the evidence\n")
    print(ranges(seq, CASES))
    return 0


if __name__ == "__main__":
    sys.exit(main())
