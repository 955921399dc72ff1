"""Options that every test folder shares: they choose the marked tests that run."""

import functools
import gc
import importlib.metadata
import signal
import sys
from collections.abc import Iterator
from fnmatch import fnmatchcase

import pytest

# A TIK program makes a million objects. The garbage collector looks at new objects a few times, not after every 700,
# and at old objects only between the modules.
gc.set_threshold(50_000, 20, 1000)

# A shell without job control starts background programs with SIGINT ignored; other parents ignore more signals.
# Programs that tests start would inherit this, and their exit status would not show how they ended.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.SIG_DFL)
signal.signal(signal.SIGCHLD, signal.SIG_DFL)

OPTIONAL_MARKS = ("slow", "system", "distributed", "builds", "versions", "clients", "card", "arm")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add one switch for each optional mark, and the device that TIK operators run on."""
    group = parser.getgroup("flash-attention")
    for mark in OPTIONAL_MARKS:
        group.addoption(f"--{mark}", action="store_true", help=f"also run the tests marked {mark}")
    group.addoption(
        "--asynchronous",
        action="store_true",
        help="run the operators of every test in the background, as MindSpore does by default",
    )
    group.addoption(
        "--device",
        choices=("emulator", "ascend"),
        default="emulator",
        help="where the TIK operators run: tikemu on this machine, or CANN on an Ascend device",
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list) -> None:
    """Mark slow tests, deselect tests that no option asks for, and put asynchronous tests last."""
    unknown = mark_slow(items)
    whole = not config.getoption("lf", False) and not any("::" in argument for argument in config.args)
    if unknown and whole:
        raise pytest.UsageError(f"mark daily: no case is named by {', '.join(sorted(unknown))}")
    left_out = {mark for mark in OPTIONAL_MARKS if not config.getoption(f"--{mark}")}
    if config.getoption("--slow"):
        left_out.discard("system")  # the slow ones of all
    if config.getoption("--device") != "ascend":
        left_out.add("ascend")
    dropped = [item for item in items if left_out.intersection(mark.name for mark in item.iter_markers())]
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        without = set(dropped)
        items[:] = [item for item in items if item not in without]
    # Last, because the threads of MindSpore that they wake go on spinning through the tests that follow.
    items.sort(key=lambda item: item.get_closest_marker("asynchronous") is not None)


def mark_slow(items: list) -> set[str]:
    """Mark cases slow if the mark `daily` does not name them; return unused patterns.

    With `since` the cases show faults of MindSpore before that release. Under an older MindSpore none is slow.
    """
    unused, used = set(), set()
    for item in items:
        mark = item.get_closest_marker("daily")
        if mark is None:
            continue
        patterns = {pattern: f"{item.nodeid.partition('[')[0]}[{pattern}]" for pattern in mark.args}
        named = [name for pattern, name in patterns.items() if fnmatchcase(item.callspec.id, pattern)]
        unused.update(patterns.values())
        used.update(named)
        if not named and installed_mindspore() >= mark.kwargs.get("since", (0,)):
            item.add_marker(pytest.mark.slow)
    return unused - used


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
