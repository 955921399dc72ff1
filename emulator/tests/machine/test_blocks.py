"""Blocks: order, private memory, barriers, atomic addition (core.md 3.1; D4)."""

import warnings

import numpy as np
import pytest
import tikemu
from tikemu import TikBoundsError, TikParamError, TikSyncError, TikWarning, tik

from emulator.tests.support.kernels import values


def test_statements_before_the_block_loop_run_once_per_block(kernel):
    target = kernel.Tensor("int32", (3, 8), tik.scope_gm, "target")
    with pytest.warns(TikWarning, match="once per block"):
        counter = kernel.Tensor("int32", (8,), tik.scope_ubuf, "counter")
        counter[0].set_as(5)
        with kernel.for_range(0, 3, block_num=3) as block:
            value = kernel.Scalar("int32")
            value.set_as(counter[0])
            counter[0].set_as(value + 1)
            kernel.data_move(target[block * 8], counter, 0, 1, 1, 0, 0)
        kernel.BuildCCE("kernel", [], [target])
    assert np.array(values(kernel))[:, 0].tolist() == [6, 6, 6]


@pytest.mark.parametrize("from_scalar", [False, True])
def test_number_of_blocks_at_run_time(kernel, from_scalar):
    n = kernel.InputScalar("int32", "n")
    target = kernel.Tensor("int32", (40, 8), tik.scope_gm, "target")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", TikWarning)
        count = n
        if from_scalar:
            count = kernel.Scalar("int32", init_value=n)
        with kernel.for_range(0, count, block_num=count) as block:
            mine = kernel.Tensor("int32", (8,), tik.scope_ubuf, "mine")
            mine[0].set_as(block + 1)
            kernel.data_move(target[block * 8], mine, 0, 1, 1, 0, 0)
        kernel.BuildCCE("kernel", [n], [target])
    result = tikemu.run(kernel, {"n": 35})
    assert result.outputs["target"][:, 0].tolist() == [*range(1, 36), 0, 0, 0, 0, 0]
    assert (result.block_count, result.cores) == (35, 32)
    with pytest.raises(TikBoundsError, match="block_num"):
        tikemu.run(kernel, {"n": 0})


def barrier_kernel(instance, blocks, rounds=2):
    """Let every block publish a number and, after a barrier, add up all numbers; twice."""
    target = instance.Tensor("int32", (blocks, 8), tik.scope_gm, "target")
    board = instance.Tensor("int32", (rounds, blocks, 8), tik.scope_gm, "board", is_workspace=True)
    with instance.for_range(0, blocks, block_num=blocks) as block:
        mine = instance.Tensor("int32", (8,), tik.scope_ubuf, "mine")
        seen = instance.Tensor("int32", (blocks * 8,), tik.scope_ubuf, "seen")
        total = instance.Scalar("int32")
        total.set_as(block + 1)
        for number in range(rounds):
            instance.vector_dup(8, mine, total, 1, 1, 8)
            instance.data_move(board[(number * blocks + block) * 8], mine, 0, 1, 1, 0, 0)
            instance.block_barrier()
            instance.data_move(seen, board[number * blocks * 8], 0, 1, blocks, 0, 0)
            value = instance.Scalar("int32")
            total.set_as(0)
            with instance.for_range(0, blocks) as i:
                value.set_as(seen[i * 8])
                total.set_as(total + value)
        instance.vector_dup(8, mine, total, 1, 1, 8)
        instance.data_move(target[block * 8], mine, 0, 1, 1, 0, 0)
    instance.BuildCCE("kernel", [], [target])
    return instance


def test_block_barrier_lets_blocks_exchange_data(kernel):
    result = tikemu.run(barrier_kernel(kernel, 5), {})
    assert result.outputs["target"][:, 0].tolist() == [15 * 5] * 5
    assert result.instructions["block_barrier"].count == 10
    assert len(set(result.core_cycles)) == 1
    assert result.cycles > 2 * (200 + 350)  # each barrier goes through global memory


def test_memory_and_registers_survive_a_block_barrier(kernel):
    target = kernel.Tensor("float16", (3, 128), tik.scope_gm, "target")
    with kernel.for_range(0, 3, block_num=3) as block:
        mine = kernel.Tensor("float16", (128,), tik.scope_ubuf, "mine")
        one = kernel.Tensor("float16", (128,), tik.scope_ubuf, "one")
        kernel.vector_dup(128, one, 1.0, 1, 1, 8)
        kernel.vector_dup(128, mine, 0.0, 1, 1, 8)
        with kernel.for_range(0, block + 1) as i:
            mine[i].set_as(5.0)
        larger = kernel.vcmp_gt(128, mine, one, 1, 1)
        kernel.block_barrier()
        kernel.vsel(128, 0, mine, larger, mine, one, 1, 1, 1, 1, 8, 8, 8)
        kernel.data_move(target[block * 128], mine, 0, 1, 8, 0, 0)
    kernel.BuildCCE("kernel", [], [target])
    got = tikemu.run(kernel, {}).outputs["target"]
    for block in range(3):
        np.testing.assert_array_equal(got[block], [5.0] * (block + 1) + [1.0] * (127 - block))


def test_block_barrier_with_more_blocks_than_cores_warns(kernel):
    with pytest.warns(TikWarning, match="40 blocks on 32 cores"):
        result = tikemu.run(barrier_kernel(kernel, 40, 1), {})
    assert result.outputs["target"][0, 0] == 40 * 41 // 2


def test_block_barrier_missed_by_a_block(kernel):
    target = kernel.Tensor("int32", (8,), tik.scope_gm, "target")
    with kernel.for_range(0, 3, block_num=3) as block:
        with kernel.if_scope(block != 1):
            kernel.block_barrier()
        mine = kernel.Tensor("int32", (8,), tik.scope_ubuf, "mine")
        kernel.data_move(target, mine, 0, 1, 1, 0, 0)
    kernel.BuildCCE("kernel", [], [target])
    with pytest.raises(TikSyncError, match="block 1 has ended while others wait"):
        tikemu.run(kernel, {})


def test_atomic_addition_over_blocks(kernel):
    source = kernel.Tensor("float32", (8,), tik.scope_gm, "source")
    target = kernel.Tensor("float32", (8,), tik.scope_gm, "target", is_atomic_add=True)
    with kernel.for_range(0, 4, block_num=4):
        held = kernel.Tensor("float32", (8,), tik.scope_ubuf, "held")
        kernel.data_move(held, source, 0, 1, 1, 0, 0)
        with kernel.for_range(0, 3) as i:
            with kernel.if_scope(i == 1):
                kernel.set_atomic_add(1)
            kernel.data_move(target, held, 0, 1, 1, 0, 0)  # the same call, plain and atomic
        kernel.set_atomic_add(0)
    kernel.BuildCCE("kernel", [source], [target])
    data = np.arange(8, dtype=np.float32)
    result = tikemu.run(kernel, {"source": data})
    np.testing.assert_array_equal(result.outputs["target"], 3 * data)
    assert tikemu.run(kernel, {}, numerics=False).cycles == result.cycles


def test_a_multi_core_loop_inside_a_serial_loop(kernel):
    """Default mode runs it as if it were outermost: each block adds up its three rows. Strict mode refuses."""
    source = kernel.Tensor("float16", (3, 4, 16), tik.scope_gm, "source")
    target = kernel.Tensor("float16", (4, 16), tik.scope_gm, "target")
    with kernel.for_range(0, 3) as row:
        with pytest.warns(TikWarning, match="outermost"):
            blocks = kernel.for_range(0, 4, block_num=4)
        with blocks as block:
            one, total = (kernel.Tensor("float16", (16,), tik.scope_ubuf, name) for name in ("one", "total"))
            kernel.data_move(one, source[row * 64 + block * 16], 0, 1, 1, 0, 0)
            kernel.data_move(total, target[block * 16], 0, 1, 1, 0, 0)
            kernel.vec_add(16, total, total, one, 1, 8, 8, 8)
            kernel.data_move(target[block * 16], total, 0, 1, 1, 0, 0)
    kernel.BuildCCE("accumulate", [source], [target])
    data = np.random.default_rng(0).integers(-8, 8, (3, 4, 16)).astype(np.float16)
    feeds = {"source": data, "target": np.zeros((4, 16), np.float16)}
    result = tikemu.run(kernel, feeds)
    assert (result.outputs["target"] == data.sum(0)).all() and result.block_count == 4
    with pytest.raises(TikParamError, match="outermost"):
        tikemu.run(kernel, feeds, options=tikemu.Options(strict=True))
