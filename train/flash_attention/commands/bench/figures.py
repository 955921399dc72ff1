"""Figures that a bench reaches, and with `--strict` those that are required, from a file."""

from __future__ import annotations

import fnmatch
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from flash_attention.text_table import table

#: The file of the repository, seen from its root; the wheel has none.
REQUIRED = Path("benchmarks/required.json")
_LARGER_IS_BETTER = ("x", "%")
#: Bounds by pattern of a figure's name, as `fnmatch` has them; the first that fits counts.
Bounds = Mapping[str, float]


@dataclass(frozen=True)
class Figure:
    """What was measured. `reached` is None when an implementation was missing; `note` says why."""

    name: str
    reached: float | None
    unit: str  # "x" and "%" are better when larger, "x spread", "ms" and "MB" when smaller
    note: str = ""

    def ok(self, bound: float) -> bool | None:
        """Whether the figure is at least, or at most, the bound."""
        if self.reached is None:
            return None
        return self.reached >= bound if self.unit in _LARGER_IS_BETTER else self.reached <= bound


def read_bounds(path: Path) -> dict[str, float]:
    """The required figures of a file: JSON, patterns with their bounds under titles of groups.

    Raises:
        RuntimeError: there is no such file.
    """
    if not path.is_file():
        raise RuntimeError(
            f"--strict: {path} is not there, allowed is a file of required figures such as {REQUIRED} of the repository"
        )
    groups = json.loads(path.read_text(encoding="utf-8"))
    return {pattern: bound for group in groups.values() for pattern, bound in group.items()}


def bound_of(name: str, bounds: Bounds) -> float | None:
    """What is required of the figure of that name, None if nothing."""
    return next((bound for pattern, bound in bounds.items() if fnmatch.fnmatchcase(name, pattern)), None)


def text(figures: Sequence[Figure], bounds: Bounds | None = None) -> str:
    """What was reached, with bounds beside what is required; what was not measured is a line for each reason."""
    rows = [_row(figure, bounds) for figure in figures if figure.reached is not None]
    header = ["figure", "reached", ""] if bounds is None else ["figure", "reached", "required", "", ""]
    reasons = Counter(figure.note for figure in figures if figure.reached is None)
    return "\n".join([table(header, rows), *(f"not measured, {n} figures: {why}" for why, n in reasons.items())])


def _row(figure: Figure, bounds: Bounds | None) -> list[str]:
    reached = f"{figure.reached:.2f} {figure.unit}"
    if bounds is None:
        return [figure.name, reached, figure.note]
    bound = bound_of(figure.name, bounds)
    if bound is None:
        return [figure.name, reached, "-", "", figure.note]
    sign = ">=" if figure.unit in _LARGER_IS_BETTER else "<="
    verdict = "reached" if figure.ok(bound) else "MISSED"
    return [figure.name, reached, f"{sign} {bound:.3g} {figure.unit}", verdict, figure.note]


def status(figures: Sequence[Figure], bounds: Bounds | None) -> int:
    """Exit status: 1 when a required figure is missed, or was not measured."""
    required = [(figure, bound_of(figure.name, bounds)) for figure in figures] if bounds is not None else []
    return int(any(bound is not None and not figure.ok(bound) for figure, bound in required))
