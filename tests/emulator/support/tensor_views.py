"""Shorthands of the tests of tensors."""

from __future__ import annotations

import pytest
from tikemu import tik
from tikemu.program import nodes


@pytest.fixture
def ub(kernel):
    """Makes tensors in the Unified Buffer."""
    return lambda shape, dtype="float16", name="t": kernel.Tensor(dtype, shape, tik.scope_ubuf, name)


def offset(tensor):
    """The offset of a view as text."""
    return nodes.describe(tensor._node.offset)
