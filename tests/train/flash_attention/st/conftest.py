"""Fixtures of tests that run whole programs."""

import re
import subprocess
from functools import partial

import numpy as np
import pytest
from flash_attention import cli

from tests.train.flash_attention.st.support.card_runs import card_run
from tests.train.flash_attention.st.support.wheel_tools import ROOT

PAGE = ROOT / "docs/virtual_ascend.md"


@pytest.fixture(scope="session")
def alone():
    """Return the losses of one card of MindSpore 2.0, as the page gives them."""
    row = re.search(r"^\| 1 \| +\| (.*) \|$", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    found = np.array(row[1].split(", "), float)
    assert len(found) == 4 and found[-1] < found[0] - 0.5
    return found


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    """Return the operator package, installed into a folder of its own."""
    folder = tmp_path_factory.mktemp("package")
    assert cli.main(["opp", "--out", str(folder / "opp")]) == 0
    subprocess.run(["bash", folder / "opp/install.sh", f"--install-path={folder}"], check=True, capture_output=True)
    return folder / "vendors/flash_attention"


@pytest.fixture
def card(release, tmp_path, request):
    """Return `card_run` for the release of the test. With GE it has the operator package."""
    variables = {}
    if release != "2.0.0":
        variables["ASCEND_CUSTOM_OPP_PATH"] = request.getfixturevalue("package")
    return partial(card_run, release, tmp_path, **variables)
