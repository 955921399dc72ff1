"""The documentation as a site: mkdocs builds it without a warning, and the API is complete."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import flash_attention

ROOT = Path(__file__).resolve().parents[2]


def test_site_is_built_without_warnings(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "api/index.html").read_text(encoding="utf-8")
    for heading in ("Parameters:", "Returns:", "Raises:", "Inputs", "Outputs"):
        assert heading in page
    assert ":func:" not in page and not list(tmp_path.rglob("*.py"))


def test_every_public_name_is_in_the_api() -> None:
    text = (ROOT / "docs/api.md").read_text(encoding="utf-8")
    shown = {name.rpartition(".")[2] for name in re.findall(r"^::: (\S+)", text, re.MULTILINE)}
    assert {name for name in flash_attention.__all__ if name != "__version__"} <= shown
