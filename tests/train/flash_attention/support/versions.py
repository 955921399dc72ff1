"""Skip tests that need what a MindSpore release lacks, and say so."""

from __future__ import annotations

import mindspore as ms


def require(name: str) -> None:
    """Skips the test where MindSpore has no such attribute."""
    if not hasattr(ms, name):
        import pytest  # programs that need nothing else of it run where it is not installed

        pytest.skip(f"MindSpore {ms.__version__} has no {name}")


def dtype_named(name: str) -> ms.dtype.Type:
    """MindSpore's dtype of that name; skips the test where there is none (bfloat16 in 2.0)."""
    require(name)
    return getattr(ms, name)
