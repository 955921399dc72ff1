"""The page of conventions: its Chinese twin has its tables, and our and MindSpore's columns are computed again."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path

import mindspore as ms
import pytest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "scripts/conventions"
TEXT = (ROOT / "docs/conventions.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def command():
    """Return the module of the command, which finds the programs of the columns."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(ROOT / "scripts"))
        patch.syspath_prepend(str(FOLDER))
        yield importlib.import_module("conventions")
    for name in ("conventions", "questions", "of_mindspore"):
        sys.modules.pop(name, None)


def test_the_pages_have_the_same_tables(command) -> None:
    found = command.columns(TEXT)
    assert len(found) > 20 and all(len(column["cells"]) > 15 for column in found.values())
    pages = TEXT, command.PAGES[1].read_text(encoding="utf-8")
    assert command.TABLE.sub(lambda match: command.english(match, found), TEXT) == TEXT
    assert command.chinese(pages, command.words(pages)) == pages[1]


def test_every_program_pins_its_python_and_packages(command) -> None:
    for program in FOLDER.glob("of_*.py"):
        version, packages = command.pins(program)
        assert version.startswith("3.") and all("==" in package for package in packages)


NAMES = re.findall(r"columns: (ours_cpu .*) -->", TEXT)[0].split()
#: Columns that take seconds for the questions.
LONG = "ours_math", "ours_tik", "mindspore_layer"


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.system] * (name in LONG)) for name in NAMES])
def test_the_column_is_what_the_program_computes(command, name: str) -> None:
    column = command.columns(TEXT)[name]
    if column["version"] != f"MindSpore {ms.__version__}":
        pytest.skip(f"the cells are of {column['version']}")
    ms.set_context(mode=ms.PYNATIVE_MODE)  # a test of a command before may have left another mode
    answers = importlib.import_module("questions").answers(importlib.import_module("of_mindspore").columns()[name])
    assert {title: answers[title] for title in column["cells"]} == column["cells"]
    assert {cell for title, cell in answers.items() if title not in column["cells"]} <= set(command.UNKNOWN)
