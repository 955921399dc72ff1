"""What tests of the native kernel share."""

import ctypes
from collections.abc import Callable, Iterator

import pytest


@pytest.fixture
def threads() -> Iterator[Callable[[int], None]]:
    """Sets the number of OpenMP threads of this thread."""
    openmp = ctypes.CDLL("libgomp.so.1")
    before = openmp.omp_get_max_threads()
    yield openmp.omp_set_num_threads
    openmp.omp_set_num_threads(before)
