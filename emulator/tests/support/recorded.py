"""Read what the front end has recorded, and make tensors to record."""

from __future__ import annotations

import pytest
from tikemu import tik
from tikemu.program import nodes


def body(kernel):
    """Return the statements that a kernel has recorded."""
    return kernel._recorder.program.body.statements


def lines(kernel):
    """Return the recorded program without its head, unindented by one level."""
    return [line[4:] for line in str(kernel).splitlines()[1:]]


@pytest.fixture
def ub(kernel):
    """Make tensors in the Unified Buffer."""
    return lambda shape, dtype="float16", name="t": kernel.Tensor(dtype, shape, tik.scope_ubuf, name)


def offset(tensor):
    """Return the offset of a view as text."""
    return nodes.describe(tensor._node.offset)
