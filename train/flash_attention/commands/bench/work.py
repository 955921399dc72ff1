"""What each part of the bench measures, and about how long that takes."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, replace

from flash_attention.commands.bench import figures
from flash_attention.commands.bench.case import PASSES, Case
from flash_attention.commands.bench.figures import Plan
from flash_attention.commands.bench.implementations import IMPLEMENTATIONS
from flash_attention.commands.bench.turns import PAUSE, TURN
from flash_attention.problem import DTYPES

# Of two cores with AVX-512, roughly: a process that has imported MindSpore, a compiled case, 1e9 operations a second.
START_SECONDS = 0.8
COMPILE_SECONDS = 0.4
GFLOPS = {"flash": 150.0, "torch": 80.0, "composed": 15.0}


@dataclass(frozen=True)
class Work:
    """Implementations that take turns on one case after another, or with `apart` one of them on all cases at once, in
    a process for each."""

    names: tuple[str, ...]
    cases: tuple[Case, ...]
    apart: bool = False

    def seconds(self, rounds: int, budget: float) -> float:
        """An estimate of the time, with at most so many rounds and so many seconds of them."""
        together = [self.cases] if self.apart else [(case,) for case in self.cases]
        total = START_SECONDS * len(self.names) * (len(self.cases) if self.apart else 1)
        for cases in together:
            turns = [self._turn(name, case) for name in self.names for case in cases]
            one = sum(turns)
            most = min(rounds, max(3, budget / one)) if one else 0
            total += COMPILE_SECONDS * len(turns) + one * (1 + most)
        return total

    @staticmethod
    def _turn(name: str, case: Case) -> float:
        flops = case.flops("forward")
        of = {"forward": flops, "both": flops * 3.5}
        return PAUSE + sum(max(TURN, of[kind] / GFLOPS[name] / 1e9) for kind in PASSES)


def of_part(name: str, options: argparse.Namespace, plan: Plan) -> list[Work]:
    """The work of a part of the bench.

    Args:
        options: its dtype is what the user asked for.
    """
    return _PARTS[name](options.dtype, plan)


def total(parts: tuple[str, ...], options: argparse.Namespace, plan: Plan) -> tuple[int, float]:
    """Cases, and an estimate of the seconds that they take."""
    works = [work for name in parts for work in of_part(name, options, plan)]
    absent = {name for name, implementation in IMPLEMENTATIONS.items() if implementation().unavailable()}
    here = [replace(work, names=tuple(name for name in work.names if name not in absent)) for work in works]
    return sum(len(work.cases) for work in works), sum(work.seconds(options.rounds, options.budget) for work in here)


def _speed(dtypes: list | None, plan: Plan) -> list[Work]:
    chosen = dtypes or DTYPES
    main = [Case(seq, dtype) for seq in plan.lengths for dtype in chosen]
    others = [
        Case(seq, dtype, head_dim=head_dim, causal=causal, heads=2 if seq > 4096 else 8)
        for seq in plan.lengths
        for dtype in chosen
        for head_dim, causal in plan.shapes
    ]
    return [Work(tuple(IMPLEMENTATIONS), tuple(main)), Work(("flash", "torch"), tuple(others))]


def _rate(dtypes: list | None, plan: Plan) -> list[Work]:
    return [
        Work(
            ("flash",),
            tuple(Case(seq, dtype, batch=batch, head_dim=head_dim, causal=False) for dtype in DTYPES),
            apart=True,
        )
        for seq, batch in plan.rates
        for head_dim in plan.rate_head_dims
    ]


def _short(dtypes: list | None, plan: Plan) -> list[Work]:
    cases = [Case(seq, batch=8, head_dim=head_dim) for seq in plan.short_lengths for head_dim in (32, 64, 96)]
    cases += [Case(plan.short_lengths[0], dtype, batch=8, head_dim=64) for dtype in ("float16", "bfloat16")]
    cases += [Case(plan.short_lengths[-1], head_dim=64, extra=extra) for extra in ("mask", "bias", "dropout")]
    return [Work(("flash", "torch"), tuple(cases))]


def _layouts(dtypes: list | None, plan: Plan) -> list[Work]:
    return [
        Work(
            ("flash",),
            tuple(Case(plan.lengths[0], dtype, layout=layout) for layout in ("BNSD", "BSND", "BSH", "SBH")),
            apart=True,
        )
        for dtype in dtypes or plan.layout_dtypes
    ]


def _first(dtypes: list | None, plan: Plan) -> list[Work]:
    return [
        Work(("flash",), (case,)) for case in (Case(plan.lengths[0]), Case(plan.lengths[0], "float16", causal=False))
    ]


def _window(dtypes: list | None, plan: Plan) -> list[Work]:
    windows = [Case(plan.window_length, window_blocks=figures.WINDOW_BLOCKS, tile=t) for t in figures.WINDOW_TILES]
    return [Work(("flash",), (Case(plan.window_length), *windows))]


def _flat(dtypes: list | None, plan: Plan) -> list[Work]:
    blocks = figures.WINDOW_BLOCKS
    return [Work(("flash",), tuple(Case(seq, "float16", window_blocks=blocks) for seq in plan.flat_lengths))]


def _memory(dtypes: list | None, plan: Plan) -> list[Work]:
    return [Work(("flash",), (Case(plan.memory_length, heads=1),))]


_PARTS = {
    "speed": _speed,
    "rate": _rate,
    "short": _short,
    "layouts": _layouts,
    "first": _first,
    "window": _window,
    "flat": _flat,
    "memory": _memory,
}
