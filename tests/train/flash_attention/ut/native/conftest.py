"""Share fixtures between tests of the native kernel."""

import ctypes
from collections.abc import Callable, Iterator

import pytest
from flash_attention.backends.cpu import library

from tests.train.flash_attention.ut.native.support.calls import instruction_set


@pytest.fixture(params=library.instruction_sets())
def isa(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test with every instruction set."""
    with instruction_set(request.param):
        yield request.param


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Set the number of OpenMP threads of this thread."""
    openmp = ctypes.CDLL("libgomp.so.1")
    before = openmp.omp_get_max_threads()
    yield openmp.omp_set_num_threads
    openmp.omp_set_num_threads(before)
