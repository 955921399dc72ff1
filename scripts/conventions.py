"""Ask each library the questions of docs/conventions.md again, and write the tables of the page.

    python scripts/conventions.py [NAME ...]

A NAME is a column of `scripts/conventions/cells.json`, or a program `of_NAME.py` beside it; without one all programs
run. Each runs in a throwaway environment with the Python and the packages that its head pins. `--here` runs it with
this Python instead, for the torch of a machine with a GPU. `--page` runs none.
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
CELLS = FOLDER / "cells.json"
WORDS = FOLDER / "words.json"
PAGES = {
    0: ROOT / "docs/conventions.md",
    1: ROOT / "docs/zh/conventions.md",
}  # by the place of a language in words.json
TABLE = re.compile(r"(<!-- columns: ([\w ]+) -->\n\n)(?:\|.*\n)*")


def chinese(cell: str, words: dict) -> str:
    """Return a cell in Chinese: its parts between "; " and ": " are translated, and counts stay."""
    parts = re.split(r"(; |: | \(\d.*\))", cell)
    plain = {part for part in parts if not re.search("[a-z]", re.sub("`.*?`", "", part))}
    missing = sorted(set(parts) - plain - words.keys())
    if missing:
        raise SystemExit(f"{WORDS}: has no Chinese for {missing}")
    return "".join(part if part in plain else words[part] for part in parts)


def table(names: list[str], cells: dict, words: dict, language: int) -> str:
    """Return the table of some columns. It has the rows that one of them answers."""
    heads = [f"{words['heads'][name][language]}<br>{cells[name]['version']}" for name in names]
    lines = [["", *heads], ["---"] * (len(names) + 1)]
    for title, translated in words["rows"].items():
        row = [cells[name]["cells"].get(title, cells[name].get("rest", "—")) for name in names]
        if any(title in cells[name]["cells"] for name in names):
            row = [chinese(cell, words["cells"]) for cell in row] if language else row
            lines.append([translated if language else title, *row])
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def page(language: int) -> str:
    """Return the page of a language with its tables made anew. 0 is English, 1 Chinese."""
    cells, words = (json.loads(path.read_text(encoding="utf-8")) for path in (CELLS, WORDS))
    return TABLE.sub(
        lambda found: found[1] + table(found[2].split(), cells, words, language),
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
    return {name: {"program": program.stem[3:], **column} for name, column in found.items()}


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
    """Run the programs, write the cells and the pages, and print what changed."""
    names = [one for one in arguments if not one.startswith("--")]
    cells = json.loads(CELLS.read_text(encoding="utf-8"))
    programs = {cells[name]["program"] if name in cells else name for name in names}
    if not names and "--page" not in arguments:
        programs = {path.stem[3:] for path in FOLDER.glob("of_*.py")}
    for name in sorted(programs):
        found = answers(FOLDER / f"of_{name}.py", "--here" in arguments)
        lines = changes(cells, found)
        print(f"{name} ({', '.join(found)}):", *(lines or ["no cell changed"]), sep="\n  ")
        cells.update(found)
        CELLS.write_text(json.dumps(cells, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    for language, path in PAGES.items():
        path.write_text(page(language), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
