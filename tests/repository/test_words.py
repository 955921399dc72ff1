"""The rule for English of CONTRIBUTING.md: first lines of docstrings, words that make riddles, long sentences."""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NO_VERBS = ["What", "Who", "Whose", "Where", "How", "Of", "Those", "That", "Whether", "Which"]
NO_VERBS += ["As", "In", "It", "Its", "With"]
MOST_WORDS = 15
#: Verbs with which the docstring of a function may begin. Add one here if it is missing.
VERBS = set((ROOT / "tests/repository/verbs.txt").read_text(encoding="utf-8").split())
RIDDLES = re.compile(r"\b(?:that|those) of\b", re.IGNORECASE)
MOST_WORDS_OF_A_SENTENCE = 25
LIST_ITEM = re.compile(r"[ \t]*(?:[*+-]|\d+[.)])[ \t]+")


def docstrings(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the docstrings of a module, its classes and functions. True stands for a function.

    A test's docstring says what holds and is left out.
    """
    for node in ast.walk(ast.parse(text)):
        kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
        if isinstance(node, kinds) and not getattr(node, "name", "").startswith("test_"):
            found = ast.get_docstring(node)
            if found:
                yield found, isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))


def comments(text: str) -> Iterator[str]:
    """Yield the comments of a module."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.string


def findings_of_docstring(docstring: str, needs_verb: bool) -> list[str]:
    """Return what is wrong with the first line of a docstring."""
    first = re.split(r"(?<=[.:])\s|\n\n", docstring.strip(), maxsplit=1)[0].replace("\n", " ")
    words = first.split()
    found = [first] if words[0].strip("`:,.") in NO_VERBS else []
    if not found and needs_verb and not begins_with_verb(words):
        found.append(f"no verb of verbs.txt: {first}")
    return found + [first] * (len(words) > MOST_WORDS)


def begins_with_verb(words: list[str]) -> bool:
    """Return True if a sentence begins with a verb. "Name of a file" does not, "Name the file" does."""
    return words[0].rstrip(":;,.") in VERBS and words[1:2] != ["of"]


def findings(path: Path) -> list[str]:
    """Return what is wrong in a file: a Python module or a page."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return RIDDLES.findall(text)
    pairs = list(docstrings(text))
    of_docstrings = [found for one, function in pairs for found in findings_of_docstring(one, function)]
    prose = [one for one, _ in pairs] + list(comments(text))
    return of_docstrings + [one for one in prose for _ in RIDDLES.findall(one)]


def blocks(page: str) -> Iterator[str]:
    """Yield the paragraphs and list items of a page in Markdown.

    Code, tables, headings and addresses of links are left out.
    """
    page = re.sub(r"^([ \t]*)```.*?^\1```[ \t]*$", "\n", page, flags=re.DOTALL | re.MULTILINE)
    page = re.sub(r"^[ \t]*(?:#+ |\|).*$", "\n", page, flags=re.MULTILINE)
    page = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", page)
    for block in re.split(rf"\n\s*\n|\n(?={LIST_ITEM.pattern})", page):
        yield LIST_ITEM.sub("", block.strip("\n"), count=1) if LIST_ITEM.match(block.strip("\n")) else block


def long_sentences(page: str) -> list[str]:
    """Return the sentences of a page that have too many words. A colon and a semicolon end a sentence, too."""
    sentences = [one for block in blocks(page) for one in re.split(r"(?<=[.!?:;])\s+", block)]
    return [" ".join(one.split()) for one in sentences if len(one.split()) > MOST_WORDS_OF_A_SENTENCE]


def pages() -> list[Path]:
    """Return the English pages whose sentences are counted."""
    return [*sorted((ROOT / "docs").glob("*.md")), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]


def files() -> list[str]:
    """Return every Python module and English page that git has."""
    names = subprocess.run(["git", "ls-files", "*.py", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    return [name for name in names.stdout.split() if not name.startswith(("docs/zh/", "README_CN"))]


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="no checkout of Git, which knows the files")
def test_docstrings_comments_and_pages_keep_the_rule() -> None:
    found = {name: findings(ROOT / name) for name in files()}
    assert len(found) > 300 and {name: of_file for name, of_file in found.items() if of_file} == {}


def test_no_page_has_long_sentences() -> None:
    found = {path.relative_to(ROOT).as_posix(): long_sentences(path.read_text(encoding="utf-8")) for path in pages()}
    assert len(found) > 10 and {name: of_page for name, of_page in found.items() if of_page} == {}


WORDS = "word " * MOST_WORDS_OF_A_SENTENCE


@pytest.mark.parametrize(
    ("page", "count"),
    [
        (f"{WORDS.strip()}.", 0),
        (f"{WORDS}more.", 1),
        (f"Some {WORDS}\nin two lines. {WORDS}more!", 2),
        (f"Before: {WORDS.strip()}; {WORDS.strip()}.", 0),
        (f"# {WORDS}more", 0),
        (f"Before.\n# {WORDS}more\nAfter.", 0),
        (f"| {WORDS}more |\n|---|\n| {WORDS}more |", 0),
        (f"Before:\n```\n{WORDS}more\n```\nAfter {WORDS}", 1),
        (f"* item\n\n  ```python\n  {WORDS}more\n  ```\n", 0),
        (f"* {WORDS}\n* {WORDS}\n  1. {WORDS}\n  - {WORDS}", 0),
        (f"* {WORDS}\n  more.", 1),
        (f"[{WORDS}](address.md) more", 1),
        (f"[one]({WORDS})", 0),
    ],
)
def test_long_sentences_are_found(page: str, count: int) -> None:
    assert len(long_sentences(page)) == count


@pytest.mark.parametrize(
    ("docstring", "count"),
    [
        ("Return the tiles a row block visits.", 0),
        ("What `spec` made of arguments.", 1),
        ("Return " + "very " * MOST_WORDS + "long lines.", 1),
        ("Return a tile. " + "Explain " * 30, 0),
        ("With the rows of a tile.", 1),
        ("Rows of a tile.", 1),
        ("The rows of a tile.", 1),
        ("Returns the rows of a tile.", 1),
        ("Name of a tile.", 1),
        ("Name the tile.", 0),
    ],
)
def test_first_lines_that_break_the_rule_are_found(docstring: str, count: int) -> None:
    assert len(findings_of_docstring(docstring, needs_verb=True)) == count
