"""The wheel: built by build.sh from clean sources, installed and used where no compiler is, with every MindSpore.

With --versions, environments for other MindSpore releases stay beside the one of ./test.sh (2.7 GB each).
"""

import os
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.train.flash_attention.st.wheel_tools import copy_sources, environment, run, smoke

RELEASES = {  # MindSpore: Python, further pins
    "2.0.0": ("3.9", ["pillow<10"]),  # the nearest on PyPI to the 2.2 line of Ascend 910 clusters
    "2.7.1": ("3.10", []),
    "2.10.0": ("3.12", []),
}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sources = copy_sources(tmp_path_factory.mktemp("wheel"))
    run("bash", sources / "build.sh", cwd=Path("/"), PYTHON=sys.executable)
    (built,) = (sources / "dist").glob("flash_attention-*.whl")
    return built


@pytest.mark.timeout(900)
def test_wheel_works_without_a_compiler(wheel: Path, tmp_path: Path) -> None:
    assert wheel.name.endswith(f"-py3-none-linux_{platform.machine()}.whl")
    files = zipfile.ZipFile(wheel).namelist()
    assert "flash_attention/backends/cpu/lib/libflash_attention_cpu.so" in files
    assert "flash_attention/backends/cpu/csrc/dispatch.cpp" in files
    assert any(name.endswith("LICENSE") for name in files)

    python = environment(tmp_path / "venv")
    # The shared environment may have the package too, as ./quickstart.sh installs it there.
    install = ("-m", "pip", "install", "--no-index", "--no-deps", "--ignore-installed", wheel)
    run(python, *install, cwd=tmp_path, compiler=False)
    printed = run(tmp_path / "venv/bin/flash-attention", "info", cwd=tmp_path, compiler=False)
    assert str(tmp_path / "venv") in printed
    smoke(python, "cpu", cwd=tmp_path, compiler=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_setup_py_install(tmp_path: Path) -> None:
    sources = copy_sources(tmp_path)
    python = environment(tmp_path / "venv")
    run(python, "setup.py", "install", cwd=sources)
    where = run(python, "-c", "import flash_attention; print(flash_attention.__file__)", cwd=tmp_path)
    assert where.startswith(str(tmp_path / "venv"))
    smoke(python, "cpu", cwd=tmp_path)


@pytest.mark.versions
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("release", RELEASES)
def test_release(release: str, wheel: Path, tmp_path: Path) -> None:
    version, pins = RELEASES[release]
    beside = Path(os.environ.get("FLASH_ATTENTION_VENV", Path.home() / ".cache/flash-attention/venv")).parent
    folder = beside / f"mindspore-{release}-py{version}"
    python = folder / "bin" / "python"
    if not (folder / ".complete").exists():
        python = environment(folder, find_python(version), share=False)
        run(python, "-m", "pip", "install", f"mindspore=={release}", "numpy<2", "tqdm", *pins, cwd=tmp_path)
        (folder / ".complete").touch()
    run(python, "-m", "pip", "install", "--no-index", "--force-reinstall", "--no-deps", wheel, cwd=tmp_path)
    assert f"ok {release} cpu graph" in smoke(python, "cpu", "math", cwd=tmp_path)


def find_python(version: str) -> str:
    """An interpreter of that version with the venv module, from PATH or pyenv."""
    candidates = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", "import ensurepip"], capture_output=True).returncode == 0:
            return str(candidate)
    raise RuntimeError(f"no Python {version} with the venv module, neither on PATH nor in ~/.pyenv")
