"""The shell scripts: they parse, and choose a Python or say which one is wanted."""

import os
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
    """The result of a command in bash, in the repository."""
    return subprocess.run(
        ["bash", "-c", command], cwd=ROOT, capture_output=True, text=True, env={**os.environ, **environment}
    )


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_script_parses(script: Path) -> None:
    done = shell(f"bash -n '{script}'")
    assert done.returncode == 0, done.stderr


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
    assert "3.10, 3.11 or 3.12" in done.stderr and "/bin/false" in done.stderr
