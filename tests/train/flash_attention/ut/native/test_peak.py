"""Compare the processor's measured peak with what the kernel reaches."""

import time

import numpy as np
import pytest
from flash_attention.backends.cpu import library
from flash_attention.call import DTYPES, Call

from tests.train.flash_attention.ut.native.support.calls import instruction_set, stored

OPERATIONS = 1 << 29


def fastest(call) -> float:
    """Return the least time of this thread in some calls."""
    times = []
    for _ in range(7):
        start = time.thread_time()
        call()
        times.append(time.thread_time() - start)
    return min(times)


@pytest.mark.parametrize("dtype", DTYPES)
def test_attention_comes_near_to_the_peak_and_stays_below(dtype: str, threads) -> None:
    call = Call(1, 1, 1024, 1024, 128, dtype=dtype)
    tensor = stored(np.random.default_rng(0).standard_normal((1, 1, 1024, 128), np.float32), dtype)
    threads(1)
    peak = OPERATIONS / fastest(lambda: library.load().multiply_adds(dtype, OPERATIONS))
    reached = 4 * 1024 * 1024 * 128 / fastest(lambda: library.forward(call, tensor, tensor, tensor))
    # Tiles multiply so fast that most of the time goes into what stands between the products.
    tiles = dtype in library.TILE_PARTS and library.load().bfloat16_isa() == library.TILES_ISA
    assert (0.08 if tiles else 0.4) < reached / peak < 1.1


def test_an_instruction_set_that_is_not_there_is_refused() -> None:
    with instruction_set("none"), pytest.raises(library.KernelError, match="multiply_adds: FLASH_ATTENTION_CPU_ISA"):
        library.load().multiply_adds("float32", OPERATIONS)
