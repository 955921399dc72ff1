"""Fixtures of the package's tests."""

import inspect
import os
import subprocess
import sys

import pytest

# Before each task the native kernel fills its memory and its results with garbage, here and in the processes of tests.
os.environ.setdefault("FLASH_ATTENTION_CPU_POISON", "1")


@pytest.fixture(autouse=True, scope="session")
def sources_are_read_once():
    """Keep the sources of functions.

    MindSpore's compiler cuts them out of files for every graph, which takes a tenth of its time.
    """
    read, cut = inspect.getsourcelines, {}

    def remembered(function):
        # Functions of one decorator share the code of its wrapper, but the wrapped function has the source.
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is None:
            return read(function)
        if id(code) not in cut:
            cut[id(code)] = code, read(function)  # kept with the code object, so that no other object gets its id
        lines, number = cut[id(code)][1]
        return list(lines), number

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inspect, "getsourcelines", remembered)
        yield


@pytest.fixture(scope="session")
def run_python():
    """Run a program in a fresh interpreter with this one's packages; return the output.

    With `errors` it returns what the program wrote to stderr.
    """

    def run(*arguments: str, timeout: float = 240, errors: bool = False, **environment: str) -> str:
        variables = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **environment}
        done = subprocess.run(
            [sys.executable, *arguments], capture_output=True, text=True, timeout=timeout, env=variables
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stderr if errors else done.stdout

    return run


@pytest.fixture(autouse=True)
def each_operator_ends_first(request: pytest.FixtureRequest) -> None:
    """Let each operator in PYNATIVE end first. Not if the test is marked asynchronous or all tests run.

    By default MindSpore hands operators to threads, which spin while they wait: up to three times the processor time.
    """
    mindspore = sys.modules.get("mindspore")
    if mindspore is None:
        return
    marked = request.node.get_closest_marker("asynchronous") is not None
    waits = not (marked or request.config.getoption("--all"))
    if mindspore.get_context("pynative_synchronize") != waits:  # MindSpore warns at each call of set_context
        mindspore.set_context(pynative_synchronize=waits)


@pytest.fixture(autouse=True)
def nothing_is_left_of_other_tests() -> None:
    """Restore PYNATIVE, also after commands, and clear a failed gradient.

    An exception in a differentiated function leaves an open gradient. It would differentiate a graph of a later test.
    MindSpore 2.10 also takes later gradients for higher gradients, in which `tensor[0]` fails
    (st/mindspore_faults/index_after_exception.py).
    """
    mindspore = sys.modules.get("mindspore")
    if mindspore is not None:
        from mindspore.nn.cell import _pynative_executor

        if mindspore.get_context("mode") != mindspore.PYNATIVE_MODE:
            mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
        if _pynative_executor.grad_flag():
            _pynative_executor.clear_res()
            _pynative_executor.set_grad_flag(False)


@pytest.fixture(params=("pynative", "graph"))
def mode(request):
    """Run the test in both modes of MindSpore; return the mode's name."""
    import mindspore

    mindspore.set_context(mode={"graph": mindspore.GRAPH_MODE, "pynative": mindspore.PYNATIVE_MODE}[request.param])
    return request.param


@pytest.fixture(params=("native", "composed"))
def update(request):
    """Return the way in which caches are updated: by the native kernel, or composed of operators as on a device."""
    if request.param == "composed":
        request.getfixturevalue("composed")
    return request.param


@pytest.fixture
def composed(monkeypatch):
    """Update caches as on a device."""
    from flash_attention import cache_update

    cells = cache_update.append_cell, cache_update.reorder_cell
    for cell in cells:
        cell.cache_clear()
    monkeypatch.setattr(cache_update, "serves_native", lambda: False)
    yield
    for cell in cells:
        cell.cache_clear()


@pytest.fixture
def cores(monkeypatch):
    """Give backend emulator a chip with other cores: a function of their number."""
    from flash_attention import prepare
    from flash_attention.backends import emulator

    chip = emulator.EmulatorBackend.chip

    def forget() -> None:
        for cache in (prepare._dense, prepare._varlen, prepare._paged, emulator._recorded):
            cache.cache_clear()

    def set_cores(count: int) -> None:
        monkeypatch.setattr(emulator.EmulatorBackend, "chip", lambda self: chip(self)._replace(cores=count))
        forget()

    yield set_cores
    forget()
