"""MindSpore's execution modes in tests."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterable, Iterator

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


@contextlib.contextmanager
def in_mode(name: str) -> Iterator[None]:
    """Inside, cells and functions run in the mode "graph" or "pynative"."""
    before = ms.get_context("mode")
    ms.set_context(mode=MODES[name])
    try:
        yield
    finally:
        ms.set_context(mode=before)


def both_modes(names: Iterable[str], daily: Collection[str] = ()) -> list:
    """Every name in PYNATIVE and in a graph, as parameters "mode, name" with mode indirect.

    To compile a graph takes seconds: those of names that are not `daily` are slow.
    """
    return [
        pytest.param(mode, name, marks=[pytest.mark.slow] if mode == "graph" and name not in daily else [])
        for mode in ("pynative", "graph")
        for name in names
    ]
