"""Share fixtures between tests of the operators."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def tik() -> Iterator[ModuleType]:
    """Provide the emulator's tik module."""
    import tikemu

    tikemu.install(soc="Ascend910A")
    from tbe import tik

    yield tik
    tikemu.uninstall()
