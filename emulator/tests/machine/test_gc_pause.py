"""The garbage collector waits while programs run, and works as before afterwards."""

import gc
import threading

import numpy as np
import pytest
import tikemu
from tikemu import tik
from tikemu.machine import gc_pause

USUAL = (700, 10, 10)
PATIENT = (50_000, 10, 10)


@pytest.fixture(autouse=True)
def usual():
    """Set the thresholds that Python begins with, for one test."""
    before = gc.get_threshold()
    gc.set_threshold(*USUAL)
    yield
    gc.set_threshold(*before)


@pytest.mark.parametrize("fails", [False, True])
def test_while_a_program_runs(kernel, fails, monkeypatch):
    x = kernel.Tensor("float16", (128,), tik.scope_gm, "x")
    ub = kernel.Tensor("float16", (128,), tik.scope_ubuf, "ub")
    kernel.data_move(ub, x, 0, 1, 8, 0, 0)
    kernel.BuildCCE("moving", [x], [])
    seen = []

    def fill(tensor, fed):
        seen.append(gc.get_threshold())
        if fails:
            raise tikemu.TikError("no")

    monkeypatch.setattr("tikemu.machine.memories.GlobalTensor.fill", fill)
    if fails:
        with pytest.raises(tikemu.TikError, match="no"):
            tikemu.run(kernel, {"x": np.zeros(128, np.float16)})
    else:
        tikemu.run(kernel, {"x": np.zeros(128, np.float16)})
    assert seen == [PATIENT] and gc.get_threshold() == USUAL


@pytest.mark.parametrize("chosen", [(0, 10, 10), (100_000, 5, 5)])
def test_what_the_user_has_chosen_before(chosen):
    gc.set_threshold(*chosen)
    with gc_pause.patience():
        assert gc.get_threshold() == chosen
    assert gc.get_threshold() == chosen


def test_what_the_user_chooses_meanwhile():
    with gc_pause.patience():
        gc.set_threshold(900, 7, 7)
    assert gc.get_threshold() == (900, 7, 7)


def test_threads():
    inside, go_on = threading.Event(), threading.Event()

    def work():
        with gc_pause.patience():
            inside.set()
            go_on.wait(10)

    thread = threading.Thread(target=work)
    with gc_pause.patience():
        thread.start()
        inside.wait(10)
    assert gc.get_threshold() == PATIENT
    go_on.set()
    thread.join()
    assert gc.get_threshold() == USUAL
