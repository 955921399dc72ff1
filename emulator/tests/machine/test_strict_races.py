"""Strict mode: accesses that nothing orders, between blocks and in unsynchronised scopes."""

import numpy as np
import pytest
import tikemu
from tikemu import TikParamError, TikSyncError, tik

from emulator.tests.support.strict_programs import STRICT, check, faulty, filled, per_block, ub

pytestmark = pytest.mark.usefixtures("quiet")


DATA = np.arange(128, dtype=np.float16)


@pytest.mark.parametrize("what, fault", [("different", True), ("equal", False), ("disjoint", False)])
def test_blocks_writing_the_same_bytes(kernel, what, fault):
    target = kernel.Tensor("float32", (128,), tik.scope_gm, "target")
    with per_block(kernel) as block:
        a = ub(kernel, "a", 64, "float32")
        kernel.vector_dup(64, a, 1.0, 1, 1, 8)
        if what == "different":
            value = kernel.Scalar("int32", init_value=block)
            with kernel.if_scope(value == 1):
                kernel.vector_dup(64, a, 2.0, 1, 1, 8)
        # Address rollback: the second block repeats the last 32 bytes of the first.
        start = block * (64 if what == "disjoint" else 56)
        kernel.data_move(target[start], a, 0, 1, 8, 0, 0)
    check(
        kernel,
        fault,
        TikSyncError,
        r"data_move: block 1 writes bytes of GM tensor 'target' .* that block 0 wrote(.|\n)*data_move\(",
        [],
        [target],
        target=np.zeros(128, np.float32),
    )


@pytest.mark.parametrize("how, fault", [("plain", True), ("atomic", False), ("mixed", True)])
def test_blocks_adding_to_the_same_bytes(kernel, how, fault):
    target = kernel.Tensor("float32", (64,), tik.scope_gm, "target", is_atomic_add=True)
    with per_block(kernel, 3) as block:
        a = ub(kernel, "a", 64, "float32")
        kernel.vector_dup(64, a, 1.0, 1, 1, 8)
        value = kernel.Scalar("int32", init_value=block)
        if how == "plain":
            with kernel.if_scope(value > 0):
                kernel.vector_dup(64, a, 2.0, 1, 1, 8)
        elif how == "atomic":
            kernel.set_atomic_add(1)
        else:
            with kernel.if_scope(value > 0):
                kernel.set_atomic_add(1)
        kernel.data_move(target, a, 0, 1, 8, 0, 0)
        kernel.set_atomic_add(0)
    check(kernel, fault, TikSyncError, "block 1 writes bytes of GM tensor 'target'", [], [target])


@pytest.mark.parametrize("barrier", [False, True])
@pytest.mark.parametrize(
    "writer, message", [(0, "block 1 reads bytes .* block 0 wrote"), (1, "block 1 writes bytes .* block 0 read")]
)
def test_a_block_reading_what_another_writes(kernel, barrier, writer, message):
    board = kernel.Tensor("float16", (128,), tik.scope_gm, "board")
    target = kernel.Tensor("float16", (256,), tik.scope_gm, "target")
    with per_block(kernel) as block:
        a = filled(kernel, "a")
        me = kernel.Scalar("int32", init_value=block)
        for turn in range(2):
            if turn and barrier:
                kernel.block_barrier()
            with kernel.if_scope(me == turn):
                if turn == writer:
                    kernel.data_move(board, a, 0, 1, 8, 0, 0)
                else:
                    kernel.data_move(a, board, 0, 1, 8, 0, 0)
        kernel.data_move(target[block * 128], a, 0, 1, 8, 0, 0)
    check(kernel, not barrier, TikSyncError, message, [board], [target], board=np.zeros(128, np.float16))


@faulty
def test_a_block_reading_what_it_wrote_itself(kernel, fault):
    board = kernel.Tensor("float16", (256,), tik.scope_gm, "board", is_workspace=True)
    target = kernel.Tensor("float16", (256,), tik.scope_gm, "target")
    with per_block(kernel) as block:
        a = filled(kernel, "a")
        kernel.data_move(board[block * 128], a, 0, 1, 8, 0, 0)
        kernel.data_move(a, board[0 if fault else block * 128], 0, 1, 8, 0, 0)
        kernel.data_move(target[block * 128], a, 0, 1, 8, 0, 0)
    check(kernel, fault, TikSyncError, "block 1 reads .* block 0 wrote", [], [target])


@pytest.mark.parametrize(
    "order, fault",
    [
        ("none", True),
        ("flags", False),
        ("barrier", False),
        ("other barrier", True),
        ("synchronised", False),
        ("disjoint", False),
    ],
)
def test_race_between_pipes(kernel, source, order, fault):
    """The vector unit uses what a move brings in."""
    a, b = ub(kernel, "a"), ub(kernel, "b")
    kernel.vector_dup(128, b, 0.0, 1, 1, 8)
    with kernel.new_stmt_scope(disable_sync=order != "synchronised"):
        kernel.data_move(a, source, 0, 1, 8, 0, 0)
        if order == "flags":
            kernel.set_flag("PIPE_MTE2", "PIPE_V", 0)
            kernel.wait_flag("PIPE_MTE2", "PIPE_V", 0)
        elif order == "barrier":
            kernel.pipe_barrier("PIPE_ALL")
        elif order == "other barrier":
            kernel.pipe_barrier("PIPE_V")
        use = b if order == "disjoint" else a
        kernel.vec_adds(128, b, use, 1.0, 1, 8, 8)
    check(
        kernel,
        fault,
        TikSyncError,
        r"vec_adds on PIPE_V reads bytes .* of UB that data_move on PIPE_MTE2 writes",
        [source],
        result=b,
        source=DATA,
    )


@faulty
def test_accesses_of_one_pipe_are_in_order(kernel, target, fault):
    a = ub(kernel, "a")
    kernel.vector_dup(128, a, 0.0, 1, 1, 8)
    with kernel.new_stmt_scope(disable_sync=True):
        kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
        kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
        if fault:
            kernel.data_move(target, a, 0, 1, 8, 0, 0)
    if not fault:
        check(kernel, fault, TikSyncError, "data_move on PIPE_MTE3 reads .* vec_adds on PIPE_V writes", result=a)


@faulty
def test_a_flag_for_another_event_orders_nothing(kernel, source, fault):
    a = ub(kernel, "a")
    with kernel.new_stmt_scope(disable_sync=True):
        kernel.set_flag("PIPE_MTE2", "PIPE_V", 1)
        kernel.data_move(a, source, 0, 1, 8, 0, 0)
        kernel.set_flag("PIPE_MTE2", "PIPE_V", 0)
        kernel.wait_flag("PIPE_MTE2", "PIPE_V", 1 if fault else 0)
        kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
    check(kernel, fault, TikSyncError, "vec_adds on PIPE_V", [source], result=a, source=DATA)


@faulty
def test_flag_that_nothing_sets(kernel, source, fault):
    a = ub(kernel, "a")
    kernel.data_move(a, source, 0, 1, 8, 0, 0)
    with kernel.for_range(0, 3, name="turn") as turn:
        with kernel.if_scope(turn < (2 if fault else 3)):
            kernel.set_flag("PIPE_MTE2", "PIPE_V", 0)
        kernel.wait_flag("PIPE_MTE2", "PIPE_V", 0)
    message = r"wait_flag.* has no set_flag before it(.|\n)*turn = 2"
    check(kernel, fault, TikParamError, message, [source], result=a, source=DATA)


@faulty
def test_more_blocks_at_a_barrier_than_cores(kernel, target, fault):
    with per_block(kernel, 33 if fault else 32):
        a = filled(kernel, "a")
        kernel.block_barrier()
        kernel.data_move(target, a, 0, 1, 8, 0, 0)
    kernel.BuildCCE("kernel", [], [target])
    if not fault:
        tikemu.run(kernel, {}, options=STRICT)
        return
    with pytest.raises(TikSyncError, match="33 blocks on 32 cores"):
        tikemu.run(kernel, {}, options=STRICT)


@faulty
def test_the_scalar_unit_races_too(kernel, source, fault):
    a = ub(kernel, "a")
    value = kernel.Scalar("float16")
    with kernel.new_stmt_scope(disable_sync=True):
        kernel.data_move(a, source, 0, 1, 8, 0, 0)
        if not fault:
            kernel.pipe_barrier("PIPE_ALL")
        value.set_as(a[0])
    check(
        kernel, fault, TikSyncError, "the scalar access to tensor 'a' on PIPE_S reads", [source], result=a, source=DATA
    )


def test_what_the_scalar_unit_has_done_is_done_when_it_issues(kernel, target):
    a = ub(kernel, "a")
    kernel.vector_dup(128, a, 0.0, 1, 1, 8)
    with kernel.new_stmt_scope(disable_sync=True):
        a[0].set_as(1.0)
        kernel.vec_adds(128, a, a, 1.0, 1, 8, 8)
    check(kernel, False, TikSyncError, "", result=a)


def test_races_are_found_without_numerics(kernel, source, target):
    a = ub(kernel, "a")
    with kernel.new_stmt_scope(disable_sync=True):
        kernel.data_move(a, source, 0, 1, 8, 0, 0)
        kernel.data_move(target, a, 0, 1, 8, 0, 0)
    kernel.BuildCCE("kernel", [source], [target])
    with pytest.raises(TikSyncError):
        tikemu.run(kernel, {}, numerics=False, options=STRICT)
