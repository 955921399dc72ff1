"""A clock for every test of a schedule."""

from __future__ import annotations

import pytest

from tests.emulator.support.timing_bench import Bench


@pytest.fixture
def bench() -> Bench:
    """Return one core whose clock shows what is executed."""
    return Bench()
