"""Turn the report of a card into constants of the timing model.

    PYTHONPATH=train:emulator python -m benchmarks.calibrate card.json [--seq 4096]

`flash-attention selftest --device ascend --report card.json` makes the report. Nothing is written: the constants are in
emulator/tikemu/soc.py, with their sources.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from flash_attention.commands.bench import tik
from flash_attention.commands.selftest import loops
from flash_attention.commands.selftest.card import Emulator
from flash_attention.commands.selftest.experiments import PREFIX
from flash_attention.measuring.readings import READINGS
from flash_attention.text_table import table

CLOSE = 0.03  # of what a card says the model may be off
STEPS = 20  # halvings of the interval in which a constant is searched
#: Values of the constants that are switches.
SWITCHES = {"mask_drain": (0.0, 1.0, 2.0), "vector_two_sources": (1.0, 2.0), "vector_reads_add": (0.0, 1.0)}
#: The constants with the loop that decides each. Constants on which others depend come first.
DECIDED_BY = {
    "vector_head": "dup, 32 repeats",
    "issue_cycles": "dup, 1 repeat",
    "vector_latency": "axpy, one target",
    "mask_drain": "dup, 32 repeats, two masks",
    "vector_two_sources": "add, sources apart",
    "vector_reads_add": "add in place",
    "ub_scalar_read": "scalar read of UB",
    "vector_transcendental_f16": "exp float16",
    "vector_transcendental_f32": "exp float32",
    "l0c_ub_bandwidth": "L0C to UB",
    "gm_read_latency": "GM latency, miss",
    "l2_read_latency": "GM latency, hit",
    "gm_read_bandwidth": "memory, 1 core",
    "hbm_bandwidth": "memory, 30 cores",
}
LAUNCHES = ("launch_seconds_queued", "launch_seconds_synchronised")

Times = dict[str, Sequence[float]]


class Model:
    """Hold the model of one chip under values of its constants.

    Attributes:
        constants: constants that differ from the model as it is.
    """

    def __init__(self, soc: str) -> None:
        from tikemu.soc import find

        self.soc, self.emulator = find(soc), Emulator(soc)
        self.constants: dict[str, float] = {}

    def value(self, name: str) -> float:
        """Return a constant."""
        return self.constants.get(name, getattr(self.soc.timing, name))

    def answer(self, loop: loops.Loop, **others: float) -> float:
        """Return the model's answer to a question, with other values of some constants."""
        return answer(loop, self.emulator.seconds(loop, {**self.constants, **others}), self.soc.clock_hz)

    def search(self, name: str, loop: loops.Loop, wanted: float) -> float | None:
        """Return the value of a constant with which the model gives the answer. None: no likely value does."""
        if name in SWITCHES:
            return min(SWITCHES[name], key=lambda value: abs(self.answer(loop, **{name: value}) - wanted))
        constant = type(self.soc.timing).__dict__[name]
        low = min(constant.value, constant.low or constant.value) / 4
        high = 4 * max(constant.value, constant.high or constant.value)
        ends = [self.answer(loop, **{name: value}) for value in (low, high)]
        if not min(ends) * (1 - CLOSE) <= wanted <= max(ends) * (1 + CLOSE):
            return None
        for _ in range(STEPS):
            middle = (low + high) / 2
            above = self.answer(loop, **{name: middle}) > wanted
            if above == (ends[1] > ends[0]):
                high = middle
            else:
                low = middle
        return float(f"{(low + high) / 2:.3g}")


def answer(loop: loops.Loop, seconds: Sequence[float], hertz: float) -> float:
    """Return the cycles per instruction; for memory the bytes per second, which no clock enters."""
    return loop.answer(seconds, hertz if loop.unit == "cycles" else 1.0)


def times_of(report: Mapping) -> Times:
    """Return the times by the name of a question."""
    found = {one["name"]: one["times"] for one in report["experiments"] if "times" in one}
    times = {name[len(PREFIX) :]: seconds for name, seconds in found.items()}
    missing = [loop.name for loop in loops.LOOPS[:2] if loop.name not in times]
    if missing:
        raise ValueError(
            f"the report has no times of {', '.join(missing)}: nothing in it ran on a device that is timed"
        )
    return times


def fit(model: Model, measured: Mapping[str, float]) -> list[list[str]]:
    """Change the model's constants to what was measured; returns a row for every constant."""
    rows = []
    by_name = {loop.name: loop for loop in loops.LOOPS}
    for name, question in DECIDED_BY.items():
        if question not in measured:
            rows.append([name, f"{model.value(name):g}", "not asked"])
            continue
        loop, wanted, before = by_name[question], measured[question], model.value(name)
        if abs(model.answer(loop) / wanted - 1) <= CLOSE:
            rows.append([name, f"{before:g}", "fits"])
            continue
        found = model.search(name, loop, wanted)
        if found is None or abs(model.answer(loop, **{name: found}) / wanted - 1) > CLOSE:
            rows.append([name, f"{before:g}", f"no value gives {wanted:.4g}: the structure of the model is wrong"])
            continue
        model.constants[name] = found
        rows.append([name, f"{before:g}", f"becomes {found:g}"])
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("report", type=Path, help="what selftest --report has written")
    parser.add_argument("--seq", type=int, default=tik.SEQ, help="tokens of the figures after")
    options = parser.parse_args(arguments)
    report = json.loads(options.report.read_text(encoding="utf-8"))
    times = times_of(report)
    model = Model(report["soc"].partition(",")[0])
    hertz = loops.clock(*(times[loop.name] for loop in loops.LOOPS[:2]))
    print(f"{report['soc']}: clock {hertz / 1e6:.0f} MHz, {model.soc.clock_mhz} in the profile\n")
    asked = [loop for loop in loops.LOOPS if loop.name in times]
    measured = {loop.name: answer(loop, times[loop.name], hertz) for loop in asked}
    before = {loop.name: model.answer(loop) for loop in asked}
    fitting = [
        name
        for name, constants in READINGS.items()
        if all(abs(model.answer(loop, **constants) / measured[loop.name] - 1) <= CLOSE for loop in asked)
    ]
    constants = fit(model, measured)
    rows = [
        [loop.name, *(f"{found:.4g}" for found in (measured[loop.name], before[loop.name], model.answer(loop)))]
        for loop in asked
    ]
    print(table(["question", "card", "model", "model after"], rows))
    print(f"\nreadings of the evidence that fit: {', '.join(fitting) or 'none'}\n")
    constants += [
        [name, f"{model.value(name):g}", f"becomes {seconds:.3g}"]
        for name, seconds in zip(LAUNCHES, times.get("launch", ()))
    ]
    print(table(["constant", "model", "by the card"], constants))
    print(f"\nshare of the Cube's peak, S={options.seq}, main kernels\n")
    rows = [
        [tik.name_of(shape), *(f"{share:.1f} %" for share in tik.shares(shape, options.seq, ({}, model.constants)))]
        for shape in tik.SHAPES
    ]
    print(table(["kernel", "model", "after"], rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
