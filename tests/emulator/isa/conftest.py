"""A bench for every test of an instruction."""

from __future__ import annotations

import pytest

from tests.emulator.support.bench import Bench


@pytest.fixture
def bench() -> Bench:
    """The memories of a core; in strict mode where a test asks for that before it asks for the bench."""
    return Bench()
