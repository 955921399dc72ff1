"""The figures this package has to reach, each with what was reached."""

from __future__ import annotations

import statistics
from dataclasses import dataclass

from flash_attention.commands.bench.case import Case
from flash_attention.commands.bench.turns import Timing

# Times faster than torch, forward and backward, at every length of the plan.
FASTER_THAN_TORCH = {
    ("forward", "float32"): 1.3,
    ("forward", "float16"): 1.5,
    ("forward", "bfloat16"): 1.0,
    ("backward", "float32"): 1.2,
    ("backward", "float16"): 8.0,
    ("backward", "bfloat16"): 1.0,
}
WINDOW_BLOCKS = 8
WINDOW_TILES = (64, 128)
WINDOW_GAIN = 10.0  # windowed against full causal run
WINDOW_SHARE = 0.95  # of the gain in pairs, where the window leaves more than a tenth of them: no run can gain more
FLATNESS = 1.15  # largest time per token of a windowed run over the smallest
EXTRA_MEGABYTES = 64.0  # beyond inputs and outputs
_LARGER_IS_BETTER = ("x", "%")


@dataclass(frozen=True)
class Plan:
    """Sizes to measure."""

    lengths: tuple = (2048, 8192)
    window_length: int = 16384
    flat_lengths: tuple = (8192, 16384, 32768, 65536, 131072)
    memory_length: int = 65536


QUICK = Plan(lengths=(256,), window_length=2048, flat_lengths=(1024, 2048), memory_length=4096)


@dataclass(frozen=True)
class Figure:
    """A requirement and what was measured. `reached` is None when an implementation was missing; `note` says why."""

    name: str
    required: float
    reached: float | None
    unit: str  # "x" and "%" are better when larger, "x spread" and "MB" when smaller
    note: str = ""

    @property
    def ok(self) -> bool | None:
        if self.reached is None:
            return None
        return self.reached >= self.required if self.unit in _LARGER_IS_BETTER else self.reached <= self.required

    def row(self) -> list[str]:
        """Cells of a table: name, required, reached, verdict, note."""
        bound = ">=" if self.unit in _LARGER_IS_BETTER else "<="
        reached = "-" if self.reached is None else f"{self.reached:.2f} {self.unit}"
        verdict = {None: "not measured", True: "reached", False: "MISSED"}[self.ok]
        return [self.name, f"{bound} {self.required:.3g} {self.unit}", reached, verdict, self.note]


def speed(timings: list[Timing], case: Case, missing: str) -> list[Figure]:
    """Forward and backward of `case` against torch; `missing` says why torch did not run."""
    figures = []
    for kind in ("forward", "backward"):
        times = {
            timing.implementation: timing.median for timing in timings if timing.kind == kind and timing.case == case
        }
        ratio = times["torch"] / times["flash"] if "torch" in times else None
        required = FASTER_THAN_TORCH[kind, case.dtype]
        figures.append(Figure(f"{kind}, {case}: faster than torch", required, ratio, "x", missing))
    return figures


def window(full: list[Timing], windowed: list[Timing]) -> list[Figure]:
    """Gain of the window for every pass that was timed both ways."""
    figures = []
    for kind in ("forward", "backward"):
        slow, fast = (next(timing for timing in timings if timing.kind == kind) for timings in (full, windowed))
        bound = slow.case.visible / fast.case.visible
        name = f"{kind}, {fast.case}: faster than full causal"
        note = f"{bound:.2f}x fewer visible pairs"
        required = min(WINDOW_GAIN, WINDOW_SHARE * bound)
        figures.append(Figure(name, required, slow.median / fast.median, "x", note))
    return figures


def flatness(timings: list[Timing]) -> Figure:
    """Largest over smallest time per token of a windowed run over its lengths."""
    per_token = [timing.median / timing.case.seq for timing in timings]
    lengths = f"{min(t.case.seq for t in timings)} to {max(t.case.seq for t in timings)}"
    case = timings[0].case
    name = f"{timings[0].kind}, S={lengths} {case.dtype} window {case.window_blocks} blocks: spread of time per token"
    note = f"median {statistics.median(per_token) * 1e6:.2f} us a token"
    return Figure(name, FLATNESS, max(per_token) / min(per_token), "x spread", note)


def memory(case: Case, kind: str, extra_bytes: int) -> Figure:
    """Growth beyond the outputs of one call."""
    outputs = {"forward": 1, "both": 3}[kind] * case.tensor_bytes
    name = {"forward": "forward", "both": "forward and backward"}[kind]
    return Figure(f"{name}, {case}: extra memory", EXTRA_MEGABYTES, (extra_bytes - outputs) / 2**20, "MB")
