"""What the tests of the front end share."""

from __future__ import annotations


def body(kernel):
    """The statements that a kernel has recorded."""
    return kernel._recorder.program.body.statements


def lines(kernel):
    """The recorded program without its head, unindented by one level."""
    return [line[4:] for line in str(kernel).splitlines()[1:]]
