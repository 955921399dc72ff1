"""Print the evidence for the emulator's results, as tables.

python benchmarks/emulator_validation.py --mindspore          TIK kernels in MindSpore's wheel against NumPy
python benchmarks/emulator_validation.py --mindspore --all    and the shapes that take long
python -m benchmarks.emulator_validation --published          predictions beside published measurements
"""

from __future__ import annotations

import argparse
import os
import sys
import time

os.environ.setdefault("OMP_NUM_THREADS", "1")
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
sys.path.insert(1, os.path.join(sys.path[0], "emulator"))
sys.path.insert(1, os.path.join(sys.path[0], "train"))

import tikemu
from flash_attention.text_table import table
from tqdm import tqdm

from emulator.tests.support import mindspore_kernels
from emulator.tests.support.programs import gemm

FITS = 0.06  # how far predictions may be from what was published


def mindspore_table(everything: bool) -> bool:
    """Print one line per kernel and shape; returns whether every result is inside its bound."""
    if not mindspore_kernels.available():
        print("MindSpore is not installed; its wheel contains the kernels (pip install mindspore)")
        return False
    notes: list[str] = []
    rows, good = [], True

    def attempt(case: mindspore_kernels.Case, more: str = "", **how) -> str:
        """Run in a mode; return "runs", or the number of a note with the error."""
        nonlocal good
        try:
            good &= mindspore_kernels.run(case, **how).ratio <= 1
            return "runs"
        except tikemu.TikError as error:
            note = f"{type(error).__name__}: {str(error).splitlines()[0]}{more}"
            if note not in notes:
                notes.append(note)
            return f"[{notes.index(note) + 1}]"

    for case in tqdm([one for one in mindspore_kernels.CASES if everything or not one.slow], leave=False):
        options = ", ".join(f"{name}={value!r}" for name, value in case.options.items())
        modes = [attempt(case, f". The result is from Options({options}).", options={})] if case.default else ["runs"]
        start = time.perf_counter()
        outcome = mindspore_kernels.run(case)
        seconds = time.perf_counter() - start
        good &= outcome.ratio <= 1
        modes.append(attempt(case, strict=True))
        numbers = f"{outcome.ratio:.2g}", f"{outcome.error:.3g}", f"{outcome.instructions:,}", f"{seconds:.1f}"
        rows.append([case.kernel, case.shape, *numbers, ", ".join(modes)])
    header = ["kernel", "shape", "error/bound", "largest error", "instructions", "seconds", "default, strict"]
    print(table(header, rows))
    for number, text in enumerate(notes, 1):
        print(f"[{number}] {text}")
    return good


def published_table() -> bool:
    """Print predictions beside published measurements; returns whether one reading of the evidence fits them all."""
    from benchmarks.published_kernels import PUBLISHED, READINGS

    gemm.main()
    ratios = {name: [row.ratio(row.predicted(constants)) for row in PUBLISHED] for name, constants in READINGS.items()}
    print("\npredicted over published under readings of the evidence, first-generation 910 of 30 cores at 900 MHz\n")
    rows = []
    for row, *found in zip(PUBLISHED, *ratios.values()):
        figure = f"{row.low:g}" if row.low == row.high else f"{row.low:g} to {row.high:g}"
        rows.append([row.name, f"{figure} {row.unit}", *(f"{ratio:.2f}" for ratio in found)])
    print(table(["kernel", "published", *READINGS], rows))
    fitting = [name for name, found in ratios.items() if all(abs(ratio - 1) <= FITS for ratio in found)]
    print(f"\nwithin {FITS:.0%} of everything: {', '.join(fitting) or 'none'}")
    for name, found in ratios.items():
        if name not in fitting:
            worst, row = max(zip(found, PUBLISHED), key=lambda pair: abs(pair[0] - 1))
            print(f"not {name}: {row.name} {worst:.2f}")
    return bool(fitting)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mindspore", action="store_true", help="TIK kernels in MindSpore's wheel against NumPy")
    parser.add_argument("--all", action="store_true", help="with --mindspore: also the shapes that take long")
    parser.add_argument("--published", action="store_true", help="predictions beside published measurements")
    options = parser.parse_args()
    good = True
    if options.published or not options.mindspore:
        good &= published_table()
    if options.mindspore or not options.published:
        good &= mindspore_table(options.all)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
