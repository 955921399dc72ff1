"""Test that attention's first call and `flash-attention info` notice another flash_attention on the path."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import flash_attention
import numpy as np
import pytest
from flash_attention import __version__, cli
from flash_attention.backends import registry
from mindspore import Tensor

TRAIN = Path(flash_attention.__file__).resolve().parents[1]


def package(folder: Path, version: str) -> None:
    """Write a package of our name that knows only its version."""
    (folder / "flash_attention").mkdir(parents=True)
    (folder / "flash_attention/__init__.py").write_text(f'__version__ = "{version}"\n', encoding="utf-8")


def distribution(folder: Path, name: str, version: str, *, lists_files: bool = False) -> None:
    """Write metadata of an installed distribution that provides a package of our name."""
    metadata = folder / f"{name}-{version}.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n", encoding="utf-8")
    if lists_files:
        (metadata / "RECORD").write_text("flash_attention/__init__.py,,\n", encoding="utf-8")
    else:
        (metadata / "top_level.txt").write_text("flash_attention\n", encoding="utf-8")


def python(program: str, *folders: Path) -> subprocess.CompletedProcess:
    """Run a program with these folders behind this copy on the path, and no others."""
    program = f"import sys; sys.path[1:1] = {[str(TRAIN), *map(str, folders)]}; {program}"
    done = subprocess.run([sys.executable, "-S", "-c", program], capture_output=True, text=True, env={})
    assert done.returncode == 0, done.stderr
    return done


def warned_with(*folders: Path) -> str:
    """Return the package's warnings when these folders follow this copy on the path."""
    said = (
        "from flash_attention import __version__, duplicate_installs as it; it.warn_of_duplicate_installs(__version__)"
    )
    return python(said, *folders).stderr


def test_alone_it_says_nothing(tmp_path: Path) -> None:
    assert warned_with(tmp_path) == ""


def test_a_copy_of_the_same_version_is_no_stranger(tmp_path: Path) -> None:
    package(tmp_path, __version__)
    distribution(tmp_path, "flash_attention", __version__)
    assert warned_with(tmp_path) == ""


def test_a_package_of_another_version_is_named(tmp_path: Path) -> None:
    package(tmp_path, "1.0.0")
    said = warned_with(tmp_path)
    assert "RuntimeWarning" in said and f"version 1.0.0 in {tmp_path / 'flash_attention'}" in said
    assert f"imported is version {__version__} in {TRAIN / 'flash_attention'}" in said


@pytest.mark.parametrize("lists_files", (False, True))
@pytest.mark.parametrize("name, version", [("flash-attention", "23.12.11"), ("somebody-s-attention", __version__)])
def test_a_distribution_with_our_package_is_named(name: str, version: str, lists_files: bool, tmp_path: Path) -> None:
    distribution(tmp_path, name, version, lists_files=lists_files)
    assert f"distribution {name} {version} in {tmp_path}" in warned_with(tmp_path)


def test_other_distributions_are_left_alone(tmp_path: Path) -> None:
    distribution(tmp_path, "numpy", "1.26.4")
    (tmp_path / "numpy-1.26.4.dist-info/top_level.txt").write_text("numpy\n", encoding="utf-8")
    assert warned_with(tmp_path) == ""


def test_the_import_reads_no_metadata(tmp_path: Path) -> None:
    """The import also prints nothing. Metadata would take long: a path may have hundreds of distributions."""
    distribution(tmp_path, "flash-attention", "1.0.0")
    watch = "sys.addaudithook(lambda event, given: print(given[0]) if event == 'open' else None)"
    done = python(f"{watch}; import flash_attention", tmp_path)
    assert done.stderr == "" and "flash_attention" in done.stdout and "dist-info" not in done.stdout


def test_the_first_call_warns_and_later_ones_do_not(tmp_path: Path, monkeypatch) -> None:
    package(tmp_path, "1.0.0")
    monkeypatch.syspath_prepend(tmp_path)
    registry._warn_of_duplicate_installs.cache_clear()
    for length in (23, 29):  # shapes that no other test calls
        tensor = Tensor(np.zeros((1, 1, length, 8), np.float32))
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            flash_attention.FlashAttention(8)(tensor, tensor, tensor)
        strangers = [warning for warning in said if "version 1.0.0 in" in str(warning.message)]
        assert len(strangers) == (length == 23)


@pytest.mark.parametrize("entry", ("x" * 300, "not_here", "archive.zip"))
def test_an_entry_of_the_path_that_is_no_folder_hides_nothing(entry: str, tmp_path: Path) -> None:
    package(tmp_path / "readable", "2.0.0")
    (tmp_path / "archive.zip").touch()
    assert "version 2.0.0" in warned_with(tmp_path / entry, tmp_path / "readable")


def test_info_lists_every_copy(tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch) -> None:
    package(tmp_path, __version__)
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["info"]) == 0
    (line,) = [line for line in capsys.readouterr().out.splitlines() if str(tmp_path) in line]
    assert line.split()[:4] == ["also", "on", "the", "path"] and f"version {__version__}" in line
