"""Measure TIK kernels on the modelled core, one core's share of 32 heads. From the root of the repository:

    export PYTHONPATH=train:emulator
    python -m benchmarks.tik_kernels [--seq 4096] [--head-dim 128 64] [--sync auto conservative]
    python -m benchmarks.tik_kernels --operator forward backward rows finish
    python -m benchmarks.tik_kernels --head-dim 64 --data 2
    python -m benchmarks.tik_kernels --features --seq 1024 --head-dim 16 128 256
    python -m benchmarks.tik_kernels --buffers --head-dim 64 128 256 --operator forward backward
    python -m benchmarks.tik_kernels --timeline 60000 2600
    python -m benchmarks.tik_kernels --readings
    python -m benchmarks.tik_kernels --forms --seq 2048

Figures come from the timing model of tikemu. They are estimates; nothing here ran on a device.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from flash_attention import text_table
from flash_attention.commands.bench import tik
from flash_attention.commands.profile import emulator
from flash_attention.kernels.tik import instruction_forms
from flash_attention.kernels.tik.problem import CAPACITY, KernelProblem
from flash_attention.measuring import tik_kernels
from flash_attention.measuring.readings import READINGS, STALLS
from flash_attention.measuring.tik_kernels import FEATURES, OPERATORS, Measurement, build, measure, problem_of, simulate


def measure_normal(problem: KernelProblem, sigma: float, sync: str = "auto") -> Measurement:
    """Time the forward operator with normal data, the query times `sigma`."""
    kernel = build(problem, "forward")
    random, factors = np.random.default_rng(0), {"query": sigma, "key": 1.0, "value": 1.0}
    shapes = {tensor.name: tensor.shape for tensor in kernel.inputs if tensor.name in factors}
    given = {name: (random.standard_normal(s) * factors[name]).astype(np.float16) for name, s in shapes.items()}
    return Measurement.of(kernel, simulate(kernel, sync, given=given, numerics=True), "forward", sync)


BUILD_SECONDS = 10.0
LETTERS = {
    "mmad": "#",
    "tensor_mov": "m",
    "vec_muls": "s",
    "vec_exp": "e",
    "vec_conv": "c",
    "load2dv1": "l",
    "data_move": "d",
}


def timeline(trace: Path, start: float, length: float, width: int = 104) -> str:
    """Draw the pipes of core 0 as text from a trace, a character a slice.

    A character names the instruction that holds the pipe longest in its slice: see LETTERS, others are "o".
    """
    step = length / width
    rows: dict[str, list] = {}
    for event in emulator.events(trace):
        cells = rows.setdefault(event.pipe, [{} for _ in range(width)])
        # Vector makes the moves out of L0C.
        letter = "m" if (event.pipe, event.name) == ("V", "data_move") else LETTERS.get(event.name, "o")
        begin, end = event.start - start, event.end - start
        for index in range(max(0, int(begin // step)), min(width, int(end // step) + 1)):
            overlap = min(end, (index + 1) * step) - max(begin, index * step)
            if overlap > 0:
                cells[index][letter] = cells[index].get(letter, 0.0) + overlap
    lines = []
    for pipe in ("M", "V", "MTE1", "MTE2", "MTE3"):
        cells = rows.get(pipe, [{}] * width)
        text = "".join(max(cell, key=cell.get) if sum(cell.values()) > step / 4 else "." for cell in cells)
        lines.append(f"{pipe:5s}|{text}|")
    return "\n".join(lines)


def excess(measured: Measurement) -> list[str]:
    """Return the names of the limits that a kernel exceeds."""
    over = tik_kernels.excess(measured.peak_bytes, measured.code_bytes, max(measured.events.values()))
    return over + ["build time"] * (measured.build_seconds > BUILD_SECONDS)


def table(measurements: list[Measurement], names: list[str] | None = None) -> str:
    """Return the measurements as text. `names` say what each one has beside its operator and size."""
    header = ["kernel", "sync", "cycles/tile", "of peak", "code", "events", "instr.", "GM/tile", "V", "M", "build"]
    header += [f"{name} KiB/{size / 1024:g}" for name, size in CAPACITY.items()]
    rows = []
    for m, what in zip(
        measurements, names or ["causal" if m.problem.call.rules.causal else "full" for m in measurements]
    ):
        row = [f"{m.operator} D={m.problem.call.head_dim} S={m.problem.call.seq_q} {what}", m.sync]
        row += [f"{m.cycles_per_tile:.0f}", f"{m.utilisation:.1%}", m.code_bytes, max(m.events.values())]
        row += [m.instructions, f"{m.gm_bytes_per_tile:.0f}", f"{m.pipes['V']:.0%}", f"{m.pipes['M']:.0%}"]
        row += [f"{m.build_seconds:.2f} s", *(f"{m.peak_bytes.get(name, 0) / 1024:.0f}" for name in CAPACITY)]
        rows.append([*row, "".join(f"over: {what} " for what in excess(m))])
    return text_table.table([*header, ""], rows)


def budget_table(operator: str, problem: KernelProblem) -> str:
    """Return every buffer of a kernel with its copies and bytes, by memory."""
    call = problem.call
    kernel = build(problem, operator)
    what = "causal" if call.rules.causal else "full"
    lines = [f"{operator} D={call.head_dim} S={call.seq_q} {what}: strategy {kernel.plan.strategy}"]
    for memory, (used, available) in kernel.memory().items():
        parts = [part for part in kernel.buffers if part.memory == memory]
        lines.append(f"  {memory}: {used} of {available} bytes")
        lines += [f"    {part.name:16s} {part.dtype:8s} {part.copies} x {part.bytes // part.copies}" for part in parts]
    return "\n".join(lines)


FORM_CASES: tuple[tuple[str, int, dict], ...] = (
    *((operator, head_dim, {}) for operator in ("forward", "backward") for head_dim in (128, 64)),
    ("forward", 64, {"bias": "per_score"}),
)


def form_costs(seq: int) -> list[list[str]]:
    """Return the cells of every doubtful form: whether it is used, and what the kernels take without it."""

    def cycles() -> list[float]:
        """Return the cycles of each case with the forms in use."""
        problems = [(problem_of(seq, head_dim, **rules), name) for name, head_dim, rules in FORM_CASES]
        return [measure(problem, operator=name).cycles for problem, name in problems]

    rows, usual = [], cycles()
    for field in dataclasses.fields(instruction_forms.InstructionForms):
        if field.name == "write_absent":  # measured kernels lack no output
            continue
        used = getattr(instruction_forms.current(), field.name)
        with instruction_forms.using(**{field.name: not used}):
            changed = cycles()
        pairs = zip(usual, changed) if used else zip(changed, usual)
        costs = [f"{(without / form - 1) * 100:+.2f} %" for form, without in pairs]
        rows.append([field.name, "yes" if used else "no", *costs])
    return rows


def ranges(seq: int, shapes: Sequence[tik.Shape]) -> str:
    """Return a row per shape: the share under every reading of the evidence, their range, and stalls at mask writes."""
    rows = []
    for shape in shapes:
        *open_questions, stalls = tik.shares(shape, seq, (*READINGS.values(), STALLS))
        span = f"{open_questions[0]:.1f} ({min(open_questions):.0f} to {max(open_questions):.0f})"
        rows.append([tik.name_of(shape), span, *(f"{share:.1f}" for share in open_questions[1:]), f"{stalls:.1f}"])
    return text_table.table(["kernel", "model (range)", *list(READINGS)[1:], "stalls at masks"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seq", type=int, default=4096, help="tokens (default: 4096)")
    parser.add_argument("--head-dim", type=int, nargs="+", default=[128, 64])
    parser.add_argument("--operator", nargs="+", choices=OPERATORS, default=["forward"])
    parser.add_argument("--sync", nargs="+", default=["auto", "conservative"])
    parser.add_argument(
        "--data",
        type=float,
        metavar="SIGMA",
        help="forward: with normal data, the query times SIGMA (default: no data)",
    )
    parser.add_argument(
        "--timeline",
        type=float,
        nargs=2,
        metavar=("START", "CYCLES"),
        help="draw the pipes of the first kernel, causal=False, between two times, and stop",
    )
    parser.add_argument("--features", action="store_true", help="masks, biases, dropout ... instead of full and causal")
    parser.add_argument("--buffers", action="store_true", help="list the buffers of each kernel, causal, and stop")
    parser.add_argument("--readings", action="store_true", help="shares of the peak under all readings, and stop")
    parser.add_argument("--forms", action="store_true", help="what doubtful forms of instructions gain, and stop")
    arguments = parser.parse_args()
    if arguments.data is not None and arguments.operator != ["forward"]:
        parser.error(f"--data: got it with --operator {' '.join(arguments.operator)}, allowed is forward")
    kernels = [(operator, head_dim) for operator in arguments.operator for head_dim in arguments.head_dim]
    if arguments.readings:
        print(ranges(arguments.seq, [shape for shape in tik.SHAPES if shape[1] in arguments.head_dim]))
        return
    if arguments.forms:
        names = (" ".join((operator, f"D={head_dim}", *rules)) for operator, head_dim, rules in FORM_CASES)
        print(text_table.table(["form", "used", *names], form_costs(arguments.seq)))
        return
    if arguments.buffers:
        for operator, head_dim in kernels:
            print(budget_table(operator, problem_of(arguments.seq, head_dim, causal=True)))
        return
    if arguments.timeline:
        problem = problem_of(arguments.seq, arguments.head_dim[0])
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            measure(problem, trace=str(file), operator=arguments.operator[0])
            print(timeline(file, *arguments.timeline))
        return
    kinds: dict[str, dict] = FEATURES if arguments.features else {"full": {}, "causal": {"causal": True}}
    rows, names = [], []
    for (operator, head_dim), (name, features), sync in itertools.product(kernels, kinds.items(), arguments.sync):
        problem = problem_of(arguments.seq, head_dim, **features)
        data = arguments.data
        rows.append(measure(problem, sync, operator) if data is None else measure_normal(problem, data, sync))
        names.append(name)
    print(table(rows, names))


if __name__ == "__main__":
    main()
