"""Comments cite docs/tik: "vector.md 3.2" is a section, "D34" a decision. Every citation leads to one.

Messages, docstrings and comments name sources. Every name is a file that there is.
"""

from __future__ import annotations

import re
from pathlib import Path

from tikemu.isa import registry

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = ROOT / "docs/tik"
# In these folders a D with a number is a decision, not a head_dim as in the names of attention cases.
DECIDED = ("emulator", "docs", "train/flash_attention/kernels/tik", "train/flash_attention/backends")
CITING = (*DECIDED, "train", "tests", "benchmarks", "examples")

_NUMBER = r"§?\d+(?:\.\d+)?"
_NUMBERS = rf"{_NUMBER}(?:(?:,\s*|\s+to\s+|\s+and\s+|\s*[-–]\s*){_NUMBER})*"
SECTION = re.compile(rf"\b(core|vector|cube|timing|tik/README|README)(?:\.md)?`?,?\s+({_NUMBERS})")
HEADING = re.compile(r"^#{2,4} (\d+(?:\.\d+)?)[. ]", re.MULTILINE)
DECISION_ROW = re.compile(r"^\| (D\d+[a-z]?) \|", re.MULTILINE)
DECISION = re.compile(r"(?<![\w.-])D\d{1,2}(?:[a-f]\b|\b)(?![-.\w])")


def headings(page: str) -> set[str]:
    """Return the section numbers of a page of docs/tik."""
    return set(HEADING.findall((REFERENCE / f"{page}.md").read_text(encoding="utf-8")))


def decisions() -> set[str]:
    """Return the names of the rows of the decisions table, and of their families: D5 stands for D5a, D5b, ..."""
    rows = DECISION_ROW.findall((REFERENCE / "README.md").read_text(encoding="utf-8"))
    assert len(rows) == len(set(rows)), "a decision stands twice in the table"
    return {name for row in rows for name in (row, row.rstrip("abcdefgh"))}


def files(folders: tuple[str, ...]) -> list[Path]:
    """Return the sources and pages below `folders`, without what builds leave behind."""
    found = {
        path
        for folder in folders
        for kind in ("*.py", "*.md", "*.c", "*.h", "*.cpp")
        for path in (ROOT / folder).rglob(kind)
        if not {"build", "dist", "__pycache__"}.intersection(path.relative_to(ROOT).parts)
    }
    return sorted(found - {Path(__file__).resolve()})


def cited_sections(text: str) -> list[tuple[str, str]]:
    """Return the page and number of every section that `text` names."""
    return [
        (page.rpartition("/")[2], number.lstrip("§"))
        for page, numbers in SECTION.findall(text)
        for number in re.findall(_NUMBER, numbers)
    ]


def test_every_cited_section_exists() -> None:
    sections = {page: headings(page) for page in ("core", "vector", "cube", "timing", "README")}
    dangling, found = [], 0
    for path in files(CITING):
        text = path.read_text(encoding="utf-8")
        if path.is_relative_to(REFERENCE):
            own = re.sub(r"\b(?:\w+\.md|guide|paper|timing|core|vector|cube)\s*(?:§\S+,? ?)+", "", text)
            cited = cited_sections(text) + [(path.stem, n) for n in re.findall(r"§(\d+(?:\.\d+)?)", own)]
        else:  # elsewhere only with the page's full name: "core 2" may be a core
            cited = cited_sections("\n".join(line for line in text.split("\n") if ".md" in line))
        found += len(cited)
        dangling += [f"{path.relative_to(ROOT)}: {page}.md {n}" for page, n in cited if n not in sections[page]]
    assert not dangling
    assert found > 100, "the pattern of citations fits nothing any more"


def test_every_cited_decision_exists() -> None:
    known = decisions()
    dangling, found = [], 0
    for path in files(DECIDED):
        for name in DECISION.findall(path.read_text(encoding="utf-8")):
            found += 1
            if name not in known:
                dangling.append(f"{path.relative_to(ROOT)}: {name}")
    assert not dangling
    assert found > 200


def test_every_name_of_tikemu_is_listed() -> None:
    names = (REFERENCE / "README.md").read_text(encoding="utf-8").partition("## 5.")[2]
    assert set(registry.specs()) <= set(re.findall(r"`(\w+)`", names))


SOURCE = re.compile(r"(?<![\w./<{-])[\w./-]*\w\.(?:py|cpp|cc|h)\b(?!>)")
#: Of other packages, or written by a program.
FOREIGN = {
    "graph/operator_reg.h",
    "op_proto/flash_attention.cc",
    "version.py",
    "/__init__.py",
    "fused_abs_max1_impl.py",
}


def test_sources_that_are_named_exist() -> None:
    """Owners of cards read some of the names to see what they may change."""
    places = [str(path.relative_to(ROOT)) for path in files(CITING)]
    known = {place[at:] for place in places for at in (0, *(found.end() for found in re.finditer("/", place)))}
    wrong = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in (*files(("train/flash_attention", "emulator/tikemu", "benchmarks")), ROOT / "tests/README.md")
        for name in SOURCE.findall(re.sub("(?m)^#include.*", "", path.read_text(encoding="utf-8")))
        if name not in known and name not in FOREIGN
    }
    assert wrong == set()
