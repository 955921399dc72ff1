"""MindSpore's execution modes in tests."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import mindspore as ms
import pytest

MODES = {"graph": ms.GRAPH_MODE, "pynative": ms.PYNATIVE_MODE}

#: For the fixture `mode` and a backend. Graphs of backend math take seconds to compile: few tests of every day do it.
MODES_AND_BACKENDS = (
    ("pynative", "math"),
    ("pynative", "cpu"),
    ("graph", "cpu"),
    pytest.param("graph", "math", marks=pytest.mark.slow),
)

#: For the fixture `mode`, where a graph takes seconds to compile and another test of every day compiles the like.
GRAPHS_ARE_SLOW = pytest.mark.parametrize(
    "mode", ("pynative", pytest.param("graph", marks=pytest.mark.slow)), indirect=True
)


@contextlib.contextmanager
def in_mode(name: str) -> Iterator[None]:
    """Run cells and functions inside in the mode "graph" or "pynative"."""
    before = ms.get_context("mode")
    ms.set_context(mode=MODES[name])
    try:
        yield
    finally:
        ms.set_context(mode=before)
