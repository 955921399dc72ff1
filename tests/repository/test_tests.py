"""The tests themselves: files of a size that one reads, and helpers that say what they give."""

from __future__ import annotations

import ast
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
LIMIT = 400


def files() -> dict[str, str]:
    """Every Python file of the tests with its text."""
    return {str(path.relative_to(TESTS)): path.read_text(encoding="utf-8") for path in sorted(TESTS.rglob("*.py"))}


def undocumented(text: str) -> list[str]:
    """Functions and classes at the top of a module, fixtures among them, that are no tests and have no docstring."""
    return [
        node.name
        for node in ast.parse(text).body
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and not node.name.startswith(("test_", "Test"))
        and not ast.get_docstring(node)
    ]


def test_every_helper_says_what_it_gives() -> None:
    assert {name: missing for name, text in files().items() if (missing := undocumented(text))} == {}


def test_a_helper_without_docstring_is_found() -> None:
    text = 'def draw(): ...\nclass Net:\n    "A network."\ndef test_it(): ...\ndef _table():\n    return 1\n'
    assert undocumented(text) == ["draw", "_table"]


def test_no_file_is_too_long_to_read() -> None:
    assert {name: lines for name, text in files().items() if (lines := len(text.splitlines())) > LIMIT} == {}
