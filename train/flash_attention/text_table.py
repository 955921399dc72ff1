"""Plain text for people: tables, and rough times."""

from __future__ import annotations


def table(header: list[str], rows: list[list], indent: str = "") -> str:
    """Lay out columns as wide as their widest cell. Columns of numbers (as text or not) are right-aligned."""
    cells = [[str(cell) for cell in row] for row in rows]
    right = [bool(cells) and all(_numeric(row[column]) for row in cells) for column in range(len(header))]
    widths = [max(len(row[column]) for row in [header, *cells]) for column in range(len(header))]

    def line(row: list[str]) -> str:
        padded = (cell.rjust(w) if r else cell.ljust(w) for cell, w, r in zip(row, widths, right))
        return (indent + "  ".join(padded)).rstrip()

    rule = indent + "  ".join("-" * width for width in widths)
    return "\n".join([line(header), rule, *map(line, cells)])


def about(seconds: float) -> str:
    """Return an estimate of a time, in two digits at most: "about 40 s", "about 7 min"."""
    if seconds < 95:
        return f"about {max(5, round(seconds / 5) * 5)} s"
    return f"about {round(seconds / 60)} min"


def _numeric(cell: str) -> bool:
    return cell.strip(" x%<>=~") in ("", "-") or cell.strip(" x%<>=~+-")[:1].isdigit()
