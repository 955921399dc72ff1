"""Test each way to install from source: in a fresh clone, by a new environment that has nothing in it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from emulator.virtual_ascend.tests.environments import environment, run

ROOT = Path(__file__).resolve().parents[2]
# Takes a sixth of the time. Without dependencies: a release installs them.
QUICKLY = {"CXXFLAGS": "-O0"}
ALONE = ("-m", "pip", "install", "--no-deps")

# Needs no NumPy, as the build.
KERNEL = """
import ctypes
from flash_attention.backends.cpu.build import LIBRARY
ctypes.CDLL(str(LIBRARY)).flash_attention_isa
print(LIBRARY)
"""


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a clone of this checkout, with changes to files that git has."""
    if not shutil.which("git") or subprocess.run(["git", "rev-parse"], cwd=ROOT, capture_output=True).returncode:
        pytest.skip("no git, or no checkout of it")
    changed = run("git", "-c", "user.name=x", "-c", "user.email=x@x", "stash", "create", cwd=ROOT).strip()
    run("git", "clone", "--quiet", ROOT, "clone", cwd=tmp_path)
    if changed:
        run("git", "fetch", "--quiet", ROOT, changed, cwd=tmp_path / "clone")
        run("git", "checkout", "--quiet", changed, cwd=tmp_path / "clone")
    return tmp_path / "clone"


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """Return the Python of an environment with nothing but pip."""
    return environment(tmp_path / "venv", share=False)


def check_kernel(python: Path, place: Path) -> None:
    """Check that the installed kernel is under `place` and loads, and the command runs."""
    assert run(python, "-c", KERNEL, cwd=place).startswith(str(place))
    assert "NumPy is not installed" not in run(python.parent / "flash-attention", "info", cwd=place)


@pytest.mark.builds
@pytest.mark.parametrize("options", [(), ("-e",)], ids=("copied", "editable"))
def test_from_the_clone(options: tuple, clone: Path, python: Path) -> None:
    run(python, *ALONE, *options, "./train", cwd=clone, **QUICKLY)
    check_kernel(python, clone if options else python.parents[1])


@pytest.mark.builds
def test_setup_py(clone: Path, python: Path) -> None:
    """Setuptools of 2021 is all there is."""
    run(python, "-m", "pip", "uninstall", "--yes", "wheel", "setuptools", cwd=clone)
    run(python, *ALONE, "setuptools==59.6.0", cwd=clone)
    run(python, "setup.py", "install", cwd=clone / "train", **QUICKLY)
    check_kernel(python, python.parents[1])


@pytest.mark.builds
def test_archive_of_sources_and_the_wheel_made_of_it(clone: Path, python: Path) -> None:
    run(python, "-m", "pip", "install", "build", cwd=clone)
    run(python, "-m", "build", "train", cwd=clone, **QUICKLY)
    (wheel,), (_,) = (clone / "train/dist").glob("*.whl"), (clone / "train/dist").glob("*.tar.gz")
    run(python, *ALONE, wheel, cwd=clone)
    check_kernel(python, python.parents[1])


@pytest.mark.builds
def test_wheel_of_build_sh(clone: Path, python: Path) -> None:
    """The folder is another one, and PYTHON relative to it."""
    run("bash", "../clone/train/build.sh", cwd=python.parents[1], PYTHON="bin/python", **QUICKLY)
    (wheel,) = (clone / "train/dist").glob("*.whl")
    run(python, *ALONE, wheel, cwd=clone)
    check_kernel(python, python.parents[1])


@pytest.mark.builds
def test_emulator_and_virtual_card(clone: Path, python: Path) -> None:
    run(python, "-m", "pip", "install", "./emulator", "./emulator/virtual_ascend", cwd=clone)
    run(python.parent / "tikemu", "--help", cwd=python.parent)
    run(python.parent / "virtual-ascend", "--help", cwd=python.parent)


@pytest.mark.builds
@pytest.mark.timeout(1800)
def test_release_to_its_end(clone: Path) -> None:
    variables = {name: os.environ[name] for name in ("FLASH_ATTENTION_VENV",) if name in os.environ}
    printed = run("bash", "scripts/release.sh", "--out", "dist", cwd=clone, **QUICKLY, **variables)
    assert " passed" in printed and "== in " in printed
    assert len((clone / "dist/SHA256SUMS").read_text().splitlines()) >= 9


MUST_BE = {
    "train": "needs Python 3.9 to 3.12, this is {}; MindSpore's wheels end at 3.12",
    "emulator": "needs Python 3.9 or newer, this is {}",
    "emulator/virtual_ascend": "needs Python 3.9 or newer, this is {}",
}
OLD = "setuptools 59.6.0 does not read pyproject.toml"


@pytest.mark.parametrize(
    ("folder", "python", "said"),
    [
        *((folder, (3, 8, 1), said.format("3.8")) for folder, said in MUST_BE.items()),
        ("train", (3, 13, 0), MUST_BE["train"].format("3.13")),
        ("emulator", (3, 9, 1), OLD),
        ("emulator/virtual_ascend", (3, 9, 1), OLD),
    ],
)
def test_what_cannot_be_installed_is_refused(folder: str, python: tuple, said: str) -> None:
    """Setuptools before 61 would install nothing, as UNKNOWN 0.0.0; 61 knows no license of setup.py."""
    program = f"""
import runpy, sys, types
sys.version_info = {python}
sys.modules["setuptools"] = types.ModuleType("setuptools")
sys.modules["setuptools"].__version__ = "59.6.0"
runpy.run_path({str(ROOT / folder / "setup.py")!r})
"""
    done = subprocess.run([sys.executable, "-I", "-c", program], capture_output=True, text=True)
    assert done.returncode == 1 and done.stderr.startswith("error: ") and said in done.stderr
