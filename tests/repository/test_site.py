"""The documentation as a site: mkdocs builds it without a warning, and the API is complete."""

from __future__ import annotations

import runpy
import subprocess
import sys
from pathlib import Path

import flash_attention

ROOT = Path(__file__).resolve().parents[2]
REFERENCE = runpy.run_path(str(ROOT / "docs/reference.py"))


def test_site_is_built_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "<h3 " in (tmp_path / "api/index.html").read_text(encoding="utf-8") and not list(tmp_path.rglob("*.py"))


def test_the_api_is_that_of_the_docstrings() -> None:
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    assert text == REFERENCE["page"](), "run: python docs/reference.py"
    for part in ("Parameters", "Keyword parameters", "Returns", "Raises", "Inputs", "Outputs", "Attributes"):
        assert f"**{part}**" in text
    assert ":func:" not in text and "set_train(" not in text


def test_every_public_name_is_in_the_api() -> None:
    shown = {name.rpartition(".")[2] for names in REFERENCE["SECTIONS"].values() for name in names}
    assert {name for name in flash_attention.__all__ if name != "__version__"} <= shown
