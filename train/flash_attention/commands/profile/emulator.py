"""Profile a TIK operator on tikemu's model of one core: stages of the steady state, report, trace, lengths.

Estimates of a timing model; nothing here runs on a device.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path

from flash_attention.call.block_mask import BlockMask
from flash_attention.call.visits import masked, pattern, visits
from flash_attention.files import require_writable
from flash_attention.kernels.tik import KernelProblem
from flash_attention.measuring import tik_kernels
from flash_attention.text_table import table

PIPES = ("M", "V", "MTE1", "MTE2", "MTE3", "S")
LENGTHS = (256, 512, 1024, 2048, 4096)  # of the table over lengths
SHOWN_TILES = 4  # tiles of 128 x 128 scores in the steady state
SHOWN_STAGES = 6  # stages that a pipe's row names, the longest first
RULES: dict[str, dict] = {
    "full": {},
    "causal": {"causal": True},
    **{re.sub(r"\W+", "_", name): rules for name, rules in tik_kernels.FEATURES.items()},
}


@dataclass(frozen=True)
class KernelCase:
    """One core's work of one kernel.

    Attributes:
        operator: of `tik_kernels.OPERATORS`.
        seq: tokens.
        head_dim: 1 to 256.
        rules: name in RULES.
        pattern: constructor of a block mask, see `call.visits.pattern`, or "".
        tile: tokens of its tiles.
    """

    operator: str = "forward"
    seq: int = 2048
    head_dim: int = 128
    rules: str = "full"
    pattern: str = ""
    tile: int = 128

    @staticmethod
    def parse(text: str, pattern: str = "", tile: int = 128) -> KernelCase:
        """Return the case that a text such as "backward,S=4096,D=64,causal" describes."""
        fields: dict = {"pattern": pattern, "tile": tile}
        for part in filter(None, text.split(",")):
            number = re.fullmatch(r"([SD])=([1-9]\d*)", part)
            if number:
                fields["seq" if number[1] == "S" else "head_dim"] = int(number[2])
            elif part in tik_kernels.OPERATORS:
                fields["operator"] = part
            elif part in RULES:
                fields["rules"] = part
            else:
                allowed = ", ".join((*tik_kernels.OPERATORS, "S=tokens", "D=head_dim", *RULES))
                raise ValueError(f"CASE: got {part!r}, allowed are {allowed}")
        return KernelCase(**fields)

    @property
    def block_mask(self) -> BlockMask | None:
        """Return the block mask of the pattern."""
        return pattern(self.pattern, self.seq, self.tile) if self.pattern else None

    @property
    def problem(self) -> KernelProblem:
        """Return the kernel's problem. A block mask is known, as a layer's is."""
        problem, mask = tik_kernels.problem_of(self.seq, self.head_dim, **RULES[self.rules]), self.block_mask
        return problem if mask is None else replace(problem, call=masked(problem.call, mask), keeps_tiles=True)

    def measure(self, trace: str | None = None) -> tuple:
        """Return Result and Measurement of the kernel."""
        return tik_kernels.measured(self.problem, self.operator, self.block_mask, trace)

    def __str__(self) -> str:
        tiles = f" {self.pattern} of {self.tile}" if self.pattern else ""
        return f"{self.operator} S={self.seq} D={self.head_dim} {self.rules}{tiles}"


@dataclass(frozen=True)
class Event:
    """Hold an instruction on a pipe, in cycles. `stage` is the tensor that it writes, on Vector after its name."""

    pipe: str
    start: float
    end: float
    name: str
    stage: str


def run(text: str, out: Path, block_mask: str = "", tile: int = 128) -> int:
    """Profile a case; write profile.txt and trace.json into `out`.

    Args:
        block_mask, tile: pattern of a block mask, see `KernelCase`.
    """
    case = KernelCase.parse(text, block_mask, tile)
    tik_kernels.require_tikemu("--backend emulator")
    require_writable("--out", out)
    trace = out / "trace.json"
    result, measured = case.measure(str(trace))
    every = events(trace)
    start, end = window(every, measured.cycles_per_tile * SHOWN_TILES)
    shown = [event for event in every if event.end > start and event.start < end]
    points = [replace(case, seq=seq).measure()[1] for seq in LENGTHS]
    seen = [str(visits(case.problem.call, case.block_mask))] if case.pattern else []
    text = "\n\n".join(
        [
            "\n".join([f"{case}, one of 32 busy cores (tikemu's model of the Ascend 910A, no device)", *seen]),
            f"steady state, cycles {start:.0f} to {end:.0f}, by pipe and the tensor that is written\n"
            + stages(shown, start, end),
            result.report(),
            table_of_lengths(points),
        ]
    )
    print(text)
    (out / "profile.txt").write_text(text + "\n", encoding="utf-8")
    print(f"\nwritten: {out / 'profile.txt'}, {trace}; open trace.json in https://ui.perfetto.dev")
    return 0


def events(trace: Path) -> list[Event]:
    """Return core 0's instructions and scalar work in a saved trace, without the waits."""
    found = []
    for event in json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]:
        if event["ph"] == "X" and event["pid"] == 0 and event["cat"] != "wait":
            arguments = event["args"]
            stage = re.sub(r"_?\d+$", "", arguments["writes"].split(",")[0]) or event["name"]
            if event["cat"] == "V":  # works in place
                stage = f"{event['name']} {stage}"
            end = arguments["cycle"] + arguments["cycles"]
            found.append(Event(event["cat"], arguments["cycle"], end, event["name"], stage))
    return found


def window(every: list[Event], length: float) -> tuple[float, float]:
    """Return the busiest part of the run, `length` cycles long. The Cube decides, or without it all pipes together."""
    counted = [event for event in every if event.pipe == "M"] or every
    last = max((event.end for event in every), default=length)
    starts = [number * length / 2 for number in range(max(1, int(2 * (last - length) / length)))]
    busy = [sum(max(0.0, min(e.end, at + length) - max(e.start, at)) for e in counted) for at in starts]
    start = starts[busy.index(max(busy))]
    return start, start + length


def stages(shown: list[Event], start: float, end: float) -> str:
    """Return a table of each pipe's longest stages, with their shares of the time."""
    busy: defaultdict[tuple[str, str], float] = defaultdict(float)
    for event in shown:
        busy[event.pipe, event.stage] += min(event.end, end) - max(event.start, start)
    rows = []
    for pipe in PIPES:
        own = sorted(((stage, cycles) for (name, stage), cycles in busy.items() if name == pipe), key=lambda x: -x[1])
        named = [(stage, cycles / (end - start)) for stage, cycles in own[:SHOWN_STAGES]]
        parts = [f"{stage} {share:.0%}" for stage, share in named if share >= 0.005]
        if len(own) > len(parts):
            parts.append(f"{len(own) - len(parts)} more")
        rows.append([pipe, f"{sum(cycles for _, cycles in own) / (end - start):.0%}", ", ".join(parts)])
    return table(["pipe", "busy", "stages"], rows)


def table_of_lengths(points: list) -> str:
    """Return a table of the case's work per byte and speed at several lengths."""
    rows = [
        [
            p.problem.call.seq_q,
            f"{p.flops_per_byte:.0f}",
            f"{p.utilisation:.1%}",
            f"{p.pipes['V']:.0%}",
            f"{p.pipes['M']:.0%}",
        ]
        for p in points
    ]
    return table(["S", "operations per byte of global memory", "of the Cube's peak", "V busy", "M busy"], rows)
