"""Figures that a bench reaches, and how they are printed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from flash_attention.text_table import table


@dataclass(frozen=True)
class Figure:
    """Hold one measured figure. `reached` is None if an implementation was missing; `note` says why.

    Attributes:
        span: of an estimate, the least and the most that the evidence allows.
    """

    name: str
    reached: float | None
    unit: str
    note: str = ""
    span: tuple[float, float] | None = None

    def row(self, *more: str) -> list[str]:
        """Return the cells of a table row: the name, what was reached, `more`, and the note."""
        span = "" if self.span is None else f" ({self.span[0]:.0f} to {self.span[1]:.0f})"
        return [self.name, f"{self.reached:.2f} {self.unit}{span}", *more, self.note]


def text(figures: Sequence[Figure]) -> str:
    """Return a table of measured figures, then a line for each reason of missing ones."""
    rows = [figure.row() for figure in figures if figure.reached is not None]
    return "\n".join([table(["figure", "reached", ""], rows), *not_measured(figures)])


def not_measured(figures: Sequence[Figure]) -> list[str]:
    """Return a line for each reason why figures were not measured."""
    reasons = Counter(figure.note for figure in figures if figure.reached is None)
    return [f"not measured, {n} figures: {why}" for why, n in reasons.items()]
