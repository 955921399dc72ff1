"""Hold required figures: benchmarks/required.json has patterns with bounds under titles."""

from __future__ import annotations

import fnmatch
import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from flash_attention.measuring.figures import Figure, not_measured
from flash_attention.text_table import table

#: Bounds by pattern of a figure's name, as in `fnmatch`. The first pattern that fits counts.
BOUNDS: Mapping[str, float] = {
    pattern: bound
    for group in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8")).values()
    for pattern, bound in group.items()
}
_LARGER_IS_BETTER = ("x", "%")  # "x spread", "x the time", "ms" and "MB" are better when smaller


def bound_of(name: str, bounds: Mapping[str, float] = BOUNDS) -> float | None:
    """Return the bound of the figure of that name, or None."""
    return next((bound for pattern, bound in bounds.items() if fnmatch.fnmatchcase(name, pattern)), None)


def is_met(figure: Figure, bound: float) -> bool:
    """Return whether a figure keeps its bound. A figure that was not measured does not."""
    if figure.reached is None:
        return False
    return figure.reached >= bound if figure.unit in _LARGER_IS_BETTER else figure.reached <= bound


def report(figures: Sequence[Figure], bounds: Mapping[str, float] = BOUNDS) -> int:
    """Print required beside reached figures; return status 1 if one is missed or absent."""
    rows, status = [], 0
    for figure in figures:
        bound, cells = bound_of(figure.name, bounds), ("-", "")
        if bound is not None:
            met = is_met(figure, bound)
            sign = ">=" if figure.unit in _LARGER_IS_BETTER else "<="
            cells = f"{sign} {bound:.3g} {figure.unit}", "reached" if met else "MISSED"
            status |= not met
        if figure.reached is not None:
            rows.append(figure.row(*cells))
    print("\n".join([table(["figure", "reached", "required", "", ""], rows), *not_measured(figures)]))
    return status
