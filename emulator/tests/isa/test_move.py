"""Moves between memories: against the naive interpreter, and their documented examples."""

import numpy as np
import pytest
from tikemu.errors import TikAlignError, TikBoundsError, TikParamError, TikUnsupportedError

from emulator.tests.support.arrays import PLAIN_PATHS, bytes_of
from emulator.tests.support.bench import Bench, Runtime, call_views, check, refuses


@pytest.mark.parametrize("source,target,pipe", PLAIN_PATHS)
@pytest.mark.parametrize(
    "nburst,burst,src_stride,dst_stride", [(1, 1, 0, 0), (3, 2, 0, 0), (4, 1, 3, 0), (5, 2, 0, 1), (2, 7, 2, 5)]
)
@pytest.mark.parametrize("dtype", ["float16", "int8", "float32", "uint64"])
def test_data_move_copies_bursts(bench, source, target, pipe, nburst, burst, src_stride, dst_stride, dtype):
    count = 4096 // np.dtype(dtype).itemsize
    src = bench.tensor(source, dtype, count, bytes_of(dtype, count), name="src")
    dst = bench.tensor(target, dtype, count, bytes_of(dtype, count), name="dst")
    bench.agree("data_move", dst, src, 0, *map(Runtime, (nburst, burst, src_stride, dst_stride)))
    (op,) = bench.agree("data_move", dst, src, 0, nburst, burst, src_stride, dst_stride)
    assert op.pipe == pipe
    moved = nburst * burst * 32
    if "GM" in (source, target):
        assert op.transfer.bursts * op.transfer.burst_bytes == moved
        assert op.transfer.direction == ("read" if source == "GM" else "write")


def test_global_memory_is_addressed_by_element_and_other_memories_by_block(bench):
    gm = bench.tensor("GM", "float16", 64, np.arange(64))
    ub = bench.tensor("UB", "float16", 64)
    bench.call("data_move", ub, gm.at(5), 0, 1, 2, 0, 0)
    np.testing.assert_array_equal(ub.values[:32], np.arange(5, 37))
    for wrong in (ub.at(5), bench.tensor("L1", "float16", 64).at(5)):
        bench.refuses(TikAlignError, "multiple of 32 bytes", "data_move", Runtime(wrong), gm, 0, 1, 1, 0, 0)


def test_run_time_zero_moves_nothing(bench):
    ub, gm = bench.tensor("UB", "float16", 64), bench.tensor("GM", "float16", 64)
    assert bench.bind("data_move", ub, gm, 0, Runtime(0), 1, 0, 0) == ()
    assert bench.bind("data_move", ub, gm, 0, 1, Runtime(0), 0, 0) == ()
    assert bench.bind("tensor_mov", ub, gm, "", 1, Runtime(0), 0, 0) == ()
    for name, *rest in (("data_move", 0), ("tensor_mov", "")):
        bench.refuses(TikBoundsError, r"nburst must be in \[0, 4095\]", name, ub, gm, *rest, Runtime(4096), 1, 0, 0)


@pytest.mark.parametrize("dtype", ["float32", "float16", "int32"])
def test_unified_buffer_to_l0c_counts_fractals(bench, dtype):
    """core.md 4.1 counts burst and dst_stride in fractals, src_stride in blocks; matmul_dds_impl calls it so."""
    assert not check("data_move", *call_views(dtype, dtype, "L0C", "UB"), 0, 1, 1, 0, 0, strict=True)
    ub, l0c = bench.tensor("UB", dtype, 2000, bytes_of(dtype, 2000)), bench.tensor("L0C", dtype, 10 * 256)
    (op,) = bench.agree("data_move", l0c, ub, 0, 3, 2, 1, 1)
    assert op.pipe == "V"
    assert op.cycles == 3 * 2 * np.dtype(dtype).itemsize


def test_l1_to_global_memory_is_questionable(bench):
    views = call_views("float16", "float16", "GM", "L1")
    assert len(check("data_move", *views, 0, 1, 1, 0, 0)) == 1
    refuses(TikUnsupportedError, "no move from L1 to GM", "data_move", *views, 0, 1, 1, 0, 0, strict=True)
    gm, l1 = bench.tensor("GM", "int8", 64), bench.tensor("L1", "int8", 64, np.arange(64))
    (op,) = bench.call("data_move", gm, l1, 0, 1, 2, 0, 0)
    np.testing.assert_array_equal(gm.values, np.arange(64))
    assert op.pipe == "MTE3"


def test_overlapping_bursts_run_in_ascending_order(bench):
    ub = bench.tensor("UB", "int32", 64, np.arange(64))
    bench.warns("overlap", "data_move", ub.at(8), ub, 0, 7, 1, 0, 0)
    np.testing.assert_array_equal(ub.values, np.tile(np.arange(8), 8))  # bursts read the result of the burst before
    ub.store(np.arange(64))
    bench.warns("overlap", "data_move", ub.at(8), ub, 0, 1, 7, 0, 0)
    np.testing.assert_array_equal(ub.values[8:], np.arange(56))  # one burst is read before it is written
    strict = Bench(strict=True)
    ub = strict.tensor("UB", "int32", 64, np.arange(64))
    strict.call("data_move", ub.at(32), ub, 0, 1, 4, 0, 0)
    strict.refuses(TikParamError, "overlap", "data_move", ub.at(16), ub, 0, 1, 4, 0, 0)


def test_interleaved_bursts_do_not_overlap(strict, bench):
    ub = bench.tensor("UB", "int32", 128, np.arange(128))
    bench.call("data_move", ub.at(8), ub, 0, 8, 1, 1, 1)
    result = ub.values.reshape(8, 2, 8)
    np.testing.assert_array_equal(result[:, 1], result[:, 0])
