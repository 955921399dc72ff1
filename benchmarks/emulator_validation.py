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
sys.path.insert(0, os.path.join(sys.path[0], "emulator"))

import tikemu

from tests.emulator.support import mindspore_kernels
from tests.emulator.support.programs import gemm

FITS = 0.06  # how far predictions may be from what was published


def _shown(error: tikemu.TikError) -> str:
    return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def mindspore_table(everything: bool) -> bool:
    """Print one line per kernel and shape; returns whether every result is inside its bound."""
    if not mindspore_kernels.available():
        print("MindSpore is not installed; its wheel contains the kernels (pip install mindspore)")
        return False
    notes: list[str] = []
    good = True

    def note(text: str) -> str:
        if text not in notes:
            notes.append(text)
        return f"[{notes.index(text) + 1}]"

    print(
        f"{'kernel':<28}{'shape':<42}{'error/bound':>12}{'largest error':>15}{'instructions':>14}{'seconds':>9}"
        "  default, strict"
    )
    for case in mindspore_kernels.CASES:
        if case.slow and not everything:
            continue
        modes = []
        if case.default:
            try:
                mindspore_kernels.run(case, options={})
                modes.append("runs")
            except tikemu.TikError as error:
                options = ", ".join(f"{name}={value!r}" for name, value in case.options.items())
                modes.append(note(f"{_shown(error)}. The result is from Options({options})."))
        start = time.perf_counter()
        outcome = mindspore_kernels.run(case)
        elapsed = time.perf_counter() - start
        good &= outcome.ratio <= 1
        modes = modes or ["runs"]
        try:
            strict = mindspore_kernels.run(case, strict=True)
            good &= strict.ratio <= 1
            modes.append("runs")
        except tikemu.TikError as error:
            modes.append(note(_shown(error)))
        print(
            f"{case.kernel:<28}{case.shape:<42}{outcome.ratio:>12.2g}{outcome.error:>15.3g}"
            f"{outcome.instructions:>14,}{elapsed:>9.1f}  {', '.join(modes)}",
            flush=True,
        )
    for number, text in enumerate(notes, 1):
        print(f"[{number}] {text}")
    return good


def published_table() -> bool:
    """Print predictions beside published measurements; returns whether one reading of the evidence fits them all."""
    from benchmarks.published_kernels import PUBLISHED, READINGS

    gemm.main()
    ratios = {name: [row.ratio(row.predicted(constants)) for row in PUBLISHED] for name, constants in READINGS.items()}
    print("\npredicted over published under readings of the evidence, first-generation 910 of 30 cores at 900 MHz\n")
    print(f"{'kernel':<42}{'published':>24}" + "".join(f"{name:>20}" for name in READINGS))
    for number, row in enumerate(PUBLISHED):
        figure = f"{row.low:g}" if row.low == row.high else f"{row.low:g} to {row.high:g}"
        cells = "".join(f"{found[number]:>20.2f}" for found in ratios.values())
        print(f"{row.name:<42}{f'{figure} {row.unit}':>24}{cells}")
    fitting = [name for name, found in ratios.items() if all(abs(ratio - 1) <= FITS for ratio in found)]
    print(f"\nwithin {FITS:.0%} of everything: {', '.join(fitting) or 'none'}")
    for name, found in ratios.items():
        if name not in fitting:
            row = max(range(len(found)), key=lambda number: abs(found[number] - 1))
            print(f"not {name}: {PUBLISHED[row].name} {found[row]:.2f}")
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
