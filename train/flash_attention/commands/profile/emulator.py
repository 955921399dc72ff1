"""A TIK operator on tikemu's model of one core: report, trace, picture of the steady state, roofline over lengths.

Estimates of a timing model; nothing here runs on a device.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from flash_attention import plotting
from flash_attention.kernels.tik.hardware import CUBE_FLOPS
from flash_attention.measuring import tik_kernels
from flash_attention.text_table import table

PIPES = ("M", "V", "MTE1", "MTE2", "MTE3", "S")
MOST_COLOURS = 20  # stages in the legend of the picture, the longest ones; the others are gray
LENGTHS = (256, 512, 1024, 2048, 4096)  # of the roofline
SHOWN_TILES = 4  # tiles of 128 x 128 scores in the picture
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
    """

    operator: str = "forward"
    seq: int = 2048
    head_dim: int = 128
    rules: str = "full"

    @staticmethod
    def parse(text: str) -> KernelCase:
        """The case that a text such as "backward,S=4096,D=64,causal" describes.

        Raises:
            ValueError: a part of the text means nothing.
        """
        fields: dict = {}
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

    def problem(self, seq: int = 0):
        """The kernel's problem, of `seq` tokens if given."""
        return tik_kernels.problem_of(seq or self.seq, self.head_dim, **RULES[self.rules])

    def __str__(self) -> str:
        return f"{self.operator} S={self.seq} D={self.head_dim} {self.rules}"


@dataclass(frozen=True)
class Event:
    """An instruction on a pipe, in cycles; `stage` is the tensor that it writes, on Vector after its name."""

    pipe: str
    start: float
    end: float
    name: str
    stage: str


def run(text: str, out: Path) -> int:
    """Profiles a case and writes profile.txt, trace.json, timeline.png and roofline.png into `out`.

    Raises:
        ValueError: the text is no case.
        RuntimeError: tikemu or matplotlib is missing.
    """
    case = KernelCase.parse(text)
    plotting.require()
    tik_kernels.require_tikemu("--backend emulator")
    out.mkdir(parents=True, exist_ok=True)
    trace = out / "trace.json"
    kernel = tik_kernels.build(case.problem(), case.operator)
    result = tik_kernels.simulate(kernel, trace=str(trace))
    measured = tik_kernels.Measurement.of(kernel, result, case.operator)
    every = events(trace)
    start, end = window(every, measured.cycles_per_tile * SHOWN_TILES)
    shown = [event for event in every if event.end > start and event.start < end]
    points = [tik_kernels.measure(case.problem(seq), operator=case.operator) for seq in LENGTHS]
    title = f"{case}, one of 32 busy cores (tikemu's model of the Ascend 910A, no device)"
    text = "\n\n".join(
        [
            title,
            f"steady state, cycles {start:.0f} to {end:.0f}, by pipe and the tensor that is written\n"
            + stages(shown, start, end),
            result.report(),
            roofline_table(points),
        ]
    )
    print(text)
    (out / "profile.txt").write_text(text + "\n", encoding="utf-8")
    written = [out / "profile.txt", trace, draw_timeline(shown, start, end, title, out / "timeline.png")]
    if all(point.gm_bytes_per_tile and point.utilisation for point in points):  # passes multiply nothing
        written.append(draw_roofline(points, f"{case.operator} D={case.head_dim} {case.rules}", out / "roofline.png"))
    print("\nwritten: " + ", ".join(map(str, written)) + "; open trace.json in https://ui.perfetto.dev")
    return 0


def events(trace: Path) -> list[Event]:
    """The instructions and the scalar work of core 0 in a saved trace, without the waits."""
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
    """The part of the run, `length` cycles long, in which the Cube (else all pipes together) is busiest."""
    counted = [event for event in every if event.pipe == "M"] or every
    last = max((event.end for event in every), default=length)
    starts = [number * length / 2 for number in range(max(1, int(2 * (last - length) / length)))]
    busy = [sum(max(0.0, min(e.end, at + length) - max(e.start, at)) for e in counted) for at in starts]
    start = starts[busy.index(max(busy))]
    return start, start + length


def stages(shown: list[Event], start: float, end: float) -> str:
    """Table of the share of the time that each pipe spends on each stage."""
    busy: defaultdict[tuple[str, str], float] = defaultdict(float)
    for event in shown:
        busy[event.pipe, event.stage] += min(event.end, end) - max(event.start, start)
    rows = []
    for pipe in PIPES:
        own = sorted(((stage, cycles) for (name, stage), cycles in busy.items() if name == pipe), key=lambda x: -x[1])
        parts = ", ".join(f"{stage} {cycles / (end - start):.0%}" for stage, cycles in own)
        rows.append([pipe, f"{sum(cycles for _, cycles in own) / (end - start):.0%}", parts])
    return table(["pipe", "busy", "stages"], rows)


def roofline_table(points: list) -> str:
    """Work per byte and speed of the case at several lengths."""
    rows = [
        [
            p.problem.seq_q,
            f"{p.flops_per_byte:.0f}",
            f"{p.utilisation:.1%}",
            f"{p.pipes['V']:.0%}",
            f"{p.pipes['M']:.0%}",
        ]
        for p in points
    ]
    return table(["S", "operations per byte of global memory", "of the Cube's peak", "V busy", "M busy"], rows)


def draw_timeline(shown: list[Event], start: float, end: float, title: str, path: Path) -> Path:
    """One row a pipe, coloured by stage; returns the path."""
    figure, axes = plotting.subplots(1, 1, (14, 4.5))
    import matplotlib

    axis = axes[0, 0]
    busy: dict[str, float] = {}
    for event in shown:
        busy[event.stage] = busy.get(event.stage, 0.0) + event.end - event.start
    coloured = sorted(busy, key=lambda stage: -busy[stage])[:MOST_COLOURS]
    names = [stage for stage in dict.fromkeys(e.stage for e in sorted(shown, key=_row)) if stage in coloured]
    for stage in (*names, *(stage for stage in busy if stage not in coloured)):
        colour = matplotlib.colormaps["tab20"](names.index(stage)) if stage in coloured else "lightgray"
        for row, pipe in enumerate(PIPES):
            bars = [(e.start, e.end - e.start) for e in shown if (e.stage, e.pipe) == (stage, pipe)]
            if bars:
                axis.broken_barh(bars, (row - 0.4, 0.8), color=colour, edgecolor="white", linewidth=0.3)
        if stage in coloured:
            axis.plot([], [], color=colour, linewidth=6, label=stage)
    axis.set_yticks(range(len(PIPES)), PIPES)
    axis.set(xlim=(start, end), ylim=(len(PIPES) - 0.5, -0.5), xlabel="cycles", title=title)
    axis.legend(loc="center left", bbox_to_anchor=(1.0, 0.5), fontsize=7, title="writes", frameon=False)
    return plotting.save(figure, path)


def draw_roofline(points: list, title: str, path: Path) -> Path:
    """Speed over work per byte, a point a length, under the limits of the Cube and of the memory; returns the path."""
    from tikemu.soc import ASCEND_910A

    figure, axes = plotting.subplots(1, 1, (7, 4.5))
    axis = axes[0, 0]
    share = ASCEND_910A.gm_share(32)
    low = min(point.flops_per_byte for point in points) / 2
    high = max(2 * CUBE_FLOPS / share, *(point.flops_per_byte * 2 for point in points))
    corner = CUBE_FLOPS / share
    line = sorted({low, min(max(low, corner), high), high})
    axis.plot(line, [min(CUBE_FLOPS, share * x) for x in line], color="black", label="Cube, memory share of 32 cores")
    for point in points:
        speed = point.utilisation * CUBE_FLOPS
        axis.plot(point.flops_per_byte, speed, "o", color="#4c72b0")
        axis.annotate(f"S={point.problem.seq_q}", (point.flops_per_byte, speed), fontsize=7, rotation=30)
    axis.set(xscale="log", yscale="log", xlabel="operations per byte of global memory", title=title)
    axis.set(ylabel="operations per cycle and core", ylim=(None, CUBE_FLOPS * 1.6))
    axis.grid(alpha=0.3)
    axis.legend(loc="lower right", fontsize=8)
    return plotting.save(figure, path)


def _row(event: Event) -> int:
    return PIPES.index(event.pipe)
