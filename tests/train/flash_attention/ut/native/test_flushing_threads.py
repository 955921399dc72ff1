"""Threads that take subnormal numbers for zero: the kernel keeps them, and leaves the threads as they were."""

import contextlib
import ctypes
import platform
import threading
from collections.abc import Iterator

import numpy as np
import pytest
from flash_attention.call import Call

from tests.train.flash_attention.ut.native.support.calls import run, values

# The word of fenv_t that holds the bits, and the bits that flush: DAZ and FTZ of MXCSR; FZ and FZ16 of FPCR. Processors
# before armv8.2 have FZ alone.
WORD, FLUSH = {"x86_64": (7, 0x8040), "aarch64": (0, 1 << 24 | 1 << 19)}.get(platform.machine(), (0, 0))
SMALL = np.array(0x70000, np.uint32).view(np.float32)  # exact in bfloat16, and so are the results of 128 keys
THREADS = 2

pytestmark = pytest.mark.skipif(not FLUSH, reason="where this processor keeps the bits is not known here")

Environment = ctypes.c_uint32 * 8
maths, openmp = ctypes.CDLL("libm.so.6"), ctypes.CDLL("libgomp.so.1")


def flags() -> int:
    """Return the bits of this thread."""
    environment = Environment()
    maths.fegetenv(ctypes.byref(environment))
    return environment[WORD] & FLUSH


def flags_of_team() -> set:
    """Return (thread, bits) of OpenMP's threads."""
    seen = set()
    look = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: seen.add((threading.get_ident(), flags())))
    openmp.GOMP_parallel(look, None, THREADS, 0)
    return seen


@contextlib.contextmanager
def flushing() -> Iterator[None]:
    """Let the threads of OpenMP flush subnormal numbers inside, this one among them."""
    before, other = Environment(), Environment()
    for environment in (before, other):
        maths.fegetenv(ctypes.byref(environment))
    other[WORD] |= FLUSH
    openmp.GOMP_parallel(maths.fesetenv, ctypes.byref(other), THREADS, 0)
    try:
        yield
    finally:
        openmp.GOMP_parallel(maths.fesetenv, ctypes.byref(before), THREADS, 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_subnormal_numbers_are_kept_and_the_flags_come_back(isa: str, dtype: str, threads) -> None:
    """Queries and keys of zero: the output is the value, and a value's gradient that of the output."""
    call = Call(1, 8, 128, 128, 64, dtype=dtype)
    zeros = np.zeros((1, 8, 128, 64), np.float32)
    small = np.full_like(zeros, SMALL)
    threads(THREADS)
    with flushing():
        before = flags_of_team()
        results = [run(call, zeros, zeros, small, small) for _ in range(5)]
        after = flags_of_team()
    assert before == after and len(before) == THREADS and all(bits for _, bits in before)
    assert flags() == 0
    for output, _, _, _, d_value in results:
        np.testing.assert_array_equal(values(output), small)
        np.testing.assert_array_equal(values(d_value), small)


def test_threads_that_keep_them_are_left_alone(threads) -> None:
    before = flags_of_team()
    call = Call(1, 1, 4, 4, 16)
    run(call, *np.zeros((4, 1, 1, 4, 16), np.float32))
    assert flags_of_team() == before and not flags()
