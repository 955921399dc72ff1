"""Random cases against the float64 truth: through the kernel's own entry points, and through MindSpore.

A seed alone: PYTHONPATH=train:emulator python -m tests.train.flash_attention.st.test_fuzz native 123
"""

import sys

import pytest
from flash_attention.backends.cpu import library

from emulator.tests.support.fuzz import Campaign
from tests.train.flash_attention.support import cases, run
from tests.train.flash_attention.support.modes import in_mode
from tests.train.flash_attention.support.random_cases import random_case
from tests.train.flash_attention.ut.native.support.calls import instruction_set, run_case

pytestmark = pytest.mark.system

MODULE = "tests.train.flash_attention.st.test_fuzz"
FOLDERS = ("train/flash_attention", "tests/train/flash_attention")
NATIVE = Campaign("native", MODULE, 100_000, 1000, FOLDERS)
MINDSPORE = Campaign("mindspore", MODULE, 3000, 100, FOLDERS)


def native_case(seed: int) -> None:
    """Check a case on one of this machine's instruction sets. The process has run many others."""
    isas = library.instruction_sets()
    case = random_case(seed)
    with instruction_set(isas[seed % len(isas)]):
        cases.check_random(case, run_case(case))


def mindspore_case(seed: int) -> None:
    """Run a case through `flash_attention`, the modes and the backends in turns."""
    case = random_case(1_000_000 + seed, longest=150)
    with in_mode(("graph", "pynative")[seed % 2]):
        cases.check_random(case, run.run_case(case, ("cpu", "cpu", "math")[seed % 3]))


@pytest.mark.parametrize("first", range(0, 500, 100))
def test_the_first_random_cases_on_the_kernel(first):
    for seed in range(first, first + 100):
        native_case(seed)


@NATIVE.params()
def test_random_cases_on_the_kernel(first):
    NATIVE.run(first, native_case)


@MINDSPORE.params()
def test_random_cases_through_mindspore(first):
    MINDSPORE.run(first, mindspore_case)


if __name__ == "__main__":
    {"native": native_case, "mindspore": mindspore_case}[sys.argv[1]](int(sys.argv[2]))
