"""The long sweeps over the native kernel run with --slow; what is quick runs every day."""

import pytest

QUICK = ("test_arguments", "test_band", "test_philox", "test_order")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list) -> None:
    for item in items:
        if "native" in item.path.parts and item.path.stem not in QUICK:
            item.add_marker(pytest.mark.slow)
