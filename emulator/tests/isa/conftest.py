"""A bench for every test of an instruction."""

from __future__ import annotations

import pytest

from emulator.tests.support.bench import Bench


@pytest.fixture
def bench() -> Bench:
    """Return the memories of a core. They are in strict mode if the test asks for that before."""
    return Bench()
