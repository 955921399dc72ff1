"""The tests themselves: files of a size that one reads, and helpers that say what they give."""

from __future__ import annotations

import ast
import signal
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
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


def test_programs_that_tests_start_hear_signals() -> None:
    """Also where the caller of pytest ignores them, as shells do for what runs in the background."""

    def ignore() -> None:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGCHLD):
            signal.signal(number, signal.SIG_IGN)

    heard = "import signal as s; print(*(s.getsignal(n) != s.SIG_IGN for n in (s.SIGINT, s.SIGTERM, s.SIGCHLD)))"
    program = f"import subprocess, sys, tests.conftest; subprocess.run([sys.executable, '-c', {heard!r}])"
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, preexec_fn=ignore, capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout.split() == ["True"] * 3, done.stderr


def test_no_file_is_too_long_to_read() -> None:
    assert {name: lines for name, text in files().items() if (lines := len(text.splitlines())) > LIMIT} == {}
