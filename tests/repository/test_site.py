"""The documentation as a site: mkdocs builds it without a warning, and the page of the API has every public name."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import flash_attention

ROOT = Path(__file__).resolve().parents[2]


def test_site_has_the_docstring_of_every_public_name(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "reference/index.html").read_text(encoding="utf-8")
    names = [name for name in flash_attention.__all__ if name not in ("__version__", "Call")]
    assert [name for name in names if f'id="flash_attention.{name}"' not in page] == []
    assert not list(tmp_path.rglob("*.py"))
