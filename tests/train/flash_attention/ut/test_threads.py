"""Test what several threads share: the checks of numbers and masks, and the drawing of seeds."""

import sys
import threading

import mindspore as ms
import numpy as np
import pytest
from flash_attention.bridge.seeds import draw_tensor
from flash_attention.bridge.versions import OLD
from flash_attention.call_cells import NumberCheck, TriangleCheck
from mindspore import Tensor

THREADS = 4


def in_threads(work, times):
    """Return the results of `work(thread)` in several threads that switch often."""
    results, errors = [], []

    def call(thread):
        try:
            for _ in range(times):
                results.append(work(thread))
        except Exception as error:
            errors.append(error)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=call, args=(thread,)) for thread in range(THREADS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(interval)
    assert errors == []
    return results


class Numbers:
    def asnumpy(self):
        return None


def test_a_check_of_numbers():
    check = NumberCheck(lambda *numbers: None)
    in_threads(lambda thread: check(Numbers(), None), 2000)


class Mask:
    """A compact mask at an address of its own. `meanwhile` are calls, one for each time that it is read."""

    dtype, shape = ms.float32, (2, 2)

    def __init__(self, *meanwhile):
        self.array, self.meanwhile = np.triu(np.ones((2, 2), np.float32), 1), list(meanwhile)

    def astype(self, dtype):
        return self

    def asnumpy(self):
        if self.meanwhile:
            self.meanwhile.pop()()
        return self.array


@pytest.mark.parametrize("readings", (1, 2))
def test_a_check_of_compact_masks(readings, monkeypatch):
    """Another thread checks another mask while the first is read."""
    monkeypatch.setattr("flash_attention.call_cells.address", id)
    check, other = TriangleCheck(2, ()), Mask()
    check(Mask(*[lambda: check(other)] * readings))
    other.array[1, 0] = 1
    with pytest.raises(ValueError, match="compact causal mask"):
        check(other)


@pytest.mark.skipif(OLD, reason="MindSpore 2.0: one thread computes at a time")
def test_seeds_differ():
    draw_tensor()  # MindSpore's own operators end the process if threads begin
    before = ms.get_rng_state()
    try:
        seeds = in_threads(lambda thread: tuple(draw_tensor().asnumpy().tolist()), 200)
    finally:
        ms.set_rng_state(Tensor(before))
    assert len(set(seeds)) == len(seeds)
