"""Skip tests that need a feature of later MindSpore releases, and say so."""

from __future__ import annotations

import mindspore as ms


def require(name: str) -> None:
    """Skip the test if MindSpore has no such attribute."""
    if not hasattr(ms, name):
        import pytest  # imported here: programs without tests use this module without pytest

        pytest.skip(f"MindSpore {ms.__version__} has no {name}")


def dtype_named(name: str) -> ms.dtype.Type:
    """Return the MindSpore dtype of that name. Without one (bfloat16 in 2.0) the test is skipped."""
    require(name)
    return getattr(ms, name)
