"""A clock for every test of a schedule."""

from __future__ import annotations

import pytest

from emulator.tests.support.timing_bench import Bench


@pytest.fixture
def bench() -> Bench:
    """Return one core with a clock that shows the executed operations."""
    return Bench()
