"""What a kernel asks of the chip: speed on the modelled core, memories, code, events, traffic. One command:

    python -m flash_attention.commands.bench.tik_kernels [--seq 4096] [--head-dim 128 64] [--sync auto conservative]
    python -m flash_attention.commands.bench.tik_kernels --operator forward backward rows finish
    python -m flash_attention.commands.bench.tik_kernels --head-dim 64 --data 2
    python -m flash_attention.commands.bench.tik_kernels --features --seq 1024 --head-dim 16 128 256
    python -m flash_attention.commands.bench.tik_kernels --buffers --head-dim 64 128 256 --operator forward backward
    python -m flash_attention.commands.bench.tik_kernels --timeline 60000 2600

Figures come from the timing model of tikemu. They are estimates; nothing here ran on a device.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flash_attention.kernels.tik import operators
from flash_attention.kernels.tik.backward import work as scheduler
from flash_attention.kernels.tik.hardware import CUBE_FLOPS
from flash_attention.kernels.tik.problem import CAPACITY, KernelProblem
from flash_attention.kernels.tik.signature import Request
from flash_attention.problem.rules import AttentionRules

TILE = 128 * 128
# Stage of a kernel and its matrix products over head_dim and over value_dim: "backward" is the main one, "rows" and
# "finish" are the passes around it.
OPERATORS = {
    "forward": ("forward", 1, 1),
    "backward": ("grad", 3, 2),
    "rows": ("grad_rows", 0, 0),
    "finish": ("grad_finish", 0, 0),
}
# What a kernel can be asked for beside plain and causal attention: keywords of `problem_of`.
FEATURES: dict[str, dict] = {
    "mask": {"mask": "per_score"},
    "key mask": {"mask": "per_key"},
    "bias": {"bias": "per_score"},
    "key bias": {"bias": "per_key"},
    "alibi": {"alibi": True},
    "causal alibi": {"causal": True, "alibi": True},
    "window": {"window_left": 300, "window_right": 40},
    "4 heads on 1": {"heads": 4, "kv_heads": 1},
    "dropout": {"dropout_rate": 0.1},
    "soft cap": {"softcap": 50.0},
    "soft cap, key mask": {"softcap": 50.0, "mask": "per_key"},
    "sinks": {"sinks": True},
    "192 of value": {"value_dim": 192},
    "causal alibi dropout": {"causal": True, "alibi": True, "dropout_rate": 0.1},
    "causal mask bias dropout": {"causal": True, "mask": "per_score", "bias": "per_score", "dropout_rate": 0.1},
    "window key mask key bias dropout": {
        "window_left": 200,
        "mask": "per_key",
        "bias": "per_key",
        "dropout_rate": 0.1,
    },
}


def passes(problem: KernelProblem) -> tuple[str, ...]:
    """Names in OPERATORS of the passes around the main kernel of the backward operator."""
    writes_d_query = scheduler.choose(problem, "split", False).split.writes_d_query
    return ("rows",) if writes_d_query else ("rows", "finish")


def problem_of(
    seq: int,
    head_dim: int,
    *,
    heads: int = 1,
    kv_heads: int = 0,
    mask: str = "none",
    bias: str = "none",
    sinks: bool = False,
    value_dim: int = 0,
    **rules,
) -> KernelProblem:
    """One core's work of a square problem; `rules` are fields of AttentionRules."""
    shapes = {"none": None, "per_key": (1, 1, 1, seq), "per_score": (1, 1, seq, seq)}
    return KernelProblem(
        1,
        heads,
        seq,
        seq,
        head_dim,
        kv_heads,
        rules=AttentionRules(**rules),
        mask_shape=shapes[mask],
        bias_shape=shapes[bias],
        slopes=(0.5,) * heads if rules.get("alibi") else (),
        value_dim=value_dim,
        sinks=sinks,
        cores=1,
    )


@dataclass(frozen=True)
class Measurement:
    """One kernel on one core that shares the memory with 31 others.

    Attributes:
        cycles: of the whole kernel.
        utilisation: useful matrix operations over the Cube's peak; scores that a causal mask hides do not count.
        cycles_per_tile: per 128 x 128 scores, hidden halves of diagonal tiles included.
        peak_bytes: per on-chip memory.
        code_bytes: estimate.
        events: most events in flight, by pair of pipes ("MTE2->MTE1").
        pipes: share of the time each pipe is busy.
        gm_bytes_per_tile: global memory traffic per 128 x 128 scores.
        build_seconds: Python time to record and build the kernel.
    """

    problem: KernelProblem
    operator: str
    sync: str
    cycles: float
    utilisation: float
    cycles_per_tile: float
    peak_bytes: dict
    code_bytes: int
    events: dict
    pipes: dict
    instructions: int
    gm_bytes_per_tile: float
    build_seconds: float = 0.0

    @property
    def flops_per_byte(self) -> float:
        """Useful matrix operations per byte of global memory traffic."""
        return self.utilisation * CUBE_FLOPS * self.cycles_per_tile / self.gm_bytes_per_tile

    @staticmethod
    def of(kernel, result, operator: str, sync: str = "auto", build_seconds: float = 0.0) -> Measurement:
        """What a kernel's simulation says."""
        problem, (_, products, value_products) = kernel.problem, OPERATORS[operator]
        pairs = problem.band.pairs() * problem.batch * problem.heads
        flops = 2 * (products * problem.head_dim + value_products * problem.value_dim) * pairs
        tiles = kernel.units[1] * kernel.plan.rows * kernel.plan.keys / TILE
        if not products:  # a pass over rows: as if it were spread over the tiles of the main kernels
            tiles = pairs / TILE
        return Measurement(
            problem,
            operator,
            sync,
            result.cycles,
            flops / CUBE_FLOPS / result.cycles,
            result.cycles / tiles,
            dict(result.peak_bytes),
            result.code_bytes,
            {f"{a}->{b}": count for (a, b), count in result.events_in_flight.items()},
            {name: use.share for name, use in result.pipes.items()},
            result.instruction_count,
            (result.gm_read_bytes + result.gm_written_bytes) / tiles,
            build_seconds,
        )


def build(problem: KernelProblem, operator: str = "forward"):
    """The recorded kernel of a problem; give it cores=1 and the work of one core: the others would repeat it.

    Args:
        operator: one of OPERATORS.
    """
    import tikemu

    tikemu.install(soc="Ascend910A")
    from tbe import tik

    return operators.build(OPERATORS[operator][0], Request(problem), tik, operator, False)


def simulate(
    kernel,
    sync: str = "auto",
    active_cores: int = 32,
    trace: str | None = None,
    constants: Mapping[str, float] | None = None,
    given: Mapping[str, np.ndarray] | None = None,
    numerics: bool = False,
):
    """The tikemu.Result of a kernel that is timed, usually without computing anything.

    Args:
        sync: "auto", "conservative" or "optimistic", see tikemu.Options.
        active_cores: cores that share the bandwidth of the memory.
        trace: file for a Chrome trace of the run.
        constants: other values for constants of the timing model, see tikemu.Options.
        given: inputs that are not zeros, as far as the kernel has them.
        numerics: compute as well, where the time depends on the data.
    """
    import tikemu

    zeros = {t.name: np.zeros(t.shape, t.dtype) for t in kernel.inputs if t.constant is None}
    feed = kernel.feed(**{name: (given or {}).get(name, array) for name, array in zeros.items()})
    options = tikemu.Options(
        sync=sync, active_cores=active_cores, trace=trace is not None, progress=False, constants=constants or {}
    )
    result = tikemu.run(kernel.tik, feed, numerics=numerics, options=options)
    if trace is not None:
        result.save_trace(trace)
    return result


def normal_data(kernel, sigma: float) -> dict[str, np.ndarray]:
    """Normal inputs of the forward operator, the query times `sigma`."""
    random, factors = np.random.default_rng(0), {"query": sigma, "key": 1.0, "value": 1.0}
    shapes = {tensor.name: tensor.shape for tensor in kernel.inputs if tensor.name in factors}
    return {name: (random.standard_normal(s) * factors[name]).astype(np.float16) for name, s in shapes.items()}


def measure(
    problem: KernelProblem, sync: str = "auto", operator: str = "forward", data: float | None = None, **options
) -> Measurement:
    """Builds and times a kernel.

    Args:
        data: time the forward operator with normal data, the query times this number, instead of without data.
        options: as of :func:`simulate`.
    """
    start = time.perf_counter()
    kernel = build(problem, operator)
    seconds = time.perf_counter() - start
    if data is not None:
        options.update(given=normal_data(kernel, data), numerics=True)
    return Measurement.of(kernel, simulate(kernel, sync, **options), operator, sync, seconds)


LETTERS = {
    "mmad": "#",
    "tensor_mov": "m",
    "vec_muls": "s",
    "vec_exp": "e",
    "vec_conv": "c",
    "load2dv1": "l",
    "data_move": "d",
}


def timeline(trace: str, start: float, length: float, width: int = 104) -> str:
    """The pipes of core 0 between two times as text, one character per length / width cycles, from a saved trace.

    A character names the instruction that holds the pipe longest in its slice: see LETTERS, others are "o".
    """
    with open(trace) as file:
        events = json.load(file)["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    step = length / width
    rows: dict[str, list] = {}
    for event in events:
        if event["ph"] != "X" or event["cat"] == "wait" or event["pid"] != min(pid for pid, _ in names):
            continue
        begin, end = event["ts"] * 1000, (event["ts"] + event["dur"]) * 1000  # microseconds at 1 GHz to cycles
        pipe = names[event["pid"], event["tid"]].replace("PIPE_", "")
        cells = rows.setdefault(pipe, [{} for _ in range(width)])
        # Vector moves what comes out of L0C.
        letter = "m" if (pipe, event["name"]) == ("V", "data_move") else LETTERS.get(event["name"], "o")
        for index in range(max(0, int((begin - start) // step)), min(width, int((end - start) // step) + 1)):
            overlap = min(end, start + (index + 1) * step) - max(begin, start + index * step)
            if overlap > 0:
                cells[index][letter] = cells[index].get(letter, 0.0) + overlap
    lines = []
    for pipe in ("M", "V", "MTE1", "MTE2", "MTE3"):
        cells = rows.get(pipe, [{}] * width)
        text = "".join(max(cell, key=cell.get) if sum(cell.values()) > step / 4 else "." for cell in cells)
        lines.append(f"{pipe:5s}|{text}|")
    return "\n".join(lines)


def table(measurements: list[Measurement], names: list[str] | None = None) -> str:
    """The measurements as text; `names` say what each one has beside its operator and size."""
    names = names or ["causal" if measured.problem.rules.causal else "full" for measured in measurements]
    width = max(30, 22 + max(map(len, names)))
    lines = [
        f"{'kernel':{width}s} {'sync':12s} {'cycles/tile':>11s} {'of peak':>8s} {'code':>6s} {'events':>6s} "
        f"{'instr.':>7s} {'GM/tile':>8s} {'V':>5s} {'M':>5s} {'build':>6s}  peak bytes"
    ]
    for m, what in zip(measurements, names):
        p = m.problem
        name = f"{m.operator} D={p.head_dim} S={p.seq_q} {what}"
        memory = " ".join(
            f"{key} {m.peak_bytes.get(key, 0) / 1024:.0f}/{CAPACITY[key] / 1024:.0f}K" for key in CAPACITY
        )
        events = max(m.events.values())
        lines.append(
            f"{name:{width}s} {m.sync:12s} {m.cycles_per_tile:11.0f} {m.utilisation:8.1%} {m.code_bytes:6d} "
            f"{events:6d} {m.instructions:7d} {m.gm_bytes_per_tile:8.0f} {m.pipes['V']:5.0%} {m.pipes['M']:5.0%} "
            f"{m.build_seconds:5.2f}s  {memory}"
        )
    return "\n".join(lines)


def budget_table(operator: str, problem: KernelProblem) -> str:
    """Every buffer of a kernel with its copies and bytes, by memory."""
    kernel = build(problem, operator)
    what = "causal" if problem.rules.causal else "full"
    lines = [f"{operator} D={problem.head_dim} S={problem.seq_q} {what}: strategy {kernel.plan.strategy}"]
    for memory, (used, available) in kernel.memory().items():
        parts = [part for part in kernel.buffers if part.memory == memory]
        lines.append(f"  {memory}: {used} of {available} bytes")
        lines += [f"    {part.name:16s} {part.dtype:8s} {part.copies} x {part.bytes // part.copies}" for part in parts]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Modelled speed and needs of the TIK kernels on one Ascend 910 core.")
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
    parser.add_argument("--trace", help="write a Chrome trace of the first kernel to this file")
    parser.add_argument(
        "--timeline",
        type=float,
        nargs=2,
        metavar=("START", "CYCLES"),
        help="draw the pipes of the first kernel, causal=False, between two times, and stop",
    )
    parser.add_argument("--features", action="store_true", help="masks, biases, dropout ... instead of full and causal")
    parser.add_argument("--buffers", action="store_true", help="list the buffers of each kernel, causal, and stop")
    arguments = parser.parse_args()
    if arguments.data is not None and arguments.operator != ["forward"]:
        parser.error(f"--data: got it with --operator {' '.join(arguments.operator)}, allowed is forward")
    kernels = [(operator, head_dim) for operator in arguments.operator for head_dim in arguments.head_dim]
    if arguments.buffers:
        for operator, head_dim in kernels:
            print(budget_table(operator, problem_of(arguments.seq, head_dim, causal=True)))
        return
    if arguments.timeline:
        problem = problem_of(arguments.seq, arguments.head_dim[0])
        with tempfile.TemporaryDirectory() as folder:
            file = os.path.join(folder, "trace.json")
            measure(problem, trace=file, operator=arguments.operator[0])
            print(timeline(file, *arguments.timeline))
        return
    kinds: dict[str, dict] = FEATURES if arguments.features else {"full": {}, "causal": {"causal": True}}
    rows: list = []
    names: list[str] = []
    for operator, head_dim in kernels:
        for name, features in kinds.items():
            for sync in arguments.sync:
                trace = None if rows else arguments.trace
                problem = problem_of(arguments.seq, head_dim, **features)
                rows.append(measure(problem, sync, operator, arguments.data, trace=trace))
                names.append(name)
    print(table(rows, names))


if __name__ == "__main__":
    main()
