"""The wheel is pure, and works where nothing but NumPy is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import numpy as np
import pytest

PROJECT = Path(__file__).resolve().parents[2] / "emulator"

PROGRAM = """
import tikemu

tikemu.install(soc="Ascend910A")
from tbe import tik


def add_one():
    instance = tik.Tik()
    x = instance.Tensor("float16", (128,), tik.scope_gm, "x")
    y = instance.Tensor("float16", (128,), tik.scope_gm, "y")
    ub = instance.Tensor("float16", (128,), tik.scope_ubuf, "ub")
    instance.data_move(ub, x, 0, 1, 8, 0, 0)
    instance.vec_adds(128, ub, ub, 1.0, 1, 8, 8)
    instance.data_move(y, ub, 0, 1, 8, 0, 0)
    instance.BuildCCE("add_one", [x], [y])
    return instance
"""


def _run(*command: object, cwd: Path) -> str:
    """Output of a command that must succeed, away from this checkout and with an empty cache."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "TIKEMU"))}
    environment["XDG_CACHE_HOME"] = str(cwd / "cache")
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel, built from a copy of the sources."""
    pytest.importorskip("setuptools", "61")
    folder = tmp_path_factory.mktemp("wheel")
    ignore = shutil.ignore_patterns("build", "*.egg-info", "__pycache__")
    sources = shutil.copytree(PROJECT, folder / "emulator", ignore=ignore)
    build = ("-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "--no-index", "-w", folder, sources)
    _run(sys.executable, *build, cwd=folder)
    (built,) = folder.glob("*.whl")
    return built


@pytest.mark.slow  # pip builds a wheel
def test_the_wheel_is_pure_and_complete(wheel: Path) -> None:
    assert wheel.name.endswith("-py3-none-any.whl")
    files = zipfile.ZipFile(wheel).namelist()
    assert not [name for name in files if name.endswith(".so")]
    assert {"tikemu/py.typed", "tikemu/native/vector.c", "tikemu/native/vector.h"} <= set(files)
    assert any(name.endswith("LICENSE") for name in files)


@pytest.mark.slow  # a virtual environment of its own
@pytest.mark.parametrize("helper", [False, True], ids=["without helper", "with helper"])
def test_a_program_runs_from_the_wheel(wheel: Path, tmp_path: Path, helper: bool) -> None:
    _run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    site = _run(python, "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])", cwd=tmp_path).strip()
    Path(site, "numpy.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    _run(python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--ignore-installed", wheel, cwd=tmp_path)
    if helper:
        if not shutil.which("cc"):
            pytest.skip("needs a C compiler")
        assert _run(python, "-m", "tikemu.build_native", cwd=tmp_path).startswith(str(tmp_path / "cache"))
    info = _run(tmp_path / "venv/bin/tikemu", "info", cwd=tmp_path)
    assert f"native helper: {'in use' if helper else 'not in use'}" in info

    (tmp_path / "program.py").write_text(PROGRAM)
    np.save(tmp_path / "x.npy", np.arange(128, dtype=np.float16))
    run = ("run", "program.py:add_one", "--feed", "x=x.npy", "--out", "results", "--report")
    report = _run(tmp_path / "venv/bin/tikemu", *run, cwd=tmp_path)
    assert "kernel add_one on Ascend910A" in report
    (result,) = (tmp_path / "results").glob("*y*.npy")
    assert (np.load(result) == np.arange(1, 129)).all()
