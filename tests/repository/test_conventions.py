"""The page of conventions: its tables are the cells, and our own and MindSpore's columns are computed again."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path

import mindspore as ms
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scripts/conventions"
CELLS = json.loads((FOLDER / "cells.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module", autouse=True)
def programs():
    """Find the programs of the columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        patch.syspath_prepend(str(FOLDER))
        yield
    for name in ("conventions", "questions", "of_mindspore"):
        sys.modules.pop(name, None)


def test_the_pages_are_made_from_the_cells() -> None:
    command = importlib.import_module("conventions")
    for language, path in command.PAGES.items():
        text = path.read_text(encoding="utf-8")
        named = [name for _, names in command.TABLE.findall(text) for name in names.split()]
        assert sorted(named) == sorted(CELLS), "every column stands in one table"
        assert command.page(language) == text, "run: python scripts/conventions.py --page"


def test_every_program_pins_its_python_and_packages() -> None:
    command = importlib.import_module("conventions")
    for name in {column["program"] for column in CELLS.values()}:
        version, packages = command.pins(FOLDER / f"of_{name}.py")
        assert version.startswith("3.") and all("==" in package for package in packages)


COLUMNS = [name for name, column in CELLS.items() if column["program"] == "mindspore"]


@pytest.mark.parametrize("name", COLUMNS)
def test_the_column_is_what_the_program_computes(name: str) -> None:
    if CELLS[name]["version"] != f"MindSpore {ms.__version__}":
        pytest.skip(f"the cells are of {CELLS[name]['version']}")
    column = importlib.import_module("of_mindspore").columns()[name]
    assert importlib.import_module("questions").answers(column) == CELLS[name]["cells"]
