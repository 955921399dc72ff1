"""Where the time goes by operator: composed attention step by step, and ours, which is one operator a pass."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from dataclasses import dataclass

from flash_attention.measuring.case import Case


@dataclass(frozen=True)
class Row:
    """An operator in a pass: its calls together.

    Attributes:
        title: "composed" or "flash", and the pass.
        operator: as MindSpore calls it.
        seconds: medians, added up over the calls.
        written: bytes of the results.
    """

    title: str
    operator: str
    calls: int
    seconds: float
    written: int


def run(options: argparse.Namespace) -> int:
    from flash_attention.commands.info import processor
    from flash_attention.measuring.turns import Worker

    print(f"{processor()}, {options.threads} threads; medians of {options.rounds} rounds")
    with Worker("steps", options.threads) as steps, Worker("flash", options.threads) as flash:
        for dtype in options.dtype:
            for seq in options.seq:
                case = Case(seq, dtype, batch=options.batch, heads=options.heads, head_dim=options.head_dim)
                print(f"\nB={case.batch} H={case.heads} D={case.head_dim} {case} causal\n")
                print(text(measure(steps, flash, case, options.rounds)))
    return 0


def measure(steps, flash, case: Case, rounds: int) -> list[Row]:
    """Rows of both implementations, in the order of the passes.

    Raises:
        RuntimeError: one of them cannot run the case; with the reason.
    """
    from flash_attention.commands.profile.composed_steps import STEPS
    from flash_attention.measuring.turns import time_alone

    rows: list[Row] = []
    timings, ours = time_alone(steps, case, rounds, kinds=tuple(STEPS)), time_alone(flash, case, rounds)
    for kind in ("forward", "backward"):
        own = [name for name in STEPS if STEPS[name].kind == kind]
        for operator in dict.fromkeys(STEPS[name].operator for name in own):
            calls = [name for name in own if STEPS[name].operator == operator]
            written = sum(STEPS[name].written(case) for name in calls)
            rows.append(
                Row(f"composed {kind}", operator, len(calls), sum(timings[name].median for name in calls), written)
            )
        results = {"forward": 1, "backward": 3}[kind] * case.tensor_bytes
        rows.append(Row(f"flash {kind}", "FlashAttention", 1, ours[kind].median, results))
    return rows


def text(rows: Iterable[Row]) -> str:
    """A table with the share of each operator in its pass, and a last line for each pass."""
    from flash_attention.text_table import table

    cells = []
    rows = list(rows)
    for title in dict.fromkeys(row.title for row in rows):
        own = sorted((row for row in rows if row.title == title), key=lambda row: -row.seconds)
        total = Row(title, "all", *(sum(getattr(row, name) for row in own) for name in ("calls", "seconds", "written")))
        for row in (*own, total) if len(own) > 1 else own:
            share = f"{row.seconds / total.seconds:.1%}"
            cells.append(
                [title, row.operator, row.calls, f"{row.seconds * 1e3:.2f}", share, f"{row.written / 2**20:.1f}"]
            )
    return table(["pass", "operator", "calls", "ms", "share", "MB written"], cells)
