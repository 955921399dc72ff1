"""The documentation: its Python blocks run, and the files and commands it names exist."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
    *sorted((ROOT / "docs").glob("*.md")),
]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
RUNNABLE = [page for page in PAGES if page.name in ("README.md", "usage.md", "migration.md")]


@pytest.mark.parametrize("page", RUNNABLE, ids=lambda page: page.name)
def test_python_blocks_run(page: Path, tmp_path: Path) -> None:
    program = "\n".join(BLOCK.findall(page.read_text(encoding="utf-8")))
    assert program
    script = tmp_path / "page.py"
    script.write_text(program, encoding="utf-8")
    search = [str(ROOT / "train"), str(ROOT / "emulator")]
    command = f"import sys, runpy; sys.path[:0] = {search}; runpy.run_path({str(script)!r})"
    done = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", text):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_named_paths_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for path in re.findall(r"`((?:\./|train/|tests/|examples/|docs/|emulator/|benchmarks/|scripts/)[\w./-]*)`", text):
        if "dist/" not in path and "results/" not in path:
            assert (ROOT / path).exists(), f"{page.name}: {path}"
