"""A clock for every test of a schedule."""

import pytest

from emulator.tests.support.timing_bench import Bench


@pytest.fixture
def bench():
    """Return one core with a clock that shows the executed operations."""
    return Bench()
