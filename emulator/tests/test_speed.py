"""The speed that is promised, in processor time: other work on the machine does not count."""

import time

import numpy as np
import pytest
import tikemu


def tensors(dtype, size, piece, names):
    """Make an empty program with source, target and named tensors on chip."""
    tikemu.install(soc="Ascend910A")
    from tbe import tik

    instance = tik.Tik()
    source, target = (instance.Tensor(dtype, (size,), tik.scope_gm, name) for name in ("source", "target"))
    return instance, source, target, [instance.Tensor(dtype, (piece,), tik.scope_ubuf, name) for name in names]


def arithmetic(dtype, iterations):
    """Loop over eight element-wise instructions on four tensors of 64 repeats. No value grows beyond 3."""
    lanes = 256 // np.dtype(dtype).itemsize
    instance, source, target, (a, b, c, d) = tensors(dtype, 64 * lanes, 64 * lanes, "abcd")
    for tensor in (a, b, c, d):
        instance.data_move(tensor, source, 0, 1, 64 * 8, 0, 0)
    strides = (64, 8, 8)
    with instance.for_range(0, iterations):
        instance.vec_sub(lanes, c, a, b, *strides, 8)
        instance.vec_muls(lanes, d, c, 0.5, *strides)
        instance.vec_max(lanes, a, c, d, *strides, 8)
        instance.vec_sub(lanes, b, d, a, *strides, 8)
        instance.vec_adds(lanes, a, a, 1.0, *strides)
        instance.vec_mul(lanes, c, d, b, *strides, 8)
        instance.vec_min(lanes, d, c, a, *strides, 8)
        instance.vec_abs(lanes, b, b, *strides)
    instance.data_move(target, d, 0, 1, 64 * 8, 0, 0)
    instance.BuildCCE("speed", [source], [target])
    return instance, {"source": np.linspace(-1, 1, 64 * lanes).astype(dtype)}


def taken(instance, feed, **settings):
    """Return the processor seconds of a run."""
    start = time.process_time()
    tikemu.run(instance, feed, options=tikemu.Options(progress=False, trace=False), **settings)
    return time.process_time() - start


def rate(dtype, seconds, numerics):
    """Return vector instructions per second of the processor, measured for about `seconds`."""
    iterations = 64
    while True:
        time_taken = taken(*arithmetic(dtype, iterations), numerics=numerics)
        if time_taken > seconds / 2:
            return iterations * 8 / time_taken
        iterations = int(iterations * max(2, min(16, seconds / time_taken)))


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_vector_instructions_per_second(native_library, dtype):
    """20,000 instructions of 64 repeats take at most a second with checks and time; time alone is 5 times as fast."""
    full = max(rate(dtype, 0.1, numerics=True) for _ in range(2))
    alone = max(rate(dtype, 0.2, numerics=False) for _ in range(2))
    assert full >= 20_000
    assert alone >= 5 * full


def maximum(rows, chunks):
    """Find the maximum of float32 rows and its index, lane by lane of 64. Return the program and its feed."""
    instance, source, target, (part,) = tensors("float32", rows * chunks * 64, chunks * 64, ("part",))
    from tbe import tik

    places = instance.Tensor("int32", (rows, 64), tik.scope_gm, "places")
    best, where = (instance.Tensor(dtype, (64,), tik.scope_ubuf, f"of_{dtype}") for dtype in ("float32", "int32"))
    bits = instance.Tensor("uint64", (4,), tik.scope_ubuf, "bits")
    mask = instance.Scalar("uint64", "mask")
    with instance.for_range(0, rows) as row:
        instance.vector_dup(64, best, -3e38, 1, 1, 8)
        instance.vector_dup(64, where, 0, 1, 1, 8)
        instance.data_move(part, source[row * chunks * 64], 0, 1, chunks * 8, 0, 0)
        with instance.for_range(0, chunks) as chunk:
            instance.vcmpv_gt(bits, part[64 * chunk], best, 1, 1, 1, 8, 8)
            mask.set_as(bits[0])
            instance.vector_dup([0, mask], where, chunk, 1, 1, 8)
            instance.vmax(64, best, best, part[64 * chunk], 1, 1, 1, 1, 8, 8, 8)
        instance.data_move(target[row * 64], best, 0, 1, 8, 0, 0)
        instance.data_move(places[row * 64], where, 0, 1, 8, 0, 0)
    instance.BuildCCE("maximum", [source], [target, places])
    data = np.random.default_rng(0).standard_normal(rows * chunks * 64).astype(np.float32)
    return instance, {"source": data}


def test_the_estimate_with_masks_that_are_data():
    """It takes about as long as the results alone. A footprint a mask, each in conflict with all, takes ten times."""

    def least(timing):
        return min(taken(*maximum(24, 256), timing=timing) for _ in range(2))

    assert least(True) <= 3 * least(False)
