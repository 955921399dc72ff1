"""Attention classes of MindFormers for the Ascend 910, with our layer, on the virtual card."""

from pathlib import Path

import pytest

from tests.train.flash_attention.st.support.card_runs import verdicts
from tests.train.flash_attention.st.support.wheel_tools import run
from tests.virtual_ascend.card import card_python

pytestmark = [pytest.mark.card, pytest.mark.clients, pytest.mark.timeout(1200)]
CLASSES = "llama", "multi-head"


@pytest.fixture(scope="module")
def mindformers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with the package alone."""
    folder = tmp_path_factory.mktemp("mindformers")
    run(card_python(), "-m", "pip", "install", "-q", "--no-deps", "--target", folder, "mindformers==1.0.2", cwd=folder)
    return folder


@pytest.mark.parametrize("mode", ("graph", "pynative"))
def test_attention_classes(mindformers, tmp_path, mode):
    found = verdicts(card_python(), tmp_path, "card_mindformers.py", mode, str(mindformers), *CLASSES, minutes=15)
    assert tuple(found) == CLASSES
