"""The shell scripts: they parse, and choose a Python or say which one is wanted."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = [
    path
    for path in (ROOT / "test.sh", ROOT / "quickstart.sh", ROOT / ".ci/run", ROOT / "train/build.sh")
    if path.exists()
] + sorted((ROOT / "scripts").glob("*.sh"))


def shell(command: str, **environment: str) -> subprocess.CompletedProcess:
    """Return the result of a command in bash, in the repository."""
    return subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_parses(script: Path) -> None:
    done = shell(f"bash -n '{script}'")
    assert done.returncode == 0, done.stderr


OF_OPTIONS = [path for path in SCRIPTS if path.name in ("test.sh", "quickstart.sh", "build.sh", "release.sh")]


@pytest.mark.parametrize("script", OF_OPTIONS, ids=lambda path: path.name)
def test_help_from_any_folder(script: Path, tmp_path: Path) -> None:
    relative = os.path.relpath(script, tmp_path)
    done = subprocess.run(["bash", relative, "--help"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    assert script.name in done.stdout and "set -" not in done.stdout and "#" not in done.stdout
    if script.name in ("build.sh", "release.sh"):  # the others hand options on
        done = subprocess.run(["bash", relative, "--nonsense"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode == 2 and done.stdout == ""
        assert done.stderr.startswith("error: unknown option --nonsense\n") and script.name in done.stderr


def test_a_relative_python_is_of_the_folder_it_was_named_in(tmp_path: Path) -> None:
    """The environment cannot be made under a file; the message before names the interpreter."""
    (tmp_path / "python").symlink_to(sys.executable)
    (tmp_path / "venv").touch()
    for script in ("test.sh", "quickstart.sh"):
        done = subprocess.run(
            ["bash", ROOT / script],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            env={**os.environ, "PYTHON": "./python", "FLASH_ATTENTION_VENV": str(tmp_path / "venv")},
        )
        assert f"with {tmp_path}/python\n" in done.stdout and done.returncode


def test_ci_fails_when_a_step_fails() -> None:
    done = shell("./.ci/run", PYTHON="/bin/false", FLASH_ATTENTION_VENV="/dev/null/venv")
    assert done.returncode != 0


def test_named_python_is_used() -> None:
    done = shell(". scripts/environment.sh; find_python", PYTHON=sys.executable)
    assert done.stdout.strip() == sys.executable


def test_a_python_in_a_folder_with_a_space(tmp_path: Path) -> None:
    link = tmp_path / "my tools" / "python"
    link.parent.mkdir()
    link.symlink_to(sys.executable)
    assert shell(". scripts/environment.sh; find_python", PYTHON=str(link)).stdout.strip() == str(link)


@pytest.mark.parametrize("named", (True, False))
def test_without_a_home_it_says_what_to_set(named: bool) -> None:
    venv = "FLASH_ATTENTION_VENV=/nowhere" if named else "unset FLASH_ATTENTION_VENV"
    done = shell(f"unset HOME XDG_CACHE_HOME; {venv}; set -u; . scripts/environment.sh; find_python")
    assert "unbound" not in done.stderr
    assert ("set it, or FLASH_ATTENTION_VENV" in done.stderr) != named


def test_unsuitable_python_is_refused_with_what_is_wanted() -> None:
    done = shell(". scripts/environment.sh; find_python", PYTHON="/bin/false")
    assert done.returncode != 0
    assert "3.11, 3.10, 3.12" in done.stderr and "/bin/false" in done.stderr


def test_a_fresh_run_removes_what_is_cached_and_keeps_the_environment(tmp_path: Path) -> None:
    checkout, caches, venv = tmp_path / "checkout", tmp_path / "cache", tmp_path / "venv"
    for name in ("test.sh", "scripts/environment.sh", "tests/requirements.txt"):
        (checkout / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, checkout / name)
    removed = [
        checkout / "train/flash_attention/__pycache__/a.pyc",
        checkout / "train/flash_attention/backends/cpu/lib/libflash_attention_cpu.so",
        checkout / ".mypy_cache/a",
        caches / "tikemu/a.so",
        caches / "flash-attention/entries/a.py",
    ]
    kept = [venv / "lib/__pycache__/a.pyc", caches / "flash-attention/venv/a", checkout / "train/a.py"]
    for path in (*removed, *kept):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (venv / "bin").mkdir()
    (venv / "bin/python").write_text('#!/bin/sh\necho "python $*" $PYTHONPYCACHEPREFIX\n')  # every step succeeds
    (venv / "bin/python").chmod(0o755)
    shutil.copy(ROOT / "tests/requirements.txt", venv / ".installed-for-tests")
    places = {"FLASH_ATTENTION_VENV": venv, "XDG_CACHE_HOME": caches, "PYTHONPYCACHEPREFIX": tmp_path / "bytecode"}
    done = shell(f"'{checkout}/test.sh' --fresh -k x", **{name: str(path) for name, path in places.items()})
    assert done.returncode == 0, done.stderr
    assert not any(path.exists() for path in removed)
    assert all(path.exists() for path in kept)
    assert "python -m flash_attention.backends.cpu.build" in done.stdout
    # pytest gets the remaining arguments, and no PYTHONPYCACHEPREFIX: it finds the bytecode inside the environment.
    assert " --dist worksteal -k x\n== end (" in done.stdout
