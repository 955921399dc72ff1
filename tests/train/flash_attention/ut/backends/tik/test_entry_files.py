"""Test the place of entries' files, and the error if there is none."""

from __future__ import annotations

from pathlib import Path

import pytest
from flash_attention.backends.tik import entries


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("FLASH_ATTENTION_ENTRIES", str(tmp_path / "file"))
    with pytest.raises(RuntimeError, match="cannot be written: .*file.*; set FLASH_ATTENTION_ENTRIES"):
        entries.load("nothing", "def nothing(): ...")


def test_a_user_without_a_home_is_told_what_to_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FLASH_ATTENTION_ENTRIES", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", _homeless)
    with pytest.raises(RuntimeError, match="no home. Set FLASH_ATTENTION_ENTRIES"):
        entries.folder()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert entries.folder().is_relative_to(tmp_path)


def _homeless() -> Path:
    """Raise the error of Path.home for a user that the system does not know."""
    raise RuntimeError("no home.")
