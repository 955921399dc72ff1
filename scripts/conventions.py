"""Ask each library the questions of docs/conventions.md again, and write the tables of the page.

    python scripts/conventions.py [NAME ...]

A NAME is a program `scripts/conventions/of_NAME.py`; without one all programs run. Each runs in a throwaway environment
with the Python and the packages that its head pins. `--here` runs it with this Python instead, for the torch of a
machine with a GPU. `--page` runs none: it translates the tables of the English page.
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
WORDS = FOLDER / "words.json"
PAGES = ROOT / "docs/conventions.md", ROOT / "docs/zh/conventions.md"  # in the order of words.json
UNKNOWN = "—", "not run"  # a row that has no other cell is left out
TABLE = re.compile(r"(<!-- columns: ([\w ]+) -->\n\n)((?:\|.*\n)*)")


def chinese(cell: str, words: dict) -> str:
    """Return a cell in Chinese: its parts between "; " and ": " are translated, and counts stay."""
    parts = re.split(r"(; |: | \(\d.*\))", cell)
    plain = {part for part in parts if not re.search("[a-z]", re.sub("`.*?`|-?inf|NaN|e[+]|float[0-9]+", "", part))}
    missing = sorted(set(parts) - plain - words.keys())
    if missing:
        raise SystemExit(f"{WORDS}: has no Chinese for {missing}")
    return "".join(part if part in plain else words[part] for part in parts)


def columns(text: str) -> dict:
    """Return the columns of the English page, {name: {"version": ..., "cells": {row: cell}}}."""
    found = {}
    for match in TABLE.finditer(text):
        heads, _, *rows = ([cell.strip() for cell in line[2:-2].split(" | ")] for line in match[3].splitlines())
        for place, name in enumerate(match[2].split(), 1):
            cells = {row[0]: row[place] for row in rows}
            found[name] = {"version": heads[place].partition("<br>")[2], "cells": cells}
    return found


def table(names: list[str], found: dict, words: dict, language: int) -> str:
    """Return the table of some columns in a language. 0 is English, 1 Chinese."""
    heads = [f"{words['heads'][name][language]}<br>{found[name]['version']}" for name in names]
    lines = [["", *heads], ["---"] * (len(names) + 1)]
    for title, translated in words["rows"].items():
        row = [found[name]["cells"].get(title, "—") for name in names]
        if set(row) - set(UNKNOWN):
            row = [chinese(cell, words["cells"]) for cell in row] if language else row
            lines.append([translated if language else title, *row])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(language: int, found: dict) -> str:
    """Return the page of a language with its tables made anew."""
    words = json.loads(WORDS.read_text(encoding="utf-8"))
    return TABLE.sub(
        lambda match: match[1] + table(match[2].split(), found, words, language),
        PAGES[language].read_text(encoding="utf-8"),
    )


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
    if not programs and "--page" not in arguments:
        programs = sorted(path.stem[3:] for path in FOLDER.glob("of_*.py"))
    cells = columns(PAGES[0].read_text(encoding="utf-8"))
    for name in programs:
        found = answers(FOLDER / f"of_{name}.py", "--here" in arguments)
        lines = changes(cells, found)
        print(f"{name} ({', '.join(found)}):", *(lines or ["no cell changed"]), sep="\n  ")
        cells.update(found)
        PAGES[0].write_text(page(0, cells), encoding="utf-8")
    PAGES[1].write_text(page(1, cells), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
