"""Share fixtures between the tests of the virtual card."""

from pathlib import Path

import pytest

from emulator.virtual_ascend.tests.card import card_python


@pytest.fixture(scope="session")
def python() -> Path:
    """Return the interpreter that has MindSpore 2.0.0."""
    return card_python()
