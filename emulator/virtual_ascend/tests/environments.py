"""Environments with MindSpore that the tests make once and keep."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

RELEASES = {  # Python: MindSpore, further pins
    # The nearest on PyPI to the 2.2 line of Ascend 910 clusters; pyelftools is what virtual_ascend needs beside it.
    "3.9": ("2.0.0", ["pillow<10", "pyelftools"]),
    "3.10": ("2.7.1", []),
    "3.11": ("2.10.0", []),
    "3.12": ("2.10.0", []),
}


def run(*command, cwd: Path, compiler: bool = True, **environment) -> str:
    """Return the output of a command away from this checkout, optionally without a compiler.

    The command must succeed.
    """
    clean = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "FLASH_ATTENTION"))}
    clean["OMP_NUM_THREADS"] = "1"
    if not compiler:
        clean["PATH"] = str(Path(command[0]).parent)
        clean["CXX"] = clean["CC"] = "/nonexistent/compiler"
    clean.update(environment)
    done = subprocess.run([str(part) for part in command], cwd=cwd, env=clean, capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout


def environment(folder: Path, python: str = sys.executable, share: bool = True) -> Path:
    """Return the Python of a new virtual environment. With `share` it also sees what is installed beside `python`."""
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    interpreter = folder / "bin" / "python"
    if share:
        ask = "-c", "import sysconfig; print(sysconfig.get_paths()['purelib'])"
        site, theirs = (run(one, *ask, cwd=folder) for one in (interpreter, python))
        (Path(site.strip()) / "shared.pth").write_text(theirs)
    return interpreter


def kept_environment(name: str, contents: str, make: Callable[[Path], object]) -> Path:
    """Return the Python of an environment that is kept beside the tests' own, as `kept`."""
    return kept(name, contents, make) / "bin" / "python"


def kept(name: str, contents: str, make: Callable[[Path], object]) -> Path:
    """Return a folder that is kept beside the environment of the tests.

    `make(folder)` makes it at the first call and when `contents` changes; processes that come meanwhile wait.
    """
    beside = Path(os.environ.get("FLASH_ATTENTION_VENV", Path.home() / ".cache/flash-attention/venv")).parent
    beside.mkdir(parents=True, exist_ok=True)
    folder = beside / name
    stamp = folder / ".complete"
    with open(beside / f"{name}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not stamp.exists() or stamp.read_text() != contents:
            make(folder)
            stamp.write_text(contents)
    return folder


def mindspore_environment(version: str) -> Path:
    """Return the Python with this MindSpore release; make its environment once and keep it."""
    release, pins = RELEASES[version]
    packages = [f"mindspore=={release}", "numpy<2", "tqdm", *pins]

    def make(folder: Path) -> None:
        python = environment(folder, find_python(version), share=False)
        run(python, "-m", "pip", "install", *packages, cwd=folder)

    return kept_environment(f"mindspore-{release}-py{version}", " ".join(packages), make)


# Development wheels of the versions that drive the first Ascend 910 through GE.
DEVELOPMENT = {"2.6.0": "2.6.0.dev20250323", "2.5.0": "2.5.0.dev20250202"}


def development_environment(release: str) -> Path:
    """Return a Python 3.11 with a development wheel of MindSpore. It is made at the first call, and kept.

    Raises:
        RuntimeError: the package index does not have the wheel any more.
    """
    packages = [f"mindspore-dev=={DEVELOPMENT[release]}", "numpy<2", "tqdm", "pyelftools"]

    def make(folder: Path) -> None:
        python = environment(folder, find_python("3.11"), share=False)
        install = [str(python), "-m", "pip", "install", *packages]
        done = subprocess.run(install, cwd=folder, capture_output=True, text=True)
        if done.returncode:
            said = done.stderr.strip().splitlines() or ["pip said nothing"]
            reason = next((line for line in reversed(said) if line.startswith("ERROR")), said[-1])
            raise RuntimeError(f"{packages[0]} cannot be installed: {reason}")

    return kept_environment(f"mindspore-{release}-py3.11", " ".join(packages), make)


def find_python(version: str) -> str:
    """Return an interpreter of that version with the venv module, from PATH or pyenv."""
    candidates = [shutil.which(f"python{version}"), *Path.home().glob(f".pyenv/versions/{version}.*/bin/python")]
    for candidate in filter(None, candidates):
        if subprocess.run([candidate, "-c", "import ensurepip"], capture_output=True).returncode == 0:
            return str(candidate)
    raise RuntimeError(f"no Python {version} with the venv module, neither on PATH nor in ~/.pyenv")
