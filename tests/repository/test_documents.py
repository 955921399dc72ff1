"""The documentation: its Python blocks run, and the files, headings and commands it names exist.

A block that cannot run here, because it needs several devices or a model library, is marked ```py instead of ```python.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import flash_attention
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "emulator").glob("*.md")),
    ROOT / "examples/README.md",
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)")
RUNNABLE = [page for page in PAGES if BLOCK.search(page.read_text(encoding="utf-8"))]


def name_of(page: Path) -> str:
    """The page's path in the repository."""
    return str(page.relative_to(ROOT))


def anchors(text: str) -> set[str]:
    """What `#...` may name on a page: its headings in lower case, spaces as hyphens, without punctuation."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def dead_links(page: Path, text: str) -> list[str]:
    """Links and images of a page that lead to no file, or to no heading of it."""
    dead = []
    for target in LINK.findall(FENCED.sub("", text)):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        if not file.exists() or (anchor and anchor not in anchors(file.read_text(encoding="utf-8"))):
            dead.append(target)
    return dead


def test_citation_names_this_version() -> None:
    text = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    assert re.findall(r"^version: (.+)$", text, re.MULTILINE) == [flash_attention.__version__]


def test_pages_that_teach_have_code() -> None:
    assert {"README.md", "docs/usage.md", "docs/migration.md", "docs/tutorial.md", "docs/masks.md"} <= {
        name_of(page) for page in RUNNABLE
    }


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    program = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))
    script = tmp_path / "page.py"
    script.write_text(program, encoding="utf-8")
    search = [str(ROOT / "train"), str(ROOT / "emulator")]
    command = f"import sys, runpy; sys.path[:0] = {search}; runpy.run_path({str(script)!r})"
    done = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page, page.read_text(encoding="utf-8")) == []


def test_dead_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# There\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# A title, *here*\n[](there.md) [](#a-title-here) ![](no.png) [](#no) [](there.md#no)\n```\n[](no)\n```\n"
    )
    assert dead_links(page, page.read_text()) == ["no.png", "#no", "there.md#no"]


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:\./|train/|tests/|examples/|docs/|emulator/|benchmarks/|scripts/)[\w./-]*)`", text):
        if not {"dist", "results", "kernel_meta"}.intersection(path.split("/")):  # what builds and runs leave behind
            assert (ROOT / path).exists(), f"{page.name}: {path}"
