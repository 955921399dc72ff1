"""The speed that is promised, in processor time: other work on the machine does not count."""

import time

import pytest
import tikemu

from benchmarks import emulator_speed


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_vector_instructions_per_second(native_library, dtype):
    """20,000 instructions of 64 repeats take at most a second with checks and time; time alone is 5 times as fast."""
    full = max(emulator_speed.rate(dtype, 0.1, numerics=True, clock=time.process_time) for _ in range(2))
    alone = max(emulator_speed.rate(dtype, 0.2, numerics=False, clock=time.process_time) for _ in range(2))
    assert full >= 20_000
    assert alone >= 5 * full


def test_the_estimate_with_masks_that_are_data():
    """It takes about as long as the results alone. A footprint a mask, each in conflict with all, takes ten times."""

    def taken(timing):
        instance, feed, _ = emulator_speed.maximum(24, 256)
        start = time.process_time()
        tikemu.run(instance, feed, timing=timing, options=tikemu.Options(trace=False))
        return time.process_time() - start

    assert min(taken(True) for _ in range(2)) <= 3 * min(taken(False) for _ in range(2))
