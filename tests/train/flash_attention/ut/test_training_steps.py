"""Test gradients of attention and of weights around it, for every way to ask."""

import pytest
from flash_attention.bridge.versions import OLD

from tests.train.flash_attention.support.modes import in_mode
from tests.train.flash_attention.support.training_net import ARRANGEMENTS
from tests.train.flash_attention.support.training_steps import (
    after_a_call,
    by_function,
    by_sens,
    check_accumulated,
    check_steps,
    check_turns,
    recompute,
)

BACKENDS = ("cpu", "math", "emulator")


@pytest.mark.daily(
    "*-one block twice-cpu", "*-two alike-cpu", "graph-two alike-emulator", "pynative-two different-math", since=(2, 8)
)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_every_arrangement(arrangement, backend, mode):
    check_steps(arrangement, backend, by_sens)


@pytest.mark.daily("BSH-*", since=(2, 8))
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("layout", ("BSH", "BNSD"))
def test_function_of_what_is_around_it(backend, layout):
    with in_mode("pynative"):
        check_steps("two alike", backend, by_function, layout)


@pytest.mark.daily("*-cpu", since=(2, 8))
@pytest.mark.parametrize("backend", BACKENDS)
def test_set_grad_and_a_call_before(backend, mode):
    check_steps("two alike", backend, after_a_call)


@pytest.mark.daily("cpu", since=(2, 8))
@pytest.mark.parametrize("backend", BACKENDS)
def test_recompute(backend):
    with in_mode("graph"):
        check_steps("two alike", backend, by_sens, change=recompute)


@pytest.mark.daily("*-cpu", since=(2, 8))
@pytest.mark.parametrize("backend", BACKENDS)
def test_networks_in_turns(backend, mode):
    check_turns(backend)


@pytest.mark.daily("*-cpu", "pynative-emulator", since=(2, 8))
@pytest.mark.parametrize("backend", BACKENDS)
def test_accumulated_gradients(backend, mode):
    check_accumulated(backend)


# Each case has its own process: MindSpore 2.0 may crash in a process that has differentiated much before.
COMPILED = """
import os

import mindspore as ms
from tests.train.flash_attention.support.training_steps import by_sens, check_steps

ms.set_context(mode=ms.PYNATIVE_MODE, device_target="CPU")
try:
    check_steps("two alike", "{backend}", by_sens, compiled=True)
    print("right")
except RuntimeError as error:
    print(error, flush=True)
    os._exit(0)  # after an error in a graph, MindSpore 2.0 may hang where it ends
"""


@pytest.mark.daily("cpu", since=(2, 8))
@pytest.mark.parametrize("backend", BACKENDS)
def test_jit_functions_in_pynative(backend, run_python):
    """PYNATIVE differentiates a network in which attention is compiled."""
    printed = run_python("-c", COMPILED.format(backend=backend))
    if OLD and backend == "emulator":
        assert "in a function that PYNATIVE differentiates" in printed
    else:
        assert printed.splitlines()[-1] == "right"
