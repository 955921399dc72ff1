"""The figures this package has to reach, each with what was reached."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from flash_attention.commands.bench.case import Case
from flash_attention.commands.bench.turns import Timing

# Times faster than torch, forward and backward, at every length of the plan.
FASTER_THAN_TORCH = {
    ("forward", "float32"): 1.4,
    ("forward", "float16"): 2.0,
    ("forward", "bfloat16"): 2.3,
    ("backward", "float32"): 1.4,
    ("backward", "float16"): 12.0,
    ("backward", "bfloat16"): 1.9,
}
AS_FAST_AS_TORCH = dict.fromkeys(FASTER_THAN_TORCH, 1.0)
# Percent of the rate of the processor's own product of float32 matrices, by length.
PRODUCT_SHARE = ((2048, 92.0), (512, 85.0), (0, 70.0))
BFLOAT16_GAIN = 1.7  # over float32 where the processor has the instruction, from BFLOAT16_LENGTH on
BFLOAT16_LENGTH = 512
LAYOUT_SHARE = 97.0  # percent of the speed of BNSD
FIRST_CALL = 150.0  # ms
WINDOW_BLOCKS = 8
WINDOW_TILES = (64, 128)
WINDOW_GAIN = 10.0  # windowed against full causal run
WINDOW_SHARE = 0.95  # of the gain in pairs, where the window leaves more than a tenth of them: no run can gain more
FLATNESS = 1.15  # largest time per token of a windowed run over the smallest
EXTRA_MEGABYTES = 64.0  # beyond inputs and outputs
_LARGER_IS_BETTER = ("x", "%")
_PASSES = {"forward": "forward", "both": "forward and backward"}


@dataclass(frozen=True)
class Plan:
    """Sizes to measure."""

    lengths: tuple = (2048, 8192)
    window_length: int = 16384
    flat_lengths: tuple = (8192, 16384, 32768, 65536, 131072)
    memory_length: int = 65536
    shapes: tuple = ((128, False), (64, True), (64, False))  # head_dims, and whether causal, besides 128 and True
    rates: tuple = ((2048, 1), (512, 4), (128, 32))  # lengths and batches
    rate_head_dims: tuple = (128, 64)
    layout_dtypes: tuple = ("float32", "bfloat16")
    short_lengths: tuple = (128, 256, 512)


QUICK = Plan(
    lengths=(256,),
    window_length=2048,
    flat_lengths=(1024, 2048),
    memory_length=4096,
    shapes=((64, False),),
    rates=((128, 1),),
    rate_head_dims=(64,),
    layout_dtypes=("bfloat16",),
    short_lengths=(64,),
)


@dataclass(frozen=True)
class Figure:
    """A requirement and what was measured. `reached` is None when an implementation was missing; `note` says why."""

    name: str
    required: float
    reached: float | None
    unit: str  # "x" and "%" are better when larger, "x spread", "ms" and "MB" when smaller
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


def speed(timings: list[Timing], case: Case, missing: str, required: dict, peak: float | None = None) -> list[Figure]:
    """Forward and backward of `case` against torch.

    Args:
        missing: why torch did not run.
        required: times faster, by pass and dtype.
        peak: GFLOP/s that no attention in this dtype exceeds; the note then says what share of it is asked and reached.
    """
    figures = []
    for kind in ("forward", "backward"):
        of = {timing.implementation: timing for timing in timings if timing.kind == kind and timing.case == case}
        name, wanted, ratio, note = f"{kind}, {case}: faster than torch", required[kind, case.dtype], None, missing
        if "torch" in of:
            ratio = of["torch"].median / of["flash"].median
            if peak is not None:
                asked, reached = (100 * rate / peak for rate in (wanted * of["torch"].gflops, of["flash"].gflops))
                note = f"asks for {asked:.0f} % of the processor's {peak:.0f} GFLOP/s, reached {reached:.0f} %"
        figures.append(Figure(name, wanted, ratio, "x", note))
    return figures


def rate(timings: list[Timing], cases: Sequence[Case], product: float, has_bfloat16: bool) -> list[Figure]:
    """float32 beside a product of that many GFLOP/s, and the other dtypes of one size beside float32.

    Args:
        cases: of one size, in the order of their dtypes, one of them float32.
        has_bfloat16: whether the processor multiplies bfloat16 by an instruction of its own.
    """
    figures = []
    for kind in ("forward", "backward"):
        of = {timing.case.dtype: timing for timing in timings if timing.kind == kind and timing.case in cases}
        single, case = of["float32"], of["float32"].case
        required = next(share for seq, share in PRODUCT_SHARE if case.seq >= seq)
        share = 100 * single.gflops / product
        note = f"product {product:.0f} GFLOP/s"
        figures.append(Figure(f"{kind}, {case}: of the processor's product", required, share, "%", note))
        wanted = {"float16": 1.0}
        if has_bfloat16 and case.seq >= BFLOAT16_LENGTH:
            wanted["bfloat16"] = BFLOAT16_GAIN
        for dtype, gain in wanted.items():
            name = f"{kind}, {of[dtype].case}: faster than float32"
            figures.append(Figure(name, gain, single.median / of[dtype].median, "x"))
    return figures


def layouts(timings: list[Timing], cases: Sequence[Case]) -> list[Figure]:
    """Each case's speed in percent of that of the first."""
    figures = []
    for kind in ("forward", "backward"):
        of = {timing.case: timing.median for timing in timings if timing.kind == kind}
        for case in cases[1:]:
            share = 100 * of[cases[0]] / of[case]
            figures.append(Figure(f"{kind}, {case}: of the speed of {cases[0].layout}", LAYOUT_SHARE, share, "%"))
    return figures


def first_call(case: Case, kind: str, seconds: float) -> Figure:
    """The first call of a shape, beyond MindSpore's compilation and the time of a later call."""
    return Figure(f"{_PASSES[kind]}, {case}: first call beyond a later one", FIRST_CALL, seconds * 1e3, "ms")


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
    return Figure(f"{_PASSES[kind]}, {case}: extra memory", EXTRA_MEGABYTES, (extra_bytes - outputs) / 2**20, "MB")
