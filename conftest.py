"""Options that every test folder shares: they choose the marked tests that run."""

from __future__ import annotations

import collections
import functools
import gc
import importlib.metadata
import itertools
import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

# A TIK program makes a million objects. The garbage collector looks at new objects a few times, not after every 700,
# and at old objects only between the modules.
gc.set_threshold(50_000, 20, 1000)

# A shell without job control starts background programs with SIGINT ignored; other parents ignore more signals.
# Programs that tests start would inherit this, and their exit status would not show how they ended.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)

OPTIONAL_MARKS = {"slow", "system", "distributed", "builds", "versions", "clients", "card", "arm", "fuzz"}


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two levels above every day, and the device of the TIK operators."""
    group = parser.getgroup("flash-attention")
    group.addoption("--all", action="store_true", help="also run the marked tests, but for the virtual card's: hours")
    group.addoption(
        "--card", action="store_true", help="run the tests of the virtual card, with --all the slow ones too"
    )
    group.addoption(
        "--device",
        choices=("emulator", "ascend"),
        default="emulator",
        help="where the TIK operators run: tikemu on this machine, or CANN on an Ascend device",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Leave out files whose tests are all of the virtual card. They take a tenth of the time to collect."""
    name, asked = collection_path.name, config.getoption("--card") or "card" in config.getoption("-m")
    return True if name.startswith("test_card_") and name != "test_card_kernels.py" and not asked else None


def pytest_collection_modifyitems(config: pytest.Config, items: list) -> None:
    """Mark slow tests, deselect tests of other levels, and put asynchronous tests last."""
    mark_slow(items)
    asked = OPTIONAL_MARKS & set(re.findall(r"\w+", config.getoption("-m")))  # whoever names a mark wants its tests
    if asked:
        asked.add("system")  # the slow tests of all, for example
    if config.getoption("--all"):
        asked.update(OPTIONAL_MARKS - {"card"})
    if config.getoption("--card"):
        asked.add("card")
    only_cards = config.getoption("--card")

    def runs(item: pytest.Item) -> bool:
        marks = {mark.name for mark in item.iter_markers()}
        return marks & OPTIONAL_MARKS <= asked and (not only_cards or "card" in marks)

    dropped = [item for item in items if not runs(item)]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        without = set(dropped)
        items[:] = [item for item in items if item not in without]
    # Last, because the threads of MindSpore that they wake go on spinning through the tests that follow.
    items.sort(key=lambda item: item.get_closest_marker("asynchronous") is not None)


def mark_slow(items: list) -> None:
    """Mark cases slow of the tests marked `spread`: of the product of their axes a choice runs every day.

    The choice has every value of every axis; `spread(2)` has every pair of values of two axes. Of equally good cases it
    takes the mode that it has less often, then the first. A graph of backend math or emulator counts as four cases.
    With `since` the cases show faults of MindSpore before that release. Under an older MindSpore none is slow.
    """
    tests: dict[str, dict] = {}
    for item in items:
        mark = item.get_closest_marker("spread")
        old = mark is not None and installed_mindspore() < mark.kwargs.get("since", (0,))
        if mark is None or old or item.get_closest_marker("slow") is not None:
            continue
        values = sorted((name, repr(value)) for name, value in item.callspec.params.items())
        together = set(itertools.combinations(values, *(mark.args or (1,))))
        tests.setdefault(item.nodeid.partition("[")[0], {})[item] = together
    for left in tests.values():
        missing, modes = set().union(*left.values()), collections.Counter()
        while missing:
            chosen = max(
                left,
                key=lambda case: (len(left[case] & missing) / cost(case), -modes[case.callspec.params.get("mode")]),
            )
            modes[mode_of(chosen)] += 1
            missing -= left.pop(chosen)
        for case in left:
            case.add_marker(pytest.mark.slow)


def mode_of(item: pytest.Item) -> object:
    """Return the mode of a case, None if it is no parameter."""
    return item.callspec.params.get("mode")


def cost(item: pytest.Item) -> int:
    """Return about how many other cases take as long as a case."""
    words = {value for value in item.callspec.params.values() if isinstance(value, str)}
    return 4 if words & {"graph", "jit", "data of a graph"} and words & {"math", "emulator"} else 1


@functools.lru_cache
def installed_mindspore() -> tuple[int, ...]:
    """Return the first two numbers of MindSpore's version."""
    try:
        return tuple(map(int, importlib.metadata.version("mindspore").split(".")[:2]))
    except importlib.metadata.PackageNotFoundError:  # the kernels' own tests need none
        return sys.maxsize, 0


@pytest.fixture(autouse=True, scope="module")
def nothing_old_is_visited() -> None:
    """Take what exists before a module's tests out of the garbage collector's sight.

    MindSpore collects garbage at every compilation. A visit to all imported and cached objects takes longer than the
    compilation of a small graph.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def same_path() -> Iterator[None]:
    """Leave sys.path as the test found it.

    MindSpore's compiler adds the folders of the sources that it parses. Some modules there have the names of packages:
    a program that a later test starts would import them instead of the packages.
    """
    path = list(sys.path)
    yield
    sys.path[:] = path


@pytest.fixture(scope="session")
def device(request: pytest.FixtureRequest) -> str:
    """Return the value of --device: "emulator" or "ascend"."""
    return request.config.getoption("--device")
