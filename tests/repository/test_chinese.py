"""The Chinese pages: each has the headings, code blocks and tables of its English page."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
CODE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
PAIRS = {
    "README.md": "README_CN.md",
    **{f"docs/{page.name}": f"docs/zh/{page.name}" for page in sorted((ROOT / "docs/zh").glob("*.md"))},
}


def structure(text: str) -> dict[str, list]:
    """Return the levels of headings, the code blocks, and the columns of each table's rows."""
    prose = CODE.sub("", text)
    tables = re.findall(r"(?:^\|.*\|$\n?)+", prose, re.MULTILINE)
    return {
        "headings": [len(marks) for marks in re.findall(r"^(#+) ", prose, re.MULTILINE)],
        "code": CODE.findall(text),
        "tables": [[len(re.findall(r"(?<!\\)\|", row)) - 1 for row in table.splitlines()] for table in tables],
    }


@pytest.mark.parametrize("english", PAIRS)
def test_chinese_page_has_the_structure_of_the_english_page(english: str) -> None:
    pair = [structure((ROOT / name).read_text(encoding="utf-8")) for name in (english, PAIRS[english])]
    assert pair[0] == pair[1]
