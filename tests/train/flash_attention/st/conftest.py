"""Fixtures of tests that run whole programs."""

import subprocess

import pytest
from flash_attention import cli


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """Return the operator package, installed into a folder of its own."""
    folder = tmp_path_factory.mktemp("package")
    assert cli.main(["opp", "--out", str(folder / "opp")]) == 0
    subprocess.run(["bash", folder / "opp/install.sh", f"--install-path={folder}"], check=True, capture_output=True)
    return folder / "vendors/flash_attention"
