"""The documentation: its Python blocks run, and the files, headings and commands it names exist.

A block that cannot run here, because it needs several devices or a model library, is marked ```py instead of ```python.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import flash_attention
import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "README_CN.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "emulator").glob("*.md")),
    *sorted((ROOT / "emulator/virtual_ascend").glob("*.md")),
    ROOT / "examples/README.md",
    ROOT / "tests/README.md",
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)\s]+)[^)]*\)")
# Chinese pages have the same blocks as English pages, which test_chinese.py checks, so they need not run.
CHINESE = [ROOT / "README_CN.md", *sorted((ROOT / "docs/zh").glob("*.md"))]
RUNNABLE = [page for page in PAGES if page not in CHINESE and BLOCK.search(page.read_text(encoding="utf-8"))]


def name_of(page: Path) -> str:
    """Return the page's path in the repository."""
    return str(page.relative_to(ROOT))


def anchors(text: str) -> set[str]:
    """Return the anchors of a page: its headings in lower case, spaces as hyphens, without punctuation, and ids."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings} | set(
        re.findall(r'<a id="([\w-]+)"></a>', text)
    )


def dead_links(page: Path, text: str) -> list[str]:
    """Return the links and images of a page that lead to no file or heading."""
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


# This program runs each script in its own child process, in an empty folder, and prints the exit status of each. The
# scripts share the imports, which take longest.
RUN_SCRIPTS = """
import os, runpy, sys, traceback
import flash_attention, mindspore
for script in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.chdir(os.path.dirname(script))
            with open("printed.txt", "w") as printed:
                os.dup2(printed.fileno(), 1)
                os.dup2(printed.fileno(), 2)
            runpy.run_path(script)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            os._exit(status)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[Path, tuple[int, str]]:
    """Return the status and output of each page's Python blocks, run as one program."""
    scripts = {page: tmp_path_factory.mktemp("page") / "page.py" for page in RUNNABLE}
    for page, script in scripts.items():
        script.write_text("\n".join(BLOCK.findall(page.read_text(encoding="utf-8"))), encoding="utf-8")
    search = os.pathsep.join((str(ROOT / "train"), str(ROOT / "emulator")))
    command = [sys.executable, "-c", RUN_SCRIPTS, *map(str, scripts.values())]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "PYTHONPATH": search})
    assert done.returncode == 0, done.stdout + done.stderr
    found = zip(scripts.items(), map(int, done.stdout.split()))
    return {page: (status, script.with_name("printed.txt").read_text()) for (page, script), status in found}


@pytest.mark.parametrize("page", RUNNABLE, ids=name_of)
def test_python_blocks_run(page: Path, runs: dict[Path, tuple[int, str]]) -> None:
    status, printed = runs[page]
    assert status == 0, printed


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page, page.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_named_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:\./|train/|tests/|examples/|docs/|emulator/|benchmarks/|scripts/)[\w./-]*)`", text):
        if not {"dist", "results", "kernel_meta"}.intersection(path.split("/")):  # what builds and runs leave behind
            assert (ROOT / path).exists(), f"{page.name}: {path}"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_a_blank_line_ends_a_table(page: Path) -> None:
    """Without it, text is shown as a row."""
    assert re.findall(r"^\|.*\n([^|\n].*)", page.read_text(encoding="utf-8"), re.MULTILINE) == []


def absent(text: str) -> list[str]:
    """Return the names in "`name` in `path`" that the files do not have."""
    named = re.findall(r"`(\w+)` in `([^`]+)`", text)
    files = {path: (ROOT / path).read_text(encoding="utf-8") for _, path in named}
    return [f"{name} in {path}" for name, path in named if not re.search(rf"\b{name}\b", files[path])]


def test_names_of_the_glossary_stand_in_its_files() -> None:
    text = (ROOT / "docs/glossary.md").read_text(encoding="utf-8")
    assert len(re.findall("` in `", text)) > 10 and absent(text) == []
