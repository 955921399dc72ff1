"""What MindSpore releases lack: tests that need it are skipped, and say so."""

from __future__ import annotations

import mindspore as ms
import pytest


def dtype_named(name: str) -> ms.dtype.Type:
    """MindSpore's dtype of that name; skips the test where there is none (bfloat16 in 2.0)."""
    if not hasattr(ms, name):
        pytest.skip(f"MindSpore {ms.__version__} has no {name}")
    return getattr(ms, name)
