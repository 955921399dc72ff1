"""A bench for every test of an instruction."""

import pytest

from emulator.tests.support.bench import Bench


@pytest.fixture
def bench():
    """Return the memories of a core. They are in strict mode if the test asks for that before."""
    return Bench()
