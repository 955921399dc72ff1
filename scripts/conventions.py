"""Ask each library the questions of docs/conventions.md again, and write the tables of the page.

    python scripts/conventions.py [NAME ...]

A NAME is a program `scripts/conventions/of_NAME.py`; without one all programs run. Each runs in a throwaway environment
with the Python and the packages that its head pins. `--here` runs it with this Python instead, for the torch of a
machine with a GPU. The Chinese page gets the same tables, in the words that it has; the command names new ones.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "scripts/conventions"
PAGES = ROOT / "docs/conventions.md", ROOT / "docs/zh/conventions.md"
UNKNOWN = "—", "not run"  # a row that has no other cell is left out
PARTS = re.compile(r"(; |: | \(\d.*\))")  # what separates the parts of a cell, counts in brackets among it
TABLE = re.compile(r"(<!-- columns: ([\w ]+) -->\n\n)((?:\|.*\n)*)")


def cells_of(table: str) -> list[list[str]]:
    """Return the cells of a table's head and rows."""
    lines = [[cell.strip() for cell in line[2:-2].split(" | ")] for line in table.splitlines()]
    return [lines[0], *lines[2:]]


def columns(text: str) -> dict:
    """Return the columns of a page, {name: {"version": ..., "cells": {row: cell}}}."""
    found = {}
    for match in TABLE.finditer(text):
        heads, *rows = cells_of(match[3])
        for place, name in enumerate(match[2].split(), 1):
            cells = {row[0]: row[place] for row in rows}
            found[name] = {"version": heads[place].partition("<br>")[2], "cells": cells}
    return found


def english(match: re.Match, found: dict) -> str:
    """Return a table of the English page made anew. A row that is new in it comes last."""
    (_, *heads), *rows = cells_of(match[3])
    names = match[2].split()
    lines = [["", *(f"{head.partition('<br>')[0]}<br>{found[name]['version']}" for head, name in zip(heads, names))]]
    lines.append(["---"] * len(lines[0]))
    for title in dict.fromkeys([row[0] for row in rows] + [title for name in names for title in found[name]["cells"]]):
        row = [found[name]["cells"].get(title, "—") for name in names]
        if set(row) - set(UNKNOWN):
            lines.append([title, *row])
    return match[1] + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def pieces(table: str) -> list[str]:
    """Return what is translated in a table, in its order: titles, heads, and parts of cells between "; " and ": "."""
    (_, *heads), *rows = cells_of(table)
    names = [part for head in heads for part in head.split("<br>")]
    cells = [part for _, *row in rows for cell in row for part in PARTS.split(cell)]
    return [*names, *(row[0] for row in rows), *cells]


def words(pages: tuple[str, str]) -> dict[str, str]:
    """Return the Chinese of each piece, as the tables of the two pages pair them. Each has one."""
    found: dict[str, str] = {}
    for table, translated in zip(*(TABLE.findall(page) for page in pages)):
        for piece, other in zip(pieces(table[2]), pieces(translated[2])):
            if found.setdefault(piece, other) != other:
                raise SystemExit(f"{PAGES[1]}: {piece!r} is {found[piece]!r} and {other!r}")
    return found


def chinese(pages: tuple[str, str], known: dict[str, str]) -> str:
    """Return the Chinese page with the tables of the English page. Pieces without Chinese stay English."""
    tables = iter(TABLE.findall(pages[0]))

    def translated(match: re.Match) -> str:
        (_, *heads), *rows = cells_of(next(tables)[2])
        lines = [["", *("<br>".join(known.get(part, part) for part in head.split("<br>")) for head in heads)]]
        lines.append(["---"] * len(lines[0]))
        for title, *row in rows:
            cells = ("".join(known.get(part, part) for part in PARTS.split(cell)) for cell in row)
            lines.append([known.get(title, title), *cells])
        return match[1] + "".join(f"| {' | '.join(line)} |\n" for line in lines)

    return TABLE.sub(translated, pages[1])


def pins(program: Path) -> tuple[str, list[str]]:
    """Return the Python version and the packages that the head of a program names."""
    head = program.read_text(encoding="utf-8").partition("# ///\n")[0]
    version, packages = re.findall(r'"==([\d.]+)\.\*"\n# dependencies = (\[.*\])', head)[0]
    return version, json.loads(packages)


def interpreter(version: str) -> str:
    """Return a Python of a version, from PATH or from pyenv."""
    command = f'. "{ROOT}/scripts/environment.sh"; unset PYTHON; find_python {version}'
    return subprocess.run(["bash", "-c", command], check=True, capture_output=True, text=True).stdout.strip()


def answers(program: Path, here: bool) -> dict:
    """Run a program, and return its columns."""
    with tempfile.TemporaryDirectory() as folder:
        python = sys.executable
        if not here:
            version, packages = pins(program)
            python = f"{folder}/venv/bin/python"
            subprocess.run([interpreter(version), "-m", "venv", f"{folder}/venv"], check=True)
            subprocess.run(
                [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages], check=True
            )
        done = subprocess.run([python, str(program)], check=True, stdout=subprocess.PIPE, text=True)
    found: dict = {}
    for line in done.stdout.splitlines():
        found.update(json.loads(line) if line.startswith("{") else {})
    return found


def changes(old: dict, new: dict) -> list[str]:
    """Return a line for every cell that differs."""
    lines = []
    for name, column in new.items():
        if name not in old:
            lines.append(f"{name}: new, {len(column['cells'])} cells of {column['version']}")
            continue
        before = old[name]
        for title in {**before["cells"], **column["cells"]}:
            was, now = before["cells"].get(title, "—"), column["cells"].get(title, "—")
            lines += [f"{name}: {title}: {was} -> {now}"] * (was != now)
        lines += [f"{name}: {before['version']} -> {column['version']}"] * (before["version"] != column["version"])
    return lines


def main(arguments: list[str]) -> None:
    """Run the programs, write the pages, and print what changed."""
    programs = [one for one in arguments if not one.startswith("--")]
    programs = programs or sorted(path.stem[3:] for path in FOLDER.glob("of_*.py"))
    pages = PAGES[0].read_text(encoding="utf-8"), PAGES[1].read_text(encoding="utf-8")
    cells, known = columns(pages[0]), words(pages)
    for name in programs:
        found = answers(FOLDER / f"of_{name}.py", "--here" in arguments)
        lines = changes(cells, found)
        print(f"{name} ({', '.join(found)}):", *(lines or ["no cell changed"]), sep="\n  ")
        cells.update(found)
        pages = TABLE.sub(lambda match: english(match, cells), pages[0]), pages[1]
        PAGES[0].write_text(pages[0], encoding="utf-8")
    PAGES[1].write_text(chinese(pages, known), encoding="utf-8")
    new = {piece for table in TABLE.findall(pages[0]) for piece in pieces(table[2])} - known.keys()
    print(*(f"{PAGES[1].name}: translate {piece!r} by hand" for piece in sorted(new)), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
