"""Test that Options(reuse=False) gives the same results and cycles."""

import numpy as np
import pytest
import tikemu
from tikemu import tik
from tikemu.machine import cores, execute
from tikemu.machine.calls import relocation, site
from tikemu.timing import clock as clocks

from emulator.tests.support.kernels import tiled
from emulator.tests.support.programs.operators import PROGRAMS

MODES = {"default": {}, "strict": {"strict": True}, "l2": {"l2": True}, "optimistic": {"sync": "optimistic"}}
REPETITIONS = 400


@pytest.fixture(autouse=True)
def shim():
    """Put tikemu's modules in the place of CANN's."""
    tikemu.install(soc="Ascend910A")


def looped():
    """Return a program with a loop that reuses everything.

    It has bindings at run-time offsets, relocated bindings, and steady states.
    """
    instance = tik.Tik(disable_debug=False)
    tiled(instance, 128, tiles=REPETITIONS, compute=lambda ub: instance.vec_adds(128, ub, ub, 1.0, 1, 8, 8))
    return instance, {"x": np.arange(REPETITIONS * 128).astype(np.float16)}


@pytest.mark.spread(2)
@pytest.mark.parametrize("numerics", [True, False], ids=["numerics", "timing only"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("build", (*PROGRAMS, looped), ids=lambda build: build.__name__)
def test_reuse_changes_neither_results_nor_cycles(build, mode, numerics, monkeypatch):
    """A trace of all cores needs every event: nothing is replayed from a steady state."""
    monkeypatch.setattr(cores, "TRACED_CORES", 64)
    runs = []
    for ways in ({"reuse": True, "trace": False}, {"reuse": False, "trace": False}, {"trace": True}):
        instance, feeds, *_ = build()
        options = tikemu.Options(**ways, **MODES[mode])
        runs += [tikemu.run(instance, feeds, numerics=numerics, options=options) for _ in range(2)]
    for run in runs[1:]:
        assert run.report() == runs[0].report() and run.waits == runs[0].waits
        assert run.core_cycles == runs[0].core_cycles
        for name, array in runs[0].outputs.items():
            assert run.outputs[name].tobytes() == array.tobytes()


def test_nothing_is_looked_up_without_reuse(monkeypatch):
    """Every execution binds its call, nothing is relocated or replayed, and no compiled program is kept."""
    bound, sessions = [], []
    prepare, session = site.CallSite.prepare, execute.Session.__init__

    def counted(self, *arguments):
        bound.append(self)
        return prepare(self, *arguments)

    def noted(self, *arguments):
        sessions.append(self)
        session(self, *arguments)

    def forbidden(*_):
        raise AssertionError("something was reused")

    monkeypatch.setattr(site.CallSite, "prepare", counted)
    monkeypatch.setattr(execute.Session, "__init__", noted)
    monkeypatch.setattr(relocation.Relocator, "find", forbidden)
    monkeypatch.setattr(clocks.CoreClock, "_extend", forbidden)
    instance, feeds = looped()
    for _ in range(2):
        tikemu.run(instance, feeds, options=tikemu.Options(reuse=False, trace=False))
    assert len(bound) == 2 * 3 * REPETITIONS
    assert len(sessions) == 2
